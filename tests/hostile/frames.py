"""Walks up the frames into the worker and rewrites what it finds there; the lies stay in this process."""
load = __import__


class FrameEnv:
    def reset(self, seed=None):
        frame, seen = load("sys")._getframe(), []
        while frame:
            seen += list(frame.f_globals)
            for name in ("PER_WORKER", "INHERITED", "SYSCALLS"):
                if name in frame.f_globals:
                    frame.f_globals[name].clear()
            frame = frame.f_back
        return f"{len(seen)} names", {}

    def step(self, action):
        try:
            load("os").pipe()
            return "ESCAPED the filter", 0.0, False, False, {}
        except OSError:
            return "still sealed", 0.0, False, False, {}
