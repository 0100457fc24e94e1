"""Run programs that a model wrote without letting them hurt us, and tell which of them are sound environments.

    python sandbox.py FILE.py [--seed N]     play an environment in the terminal
    python sandbox.py --check FILE.py ...    is each program a sound environment, and if not, why not

    with Sandbox() as box, SandboxedEnv(box, code) as env:
        observation, info = env.reset(seed=7)
        observation, reward, terminated, truncated, info = env.step("\\boxed{up}")

`Sandbox` starts a warm *zygote*; every episode is a fork of it, a *worker* that is sealed before it reads its first
byte (worker.py). What is protected, by which layer, and the test in tests/test_sandbox.py that holds us to it:

    files, network, processes, signals  all but 22 system calls answer EPERM (seccomp)      test_system_calls, test_hostile
    the trainer's memory and secrets    own process, empty environment, nothing inherited   test_hostile
    time                                one deadline a call, then SIGKILL by the zygote     test_hostile, test_load
    memory, core files, disk            resource limits; uid 65534 where we are root        test_hostile, test_limits
    the trainer's parser and log        replies are hostile data: bytes, JSON, exact types  test_replies
    nothing left behind                 the kernel kills workers when the zygote goes       test_orphans, test_leaks
    the same episode for one seed       fixed hash seed, random.seed, a process an episode  test_same_seed

Not protected: whether rewards are *deserved* (the program decides; `validate` catches the cheap lies); kernel bugs in
those 22 calls; the sum of what many workers use (512 MB each); control tokens such as <|im_end|> in observations:
tokenize those as plain text. It needs Linux on x86_64 or aarch64 (never run there yet), but neither root nor user
namespaces. Elsewhere `Sandbox()` refuses; `strict=False` is the choice to go on with what is left: processes,
deadlines and checked replies, but every file and the network within the program's reach.
"""
import argparse
import io
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import tokenize
from contextlib import ExitStack
from dataclasses import dataclass

MAX_TEXT = 100_000  # characters of a program, an action, an observation
MAX_REPLY = 1 << 20  # bytes
SHAPES = {  # the values that a method returns, with their types
    "reset": {"observation": [str], "info": [dict]},
    "step": {"observation": [str], "reward": [float, int], "terminated": [bool], "truncated": [bool], "info": [dict]},
}


class EnvError(Exception):
    """The program failed, not we. kind: rejected (before it ran), exception, timeout, crash, protocol (ill-formed).
    The first word of the message is stable enough to count by."""

    def __init__(self, kind, message):
        super().__init__(" ".join(plain(message[:1000]).split())[:300])
        self.kind = kind


def plain(text):
    return text.encode("utf-8", "replace").decode()  # a lone surrogate would break any log and tokenizer


class Sandbox:
    """Owns the zygote. Threads may share it; close() ends every process of it."""

    def __init__(self, strict=True, prelude=""):
        """prelude: source of ours, to be trusted, that every program finds executed in its namespace."""
        self.lock = threading.Lock()
        self.slots = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
        self.control, theirs = socket.socketpair()
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")
        command = [sys.executable, "-s", "-S", "-B", "-P", "-W", "ignore", script, str(theirs.fileno())]
        inherited = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
        with theirs:
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env={"PYTHONHASHSEED": "0"} | inherited, cwd="/",
                start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )
        try:
            self.control.settimeout(60)
            self.control.sendall(json.dumps([strict, prelude]).encode() + b"\n")
            missing = json.loads(self.control.makefile("rb").readline())
        except (OSError, ValueError):
            self.close()
            raise RuntimeError(f"the sandbox did not start: see the error above, or run {' '.join(command[:-1])} 0")
        if missing and strict:
            self.close()
            raise RuntimeError(
                f"cannot seal a worker here ({'; '.join(missing)}). strict=False (--unsafe-sandbox) would go on with"
                " processes, deadlines and checked replies, but leave files and network within the programs' reach"
            )

    def ask(self, number, *descriptors):
        """Of the zygote: 0 and a socket -> the pid of a new worker; a pid -> that worker ended, its wait status."""
        try:
            with self.lock:
                socket.send_fds(self.control, [struct.pack("q", number)], descriptors)
                answer = struct.unpack("q", self.control.recv(8))[0]
        except (OSError, struct.error):
            self.control.close()
            raise RuntimeError("the sandbox is closed or its zygote died") from None
        except BaseException:  # interrupted halfway: the next question would get this one's answer
            self.control.close()
            raise
        if answer < 0:
            raise OSError(-answer, f"cannot fork a worker: {os.strerror(-answer)}")
        return answer

    def close(self):
        self.control.close()
        self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


class SandboxedEnv:
    """One episode's environment. Every failure of the program is an EnvError, and ends the worker.

    timeout: seconds a call may take; budget: seconds all calls together; checked: this program was validated
    before, so the static pass is skipped."""

    def __init__(self, box, code, timeout=5.0, checked=False, budget=float("inf")):
        if len(code) > MAX_TEXT:
            raise EnvError("rejected", f"syntax: {len(code)} characters are too many")
        self.box, self.timeout, self.budget = box, timeout, budget
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.pid = box.ask(0, theirs.fileno())
        self.call("load", code, checked)

    def reset(self, seed):
        return tuple(self.call("reset", seed))

    def step(self, action):
        return tuple(self.call("step", action[:MAX_TEXT]))

    def solution(self):
        """The program's own winning actions after a reset, or None if it offers none."""
        return self.call("solution")

    def call(self, method, *arguments):
        request = json.dumps([method, *arguments]).encode() + b"\n"
        try:
            with self.box.slots:  # few at a time, and the clock starts inside: load must not look like slowness
                start = time.monotonic()
                data = self.exchange(request, start + min(self.timeout, self.budget))
                self.budget -= time.monotonic() - start
            return well_formed(method, json.loads(data.decode()))
        except EnvError:
            self.close()
            raise
        except TimeoutError:
            self.close()
            raise EnvError("timeout", f"timeout: {method} took too long") from None
        except OSError:
            status = self.close()
            code = os.waitstatus_to_exitcode(status)
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            raise EnvError("crash", f"crash: {method} ended the process with {how}") from None
        except (ValueError, RecursionError):
            self.close()
            raise EnvError("protocol", f"protocol: {method} sent no JSON") from None

    def exchange(self, request, deadline):
        self.socket.settimeout(self.timeout)
        self.socket.sendall(request)
        data = bytearray()
        while not data.endswith(b"\n"):
            left = deadline - time.monotonic()  # of one deadline: a reply that drips in does not extend it
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            chunk = self.socket.recv(1 << 16)
            if not chunk:
                raise ConnectionError
            data += chunk
            if len(data) > MAX_REPLY:
                raise EnvError("protocol", f"protocol: a reply of more than {MAX_REPLY} bytes")
        return data

    def close(self):
        self.socket.close()
        pid, self.pid = self.pid, 0
        return self.box.ask(pid) if pid and self.box.control.fileno() >= 0 else 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def well_formed(method, reply):
    """The values in a worker's reply, or EnvError. Nothing that a worker sends is believed."""
    kind, result = next(iter(reply.items())) if type(reply) is dict and len(reply) == 1 else ("", None)
    if kind in ("rejected", "exception"):
        raise EnvError(kind, str(result))
    if kind != "ok":
        raise EnvError("protocol", f"protocol: {method} sent something else than a reply")
    if method == "load":
        return None
    if method == "solution":
        actions = [result] if type(result) in (str, int, float) else result or []
        if type(actions) is not list or not all(type(action) in (str, int, float) for action in actions):
            raise EnvError("protocol", "solution: not a list of strings")
        return None if result is None else [plain(str(action)) for action in actions]
    values = [result, {}] if method == "reset" and type(result) is str else result
    shape = SHAPES[method]
    if type(values) is not list or len(values) != len(shape):
        count = len(values) if type(values) is list else 1
        raise EnvError("protocol", f"{method}: {count} value(s) returned, not {', '.join(shape)}")
    for (name, types), value in zip(shape.items(), values):
        if type(value) not in types:
            raise EnvError("protocol", f"{method}: {name} is {type(value).__name__}, not {types[0].__name__}")
    if len(values[0]) > MAX_TEXT:
        raise EnvError("protocol", f"{method}: an observation of {len(values[0])} characters")
    if method == "step" and not abs(values[1]) < 1e9:  # NaN neither
        raise EnvError("protocol", "step: the reward is not finite")
    values[0] = plain(values[0])
    values[-1] = values[-1] and json.loads(plain(json.dumps(values[-1], ensure_ascii=False)))
    if method == "step":
        values[1] = float(values[1])
    return values


# ---- is a program a sound environment? ----

SEEDS = (0, 1, 2)
JUNK = ("", "I would rather not say.", "\\boxed{}", "\\boxed{qwxz}")
CONSTANTS = "0 1 2 3 4 5 10 42 100 A B C D yes no true false up down left right next done".split()


@dataclass
class Verdict:
    valid: bool
    reason: str = ""  # starts with syntax, import, class, load, reset, step, reward, determinism, junk wins, solution,
    # timeout, crash or protocol, then a colon
    solutions: tuple = ()  # what solution() offered on each of SEEDS: a list of actions or None


def boxed(action):
    return action if "\\boxed{" in action else "\\boxed{" + action + "}"


def play(env, seed, actions):
    """The replies of one episode, the one to reset() first: until the program ends it or the actions do."""
    replies = [env.reset(seed)]
    for action in actions:
        replies.append(env.step(action))
        _, reward, terminated, truncated, _ = replies[-1]
        if abs(reward) > 10:
            raise EnvError("rejected", f"reward: {reward:g} is outside [-10, 10]")
        if terminated or truncated:
            break
    return replies


def won(replies):
    return len(replies) > 1 and replies[-1][2] and replies[-1][1] > 0


def judge(box, code, max_turns, junk, constants, timeout):
    """What solution() offers on each seed, or EnvError. Three workers, and a fourth that must repeat the first; in
    each a few episodes one after the other, since reset() makes a new instance."""
    with ExitStack() as stack:
        envs = []
        for seed in SEEDS + SEEDS[:1]:
            env = SandboxedEnv(box, code, timeout, checked=bool(envs), budget=timeout)
            envs.append((stack.enter_context(env), seed))
        nonsense = [play(env, seed, itertools.islice(itertools.cycle(junk), max_turns)) for env, seed in envs]
        mixed = [play(env, seed, map(boxed, constants[:max_turns])) for env, seed in envs]
        solutions = [env.reset(seed) and env.solution() for env, seed in envs]
        solved = [play(env, seed, map(boxed, (actions or [])[:max_turns])) for (env, seed), actions in zip(envs, solutions)]
        for first, *_, again in (nonsense, mixed, solved):
            if [reply[:-1] for reply in first] != [reply[:-1] for reply in again] or solutions[0] != solutions[-1]:
                raise EnvError("rejected", "determinism: the same seed and actions, but other replies")
        for (_, seed), replies in zip(envs, nonsense):
            if not replies[0][0].strip():
                raise EnvError("rejected", "reset: the first observation is empty")
            if won(replies):
                raise EnvError("rejected", f"junk wins: nonsense ends seed {seed} with reward {replies[-1][1]:g}")
        for constant in map(boxed, constants):
            if all(won(play(env, seed, [constant] * max_turns)) for env, seed in envs[:-1]):
                raise EnvError("rejected", f"junk wins: {constant} and nothing else wins on every seed")
        for (_, seed), actions, replies in zip(envs, solutions, solved):
            if actions is not None and not won(replies):
                raise EnvError("rejected", f"solution: it does not win on seed {seed}")
        return tuple(solutions[:-1])


def validate(box, code, max_turns=25, junk=JUNK, constants=CONSTANTS, timeout=5.0):
    """Is it a sound environment? At most 4 x timeout seconds in the sandbox."""
    try:
        return Verdict(True, "", judge(box, code, max_turns, junk, constants, timeout))
    except EnvError as error:
        return Verdict(False, str(error))


def normalised(code):
    """The program without comments, spacing and names of classes: equal for two copies of one program."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return code
    layout = (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE, tokenize.ENDMARKER)
    words = [tokenize.tok_name[token.type] if token.type in layout else token.string
             for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]
    classes = dict.fromkeys(name for before, name in zip(words, words[1:]) if before == "class")
    names = {name: f"class{number}" for number, name in enumerate(classes)}
    return " ".join(names.get(word, word) for word in words)


def main():
    parser = argparse.ArgumentParser(description="Play a program as an environment, or check whether it is sound.")
    parser.add_argument("files", nargs="+", metavar="FILE.py")
    parser.add_argument("--check", action="store_true", help="print a verdict on each file instead of playing it")
    parser.add_argument("--seed", type=int, default=0, help="of the episode to play (default 0)")
    parser.add_argument("--unsafe-sandbox", action="store_true", help="go on where workers cannot be sealed")
    args = parser.parse_args()
    with Sandbox(strict=not args.unsafe_sandbox) as box:
        for name in args.files:
            with open(name, encoding="utf-8", errors="surrogatepass") as file:
                code = file.read()
            if args.check:
                verdict = validate(box, code)
                print(f"{name}: {'sound' if verdict.valid else verdict.reason}")
            else:
                play_by_hand(box, code, args.seed)


def play_by_hand(box, code, seed):
    try:
        with SandboxedEnv(box, code, timeout=60) as env:
            print(env.reset(seed)[0])
            over = False
            while not over:
                observation, reward, terminated, truncated, _ = env.step(boxed(input("> ")))
                over = terminated or truncated
                print(f"{observation}\n[reward {reward:g}{', the end' if over else ''}]")
    except EnvError as error:
        print(f"The program failed: {error}")


if __name__ == "__main__":
    main()
