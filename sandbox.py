"""Run programs that a model wrote, without letting them hurt us: one sealed process per episode.

    python sandbox.py FILE.py [--seed N]     play an environment in the terminal
    python sandbox.py --check FILE.py ...    is each program a sound environment, and if not, why not

    with Sandbox() as box, SandboxedEnv(box, code) as env:
        observation, info = env.reset(seed=7)
        observation, reward, terminated, truncated, info = env.step("\\boxed{up}")

The trainer starts one *zygote*, a bare Python that has imported all that a program may use. Each episode is a fork of
it, a *worker*, which seals itself before it reads its first byte. What holds, by which layer, under which test:

    files, network, processes, signals  seccomp: all but 22 system calls answer EPERM       test_system_calls, test_hostile
    the trainer's memory and secrets    own process, empty environment, nothing inherited   test_hostile
    time                                one deadline a call, then SIGKILL by the zygote     test_hostile, test_load
    memory, core files, disk            resource limits; uid 65534 where we are root        test_hostile, test_limits
    the trainer's parser and log        replies are hostile data: JSON, bytes, exact types  test_replies
    nothing left behind                 the kernel kills workers when the zygote goes       test_orphans, test_leaks
    the same episode for one seed       fixed hash seed, random.seed, a process an episode  test_same_seed

Not protected: whether rewards are *deserved* (the program decides; `validate` catches the cheap lies); kernel bugs in
those 22 calls; the sum of what many workers use (512 MB each); control tokens such as <|im_end|> in observations:
tokenize those as plain text. It needs Linux on x86_64 or aarch64 (not run there yet), but neither root nor user
namespaces. Elsewhere `Sandbox()` refuses; `strict=False` is the choice to go on with what is left: processes,
deadlines and checked replies, but every file and the network within the program's reach.
"""
import ast, ctypes, gc, importlib, io, itertools, json, os, random, resource, signal, socket  # noqa: E401
import struct, subprocess, sys, threading, time, tokenize, traceback, types  # noqa: E401
from contextlib import ExitStack, suppress
from dataclasses import dataclass

MAX_TEXT, MAX_REPLY = 100_000, 1 << 20  # characters of a program, an action, an observation; bytes of a reply
SHAPES = {"load": {}, "solution": {"actions": (list, type(None))}, "reset": {"observation": str, "info": dict}}
SHAPES["step"] = {"observation": str, "reward": (int, float), "terminated": bool, "truncated": bool, "info": dict}

# What a program may import, and the names it finds without importing anything.
MODULES = """abc array base64 binascii bisect calendar cmath collections contextlib copy dataclasses datetime decimal
    difflib enum fractions functools hashlib heapq io itertools json math numbers operator pprint queue random re
    statistics string struct textwrap time traceback types typing unicodedata uuid warnings zlib""".split()
GIVEN = {
    "abc": "ABC abstractmethod", "copy": "deepcopy", "dataclasses": "dataclass field", "decimal": "Decimal",
    "collections": "Counter OrderedDict defaultdict deque namedtuple", "enum": "Enum IntEnum auto",
    "fractions": "Fraction", "functools": "cache lru_cache partial reduce",
    "itertools": "accumulate chain combinations combinations_with_replacement cycle permutations product",
    "typing": "Any Callable Dict Iterable List Literal NamedTuple Optional Sequence Set Tuple TypeVar Union",
}
PRELOADED = "_strptime encodings.ascii encodings.latin_1 encodings.utf_16 encodings.cp1252 linecache".split()

# The only system calls a worker has left: (x86_64, aarch64), compared with the kernel's headers.
SYSCALLS = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "mmap": (9, 222), "mprotect": (10, 226),
    "munmap": (11, 215), "brk": (12, 214), "rt_sigreturn": (15, 139), "sched_yield": (24, 124),
    "mremap": (25, 216), "madvise": (28, 233), "nanosleep": (35, 101), "getpid": (39, 172), "exit": (60, 93),
    "gettimeofday": (96, 169), "gettid": (186, 178), "futex": (202, 98), "restart_syscall": (219, 128),
    "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "exit_group": (231, 94), "getrandom": (318, 278),
}
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


class EnvError(Exception):
    """The program failed, not we. kind: rejected (before it ran), exception, timeout, crash, protocol (ill-formed)."""

    def __init__(self, kind, message):
        super().__init__(" ".join(plain(message[:1000]).split())[:300])
        self.kind = kind


def plain(text):
    return text.encode("utf-8", "replace").decode()  # a lone surrogate would break any log and tokenizer


def well_formed(method, result):
    """A method's result as a list of exact shape, or EnvError. The worker asks first, because it can name the
    program's own types; the trainer asks again, because it believes no worker."""
    shape = SHAPES[method]
    if not isinstance(result, (tuple, list)) or len(result) != len(shape):
        found = f"{len(result)} values" if isinstance(result, (tuple, list)) else type(result).__name__
        raise EnvError("protocol", f"{method}: returned {found}, not ({', '.join(shape)})")
    for (name, kind), value in zip(shape.items(), result):
        if not isinstance(value, kind) or name == "reward" and isinstance(value, bool):
            raise EnvError("protocol", f"{method}: {name} is of type {type(value).__name__}")
        if name == "observation" and len(value) > MAX_TEXT:
            raise EnvError("protocol", f"{method}: observation of {len(value)} characters")
        if name == "reward" and not abs(value) < 1e9:  # NaN as well
            raise EnvError("protocol", f"{method}: reward is not a finite number")
        if name == "actions" and not all(isinstance(action, str) for action in value or []):
            raise EnvError("protocol", f"{method}: not a list of strings")
    return list(result)


# ---- in the zygote and its workers: the seal ----

def limit(name, value):
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))


def prctl(option, value, address=0):
    function = ctypes.CDLL(None, use_errno=True).prctl
    function.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    if function(option, value, address, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) is refused")


def volunteer_for_oom():
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when memory runs out, it is not the trainer that goes


def drop_root():
    if os.getuid() == 0:
        with suppress(OSError):  # root of a small container may lack the right, and has little to lose
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)


def filter_system_calls():
    """Known architecture and number in the table -> allow, everything else -> EPERM: a program in the kernel's BPF."""
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise OSError(f"no table of system calls for {sys.platform} on {machine}")
    numbers = [row[list(ARCHITECTURES).index(machine)] for row in SYSCALLS.values()]
    code = [(0x20, 0, 0, 4), (0x15, 0, len(numbers) + 1, ARCHITECTURES[machine]), (0x20, 0, 0, 0)]
    code += [(0x15, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    code += [(0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]  # ERRNO with EPERM; ALLOW
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    header = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(program)))
    prctl(22, 2, ctypes.addressof(header))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    with suppress(PermissionError):
        os.pipe()
        raise OSError("the kernel does not enforce the filter")


INHERITED = [(volunteer_for_oom,), (limit, "CORE", 0), (limit, "FSIZE", 0), (limit, "NOFILE", 64),
             (limit, "AS", 512 << 20), (drop_root,), (prctl, 38, 1)]  # PR_SET_NO_NEW_PRIVS, which the filter needs
PER_WORKER = [(limit, "NPROC", 0), (limit, "CPU", 60), (filter_system_calls,)]


def take(steps):
    """Take the steps of the seal; returns those this machine refuses."""
    missing = []
    for step, *arguments in steps:
        try:
            step(*arguments)
        except (OSError, ValueError, AttributeError) as error:
            missing.append(f"{step.__name__}: {error}")
    return missing


# ---- in a worker: one program ----

class Env:
    """The empty base class that programs like to name."""

    def reset(self, seed=None, **options):
        pass


def static_check(code):
    """What can be said without running it: the syntax tree, or EnvError."""
    try:
        code.encode()
        tree = ast.parse(code, "<environment>")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise EnvError("rejected", f"syntax: {type(error).__name__} {error}") from None
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += ["." * node.level + (node.module or "")] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if name.split(".")[0] not in MODULES + ["__future__", "gym", "gymnasium"]:
                raise EnvError("rejected", f"import: {name} is not among the allowed modules")
    return tree


class Program:
    """A generated program inside its worker; the methods are what the trainer may ask for."""

    def __init__(self, module):
        self.space, self.before = vars(module), dict(vars(module))

    def load(self, code, checked):
        program = compile(code if checked else static_check(code), "<environment>", "exec")
        try:
            exec(program, self.space)
            failure = None
        except Exception as error:  # example code below the class may fail: judged once we know if there is a class
            failure = error
        classes = [(name, c) for name, c in self.space.items() if isinstance(c, type) and self.before.get(name) is not c
                   and callable(getattr(c, "reset", None)) and callable(getattr(c, "step", None))]
        if not classes:
            raise failure or EnvError("rejected", "class: no class with reset and step")
        self.factory = ([c for name, c in classes if name.endswith("Env")] or [c for _, c in classes])[-1]
        return []

    def reset(self, seed):
        random.seed(seed)
        self.env = self.factory()  # a new one each time: class attributes aside, nothing stays from an earlier episode
        result = self.env.reset(seed=seed)
        return (result, {}) if isinstance(result, str) else result

    def step(self, action):
        return self.env.step(action)

    def solution(self):
        found = self.env.solution() if callable(getattr(self.env, "solution", None)) else None
        found = [found] if isinstance(found, (str, int, float)) else found
        return [[str(action) for action in found] if isinstance(found, (list, tuple)) else found]


def explain(error):
    """(kind, text) of any exception of the program, whose __str__ may be hostile too."""
    if isinstance(error, EnvError):
        return error.kind, str(error)
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == "<environment>"]
    where = f" (line {lines[-1]})" if lines else ""
    try:
        return "exception", f"{type(error).__name__}: {str(error)[:200]}{where}"
    except BaseException:
        return "exception", f"{type(error).__name__}{where}"


def serve(module, requests, descriptor):
    program = Program(module)
    for line in requests:
        method, *arguments = json.loads(line)
        try:
            result = well_formed(method, getattr(program, method)(*arguments))
            reply = json.dumps({"ok": result}, default=lambda thing: type(thing).__name__, skipkeys=True)
        except BaseException as error:  # SystemExit and the like are the program's as well
            kind, text = explain(error)
            text = text if isinstance(error, EnvError) else f"{method}: {text}"
            reply = json.dumps({kind: text})
        data = reply.encode() + b"\n"
        while data:
            data = data[os.write(descriptor, data):]


def zygote(descriptor):
    control = socket.socket(fileno=descriptor)
    strict, prelude = json.loads(control.makefile("rb").readline())
    for name in MODULES + PRELOADED:
        importlib.import_module(name)
    missing = take(INHERITED)
    module = sys.modules["environment"] = types.ModuleType("environment")
    module.__dict__.update({name: sys.modules[name] for name in MODULES}, Env=Env)
    for source, names in GIVEN.items():
        module.__dict__.update({name: getattr(sys.modules[source], name) for name in names.split()})
    for name in ("gym", "gymnasium"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].Env = Env
    exec(compile(prelude, "<prelude>", "exec"), module.__dict__)
    os.dup2(1, 2)  # so far our own errors were seen; a worker writes to /dev/null
    control.settimeout(1)
    trainer, me, workers = os.getppid(), os.getpid(), set()
    random.seed(0)
    gc.freeze()  # no collection touches, and so copies, the shared pages
    if not os.fork():
        missing += take(PER_WORKER)
        os.write(descriptor, json.dumps(missing).encode() + b"\n")
        os._exit(0)
    os.wait()
    while os.getppid() == trainer:
        try:
            request, received, _, _ = socket.recv_fds(control, 8, 1)
        except TimeoutError:
            continue
        if not request:
            break
        pid = struct.unpack("q", request)[0]
        if pid:  # end this worker
            workers.remove(pid)
            os.killpg(pid, signal.SIGKILL)
            answer = os.waitpid(pid, 0)[1]
        else:
            answer = os.fork()
            if not answer:
                try:
                    control.close()
                    random.seed(0)  # the fork gave it fresh entropy
                    requests = open(received[0], "rb", closefd=False)
                    missing = take([(prctl, 1, signal.SIGKILL)])  # PR_SET_PDEATHSIG: go when the zygote goes
                    if os.getppid() != me:
                        os._exit(0)
                    missing += take(PER_WORKER)
                    if not (strict and missing):
                        serve(module, requests, received[0])
                finally:
                    os._exit(70)
            os.setpgid(answer, answer)
            os.close(received[0])
            workers.add(answer)
        control.send(struct.pack("q", answer))
    for pid in workers:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


# ---- in the trainer ----

class Sandbox:
    """The zygote's owner. Threads may share it; `with` or close() ends every process of it."""

    def __init__(self, strict=True, prelude=""):
        """prelude: trusted source (ours) that every program finds already executed in its namespace."""
        self.lock, self.slots = threading.Lock(), threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
        self.control, theirs = socket.socketpair()
        command = [sys.executable, "-s", "-S", "-B", "-P", "-W", "ignore", os.path.abspath(__file__), "--zygote"]
        environment = {"PYTHONHASHSEED": "0"} | {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
        self.process = subprocess.Popen([*command, str(theirs.fileno())], pass_fds=[theirs.fileno()], cwd="/",
            env=environment, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        theirs.close()
        self.control.settimeout(60)
        self.control.sendall(json.dumps([strict, prelude]).encode() + b"\n")
        hello = self.control.makefile("rb").readline()
        missing = json.loads(hello) if hello else ["the zygote did not start"]
        if missing and (strict or not hello):
            self.close()
            raise RuntimeError(f"cannot seal a worker here ({'; '.join(missing)}). strict=False (--unsafe-sandbox) would"
                " keep separate processes, deadlines and checked replies, but leave files and the network to the program")

    def ask(self, number, *descriptors):
        """Of the zygote: 0 and a socket -> the pid of a new worker; a pid -> that worker killed, its wait status."""
        try:
            with self.lock:
                socket.send_fds(self.control, [struct.pack("q", number)], descriptors)
                return struct.unpack("q", self.control.recv(8))[0]
        except (OSError, struct.error):
            self.control.close()
            raise RuntimeError("the zygote of the sandbox is gone") from None
        except BaseException:  # interrupted halfway: the next answer would be to the wrong question
            self.control.close()
            raise

    def close(self):
        self.control.close()
        self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


class SandboxedEnv:
    """One episode's environment. timeout: seconds a call; budget: seconds all calls together; checked: the program
    was validated before, so skip the static pass."""

    def __init__(self, box, code, timeout=5.0, checked=False, budget=float("inf")):
        if len(code) > MAX_TEXT:
            raise EnvError("rejected", f"syntax: {len(code)} characters are too long")
        self.box, self.timeout, self.budget, self.pid = box, timeout, budget, 0
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.pid = box.ask(0, theirs.fileno())
        self.call("load", code, checked)

    def reset(self, seed):
        observation, info = self.call("reset", seed)
        return plain(observation), info

    def step(self, action):
        observation, reward, terminated, truncated, info = self.call("step", action[:MAX_TEXT])
        return plain(observation), float(reward), terminated, truncated, info

    def solution(self):
        actions = self.call("solution")[0]
        return actions and [plain(action) for action in actions]

    def call(self, method, *arguments):
        request = json.dumps([method, *arguments]).encode() + b"\n"
        try:
            with self.box.slots:  # few at a time, and the clock starts inside: load must not look like slowness
                start = time.monotonic()
                reply = self.exchange(method, request, start + min(self.timeout, self.budget))
                self.budget -= time.monotonic() - start
            if type(reply) is not dict or len(reply) != 1:
                raise EnvError("protocol", f"protocol: {method} sent something else than a reply")
            (kind, value), = reply.items()
            if kind in ("rejected", "exception", "protocol"):
                raise EnvError(kind, str(value))
            return well_formed(method, value)
        except EnvError:
            self.close()
            raise

    def exchange(self, method, request, deadline):
        data = bytearray()
        try:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            self.socket.sendall(request)
            while not data.endswith(b"\n"):
                if time.monotonic() > deadline:  # a reply that drips in does not extend it
                    raise TimeoutError
                self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
                chunk = self.socket.recv(65536)
                if not chunk:
                    raise ConnectionError
                data += chunk
                if len(data) > MAX_REPLY:
                    raise EnvError("protocol", f"protocol: {method} sent more than {MAX_REPLY} bytes")
            return json.loads(data.decode())
        except TimeoutError:
            raise EnvError("timeout", f"timeout: {method} took too long") from None
        except OSError:
            status = self.close()
            how = f"exit status {os.WEXITSTATUS(status)}"
            if os.WIFSIGNALED(status):
                how = signal.Signals(os.WTERMSIG(status)).name
            raise EnvError("crash", f"crash: the process ended in {method} with {how}") from None
        except (ValueError, RecursionError):
            raise EnvError("protocol", f"protocol: {method} sent no JSON") from None

    def close(self):
        pid, self.pid = self.pid, 0
        self.socket.close()
        return self.box.ask(pid) if pid and self.box.control.fileno() >= 0 else 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


# ---- is a program a sound environment? ----

SEEDS = (0, 1, 2)
JUNK = ("", "I would rather not say.", "\\boxed{}", "\\boxed{qwxz}")
CONSTANTS = tuple("0 1 2 3 4 5 10 42 100 A B C D a yes no true false up down left right start next done".split())


@dataclass
class Verdict:
    valid: bool
    reason: str = ""  # begins with a short stable word: syntax, import, class, reset, determinism, junk wins, ...
    solutions: tuple = ()  # what solution() offered, one list of actions for each of SEEDS


def boxed(action):
    return action if "\\boxed{" in action else "\\boxed{" + action + "}"


def play(env, seed, actions):
    """[(observation, info), (observation, reward, terminated, truncated, info), ...] until the program says stop."""
    replies = [env.reset(seed)]
    for action in actions:
        replies.append(env.step(action))
        if not abs(replies[-1][1]) <= 10:
            raise EnvError("rejected", f"reward: {replies[-1][1]} lies outside [-10, 10]")
        if replies[-1][2] or replies[-1][3]:
            break
    return replies


def won(replies):
    return len(replies) > 1 and replies[-1][2] and replies[-1][1] > 0


def judge(box, code, max_turns, junk, constants, timeout):
    with ExitStack() as stack:
        plays, envs, solutions = [], [], []
        for seed in SEEDS[:1] + SEEDS:
            env = stack.enter_context(SandboxedEnv(box, code, timeout, checked=bool(envs), budget=timeout))
            envs.append(env)
            nonsense = play(env, seed, itertools.islice(itertools.cycle(junk), max_turns))
            if not nonsense[0][0].strip():
                raise EnvError("rejected", "reset: the first observation is empty")
            mixed = play(env, seed, map(boxed, constants[:max_turns]))
            play(env, seed, [])
            solution = env.solution()
            solutions.append(solution)
            solved = play(env, seed, map(boxed, (solution or [])[:max_turns]))
            plays.append([reply[:-1] for reply in nonsense + mixed + solved] + [solution])
            if len(plays) == 2 and plays[0] != plays[1]:
                raise EnvError("rejected", "determinism: one seed played twice gave different replies")
            if won(nonsense):
                raise EnvError("rejected", f"junk wins: nonsense ends seed {seed} with reward {nonsense[-1][1]}")
            if solution is not None and not won(solved):
                raise EnvError("rejected", f"solution: playing it does not win on seed {seed}")
        for constant in map(boxed, constants):
            if all(won(play(env, seed, [constant] * max_turns)) for env, seed in zip(envs[1:], SEEDS)):
                raise EnvError("rejected", f"junk wins: always {constant} wins on every seed")
        return tuple(solutions[1:])


def validate(box, code, max_turns=25, junk=JUNK, constants=CONSTANTS, timeout=5.0):
    """Is it a sound environment? Costs four workers; at most 4 x timeout seconds inside them."""
    try:
        return Verdict(True, "", judge(box, code, max_turns, junk, constants, timeout))
    except EnvError as error:
        return Verdict(False, str(error))


def normalised(code):
    """The program without comments, spacing and class names: equal for two copies of one program."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return code
    layout = (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE, tokenize.ENDMARKER)
    words = [tokenize.tok_name[t.type] if t.type in layout else t.string for t in tokens
             if t.type not in (tokenize.COMMENT, tokenize.NL)]
    names = {name: f"class{i}" for i, name in enumerate(dict.fromkeys(
        after for word, after in zip(words, words[1:]) if word == "class"))}
    return " ".join(names.get(word, word) for word in words)


def main():
    import argparse
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", metavar="FILE.py")
    parser.add_argument("--check", action="store_true", help="print a verdict on each file instead of playing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unsafe-sandbox", action="store_true", help="go on where the seal does not hold")
    args = parser.parse_args()
    with Sandbox(strict=not args.unsafe_sandbox) as box:
        for name in args.files:
            with open(name, encoding="utf-8") as file:
                code = file.read()
            if args.check:
                verdict = validate(box, code)
                print(f"{name}: {'sound' if verdict.valid else verdict.reason}")
                continue
            try:
                with SandboxedEnv(box, code) as env:
                    print(env.reset(args.seed)[0])
                    over = False
                    while not over:
                        text, reward, terminated, truncated, _ = env.step(boxed(input("> ")))
                        over = terminated or truncated
                        print(f"{text}\n[reward {reward:g}{', the end' if over else ''}]")
            except (EnvError, EOFError, KeyboardInterrupt) as error:
                print(f"{type(error).__name__} {error}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--zygote"]:
        zygote(int(sys.argv[2]))
    else:
        main()
