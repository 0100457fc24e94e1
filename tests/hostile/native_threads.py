"""Threads and processes by the raw calls: clone, clone3, vfork, pthread_create."""
load = __import__


class CloneEnv:
    def reset(self, seed=None):
        libc, done = load("ctypes").CDLL(None, use_errno=True), []
        for number in (56, 435, 58, 57):
            if libc.syscall(number, 17, 0, 0, 0, 0) != -1:
                done.append(number)
        try:
            load("_thread").start_new_thread(print, ())
            done.append("thread")
        except (RuntimeError, ImportError):
            pass
        return f"ESCAPED {done}" if done else "refused", {}

    def step(self, action):
        return "next", 0.0, False, False, {}
