"""The inside of the sandbox, what runs in the child processes: a file of its own because it is a process of
its own. sandbox.py starts it as a script, and from then on trainer and program share nothing but a socket.

    zygote   a bare Python that has imported all that a program may use; forks a worker when the trainer asks
    worker   seals itself, then loads ONE program and answers load, reset, step, solution: a JSON line each

The seal is one idea: a text game needs memory, a clock and the socket it already holds. So the kernel refuses
all system calls but 22, and with them go files, network, processes, threads, signals, imports from disk.
Nothing of Python is forbidden or hidden: a program may patch this very module, and gains nothing by it.
"""
import __future__  # for its flag

import ast
import ctypes
import gc
import json
import os
import random
import resource
import signal
import socket
import struct
import sys
import traceback
from contextlib import suppress

if not __package__:  # a script that Python's -P keeps from finding what lies beside it
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from machinery.names import fresh_module, may_import  # noqa: E402

# The only system calls a worker has left: (x86_64, aarch64), compared with the kernel's headers.
SYSCALLS = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "mmap": (9, 222), "mprotect": (10, 226),
    "munmap": (11, 215), "brk": (12, 214), "rt_sigreturn": (15, 139), "sched_yield": (24, 124),
    "mremap": (25, 216), "madvise": (28, 233), "nanosleep": (35, 101), "getpid": (39, 172), "exit": (60, 93),
    "gettimeofday": (96, 169), "gettid": (186, 178), "futex": (202, 98), "restart_syscall": (219, 128),
    "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "exit_group": (231, 94),
    "getrandom": (318, 278),
}
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
LIBC = ctypes.CDLL(None, use_errno=True)
MAX_CODE = 100_000  # characters: the parser takes seconds over megabytes


# ---- the seal ----

def limit(name, value):
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))


def prctl(option, value, address=0):
    LIBC.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    if LIBC.prctl(option, value, address, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"option {option} is refused")


def volunteer_for_oom():
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when memory runs out, it is not the trainer that goes


def drop_root():
    if os.getuid() == 0:
        with suppress(OSError):  # the root of a small container may lack the right, and has little to lose
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)


def filter_system_calls():
    """In the kernel's BPF: known architecture and a number of the table -> allow; everything else -> EPERM,
    and not a kill, so that a careless program gets a PermissionError that says where."""
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise OSError(f"no table of system calls for {sys.platform} on {machine}")
    column = list(ARCHITECTURES).index(machine)
    numbers = [row[column] for row in SYSCALLS.values()]
    code = [(0x20, 0, 0, 4), (0x15, 0, len(numbers) + 1, ARCHITECTURES[machine])]  # another machine: EPERM
    code += [(0x20, 0, 0, 0)]  # load the number
    code += [(0x15, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]  # equal: ALLOW
    code += [(0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]  # the two ends: EPERM, ALLOW
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    header = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(program)))
    prctl(22, 2, ctypes.addressof(header))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    with suppress(PermissionError):  # a filter that is not enforced is no filter
        os.pipe()
        raise OSError("the kernel accepts the filter and ignores it")


INHERITED = [  # taken once, by the zygote
    (volunteer_for_oom,), (limit, "CORE", 0), (limit, "FSIZE", 0), (limit, "NOFILE", 64),
    (limit, "AS", 512 << 20), (drop_root,), (prctl, 38, 1),  # PR_SET_NO_NEW_PRIVS, or only root may filter
]
PER_WORKER = [(limit, "NPROC", 0), (limit, "CPU", 60), (filter_system_calls,)]


def take(steps):
    """Take these steps of the seal; what this machine refuses comes back as text."""
    missing = []
    for step, *arguments in steps:
        try:
            step(*arguments)
        except (OSError, ValueError, AttributeError) as error:
            missing.append(f"{step.__name__} {' '.join(map(str, arguments))}: {error}")
    return missing


# ---- one program ----

class Rejected(Exception):
    """The program is refused before it plays."""


def static_check(code):
    """The compiled program, or Rejected. Early and clear, not a defence: that is the seal."""
    if len(code) > MAX_CODE:
        raise Rejected(f"syntax: {len(code)} characters are too many")
    try:
        code.encode()
        tree = ast.parse(code)
        program = translate(tree)
    except SyntaxError as error:
        raise Rejected(f"syntax: {error.msg} (line {error.lineno})") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Rejected(f"syntax: {type(error).__name__}: {error}") from None
    for node in ast.walk(tree):
        names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        for name in names:
            if not may_import(name):
                raise Rejected(f"import: {name} is not among the allowed modules")
    return program


def translate(source):
    lazy_hints = __future__.annotations.compiler_flag  # a type hint that names nothing is no reason to fail
    return compile(source, "<environment>", "exec", lazy_hints, dont_inherit=True)


class Program:
    """The program of one worker; its methods are all that the trainer can ask for."""

    def __init__(self, space):
        self.space, self.ours = space, set(map(id, space.values()))

    def load(self, code, checked):
        program = translate(code) if checked else static_check(code)
        failure = Rejected("class: none has reset and step")
        try:
            exec(program, self.space)
        except (Exception, SystemExit) as error:  # often it is example code under a good class
            failure = error
        classes = {name: thing for name, thing in self.space.items() if id(thing) not in self.ours
                   and isinstance(thing, type) and hasattr(thing, "reset") and hasattr(thing, "step")}
        if not classes:
            raise failure
        named = [thing for name, thing in classes.items() if name.endswith("Env")]
        self.make = named[-1] if named else list(classes.values())[-1]  # a base class comes first, the environment last

    def reset(self, seed):
        random.seed(seed)  # a program that forgets to seed repeats all the same
        self.env = self.make()  # a new instance: only what the class or module keeps outlives an episode
        return self.env.reset(seed=seed)

    def step(self, action):
        return self.env.step(action)

    def solution(self):
        return self.env.solution() if hasattr(self.env, "solution") else None


def explain(error):
    """One line on an exception of the program, whose __str__ may be hostile too."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == "<environment>"]
    text = type(error).__name__
    with suppress(BaseException):
        text += f": {str(error)[:200]}"
    return text + (f" (line {lines[-1]})" if lines else "")


def serve(requests, descriptor, program):
    for line in requests:
        method, *arguments = json.loads(line)
        try:
            result = getattr(program, method)(*arguments)
            reply = json.dumps({"ok": result}, ensure_ascii=False, skipkeys=True, default=lambda thing: {})
        except Rejected as error:
            reply = json.dumps({"rejected": str(error)})
        except BaseException as error:  # SystemExit and its like are the program's as well
            reply = json.dumps({"exception": f"{method}: {explain(error)}"})
        data = reply.encode("utf-8", "replace") + b"\n"
        while data:
            data = data[os.write(descriptor, data):]


# ---- the zygote ----

def namespace(prelude):
    """What every program finds when it is loaded. The prelude is trusted source."""
    space = fresh_module()
    exec(compile(prelude, "<prelude>", "exec"), space)
    return space


def work(descriptor, zygote, strict, missing, space):
    """The life of a worker, from fork to exit."""
    try:
        random.seed(0)  # a fork reseeds it from the clock
        requests = open(descriptor, "rb", closefd=False)
        missing = missing + take([(prctl, 1, signal.SIGKILL)])  # PR_SET_PDEATHSIG: go when the zygote goes,
        if os.getppid() != zygote:  # which may be gone already
            return
        missing += take(PER_WORKER)
        if space is None:  # the first worker only tells how far the seal holds
            os.write(descriptor, json.dumps(missing).encode() + b"\n")
        elif not (strict and missing):
            serve(requests, descriptor, Program(space))
    finally:
        os._exit(70)  # "internal software error": the trainer reports it as a crash


def zygote(descriptor):
    """Answers the trainer's questions, 8 bytes each. 0 and a socket: fork a worker for it, tell its pid.
    A pid: kill that worker, tell its wait status. Nobody else kills or reaps, so no pid is ever mistaken."""
    control = socket.socket(fileno=descriptor)
    with control.makefile("rb") as file:
        strict, prelude = json.loads(file.readline())
    space = namespace(prelude)
    missing = take(INHERITED)
    os.dup2(1, 2)  # until here our own errors could be seen; workers write to /dev/null
    gc.freeze()  # no collection touches, and so copies, the pages that all workers share
    trainer, me, workers = os.getppid(), os.getpid(), set()
    if os.fork() == 0:
        work(descriptor, me, strict, missing, None)
    if os.WIFSIGNALED(os.wait()[1]):
        control.sendall(b'["a sealed worker cannot live"]\n')
    control.settimeout(1)
    while os.getppid() == trainer:
        try:
            question, received, _, _ = socket.recv_fds(control, 8, 1)
        except TimeoutError:
            continue
        if not question:  # the trainer closed the sandbox, or died
            break
        pid = struct.unpack("q", question)[0]
        if pid:
            workers.remove(pid)
            os.killpg(pid, signal.SIGKILL)
            answer = os.waitpid(pid, 0)[1]
        else:
            try:
                answer = os.fork()
            except OSError as error:
                answer = -error.errno
            if answer == 0:
                os.close(descriptor)
                work(received[0], me, strict, missing, space)
            os.close(received[0])
            if answer > 0:
                os.setpgid(answer, answer)
                workers.add(answer)
        control.sendall(struct.pack("q", answer))
    for pid in workers:
        os.killpg(pid, signal.SIGKILL)
    for pid in workers:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    zygote(int(sys.argv[1]))
