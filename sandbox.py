"""Run programs that a model wrote without being hurt, and tell which of them are sound environments.

    python sandbox.py FILE.py [--seed N]     play an environment in the terminal
    python sandbox.py --check FILE.py ...    is each program a sound environment, and if not, why not
    with Sandbox() as box, SandboxedEnv(box, code) as env:
        observation, info = env.reset(seed=7)
        observation, reward, terminated, truncated, info = env.step("\\boxed{up}")

`Sandbox` starts a warm *zygote*; every episode is a fork of it, a *worker*, sealed before it reads its first
byte (machinery/worker.py). What is protected, by which layer, and the test in tests/test_sandbox.py that says so:

    files, network, processes, signals  all but 22 system calls answer EPERM   test_system_calls, test_hostile
    the trainer's memory and secrets    own process, empty environment         test_hostile
    time                                one deadline a call, then SIGKILL      test_hostile, test_load
    memory, disk                        resource limits; no root in a worker   test_hostile, test_limits
    the trainer's parser and log        all are checked: machinery/replies.py  test_replies
    nothing is left behind              workers die with zygote, it with us    test_orphans, test_leaks
    one seed, one episode               fixed hash seed, seeded, own process   test_same_seed

Not protected: whether rewards are *deserved* (`validate` catches the cheap lies); kernel bugs in the 22 calls;
the sum of what many workers use (512 MB each); control tokens in observations. It needs Linux on x86_64 or
aarch64 (not tried yet). `strict=False` makes do with processes, deadlines, checked replies (macOS: not tried).
"""
import argparse
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from machinery.replies import MAX_TEXT, EnvError, printable, well_formed
from machinery.textfiles import read_text

MAX_REPLY = 1 << 20  # bytes


class Sandbox(AbstractContextManager):
    """Owns the zygote; threads may share it. prelude: trusted source that every program finds executed."""

    def __init__(self, strict=True, prelude=""):
        cores = os.cpu_count() or 1
        sandboxes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # torchrun's processes here have one each
        self.lock, self.slots = threading.Lock(), threading.BoundedSemaphore(max(2 * cores // sandboxes, 1))
        _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # often 1024 unless asked for
        self.control, theirs = socket.socketpair()
        script = Path(__file__).resolve().parent / "machinery" / "worker.py"
        command = [sys.executable, "-s", "-S", "-B", "-P", "-W", "ignore", script, str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                env={"PYTHONHASHSEED": "0", "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")},
                cwd="/", start_new_session=True)
        try:
            self.control.settimeout(60)
            self.control.sendall(json.dumps([strict, prelude]).encode() + b"\n")
            missing = json.loads(self.control.makefile("rb").readline())
        except (OSError, ValueError):
            missing, strict = ["the zygote did not start"], True
        if missing and strict:
            self.close()
            raise RuntimeError(
                f"cannot seal a worker here ({'; '.join(missing)}). strict=False (--unsafe-sandbox) goes on "
                "with processes, deadlines and checked replies, but programs can reach files and network")

    def ask(self, number, *descriptors):
        """The zygote's answer. To 0 and a socket: a new worker's pid. To a pid: its end, and wait status."""
        with self.lock:
            answer = None
            try:
                socket.send_fds(self.control, [struct.pack("q", number)], descriptors)
                answer = struct.unpack("q", self.control.recv(8))[0]
            except (OSError, struct.error):
                raise RuntimeError("the sandbox is closed or its zygote died") from None
            finally:
                if answer is None:  # if interrupted halfway, the next question would get this one's answer
                    self.control.close()
        if answer < 0:
            raise OSError(-answer, f"cannot fork a worker: {os.strerror(-answer)}")
        return answer

    def close(self):
        self.control.close()
        self.process.wait(60)

    def __exit__(self, *exception):
        self.close()


class SandboxedEnv(AbstractContextManager):
    """One episode's environment. Every failure of the program is an EnvError, and ends the worker."""

    def __init__(self, box, code, timeout=5.0, checked=False, budget=float("inf")):
        """timeout: seconds a call; budget: seconds all calls together; checked: it was validated before."""
        self.box, self.timeout, self.budget = box, timeout, budget
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.pid = box.ask(0, theirs.fileno())
        self.call("load", code, checked)

    def reset(self, seed):
        return self.call("reset", seed)

    def step(self, action):
        return self.call("step", action[:MAX_TEXT])

    def solution(self):
        return self.call("solution")  # after a reset: the actions that win, as the program sees it, or None

    def call(self, method, *arguments):
        request = json.dumps([method, *arguments]).encode() + b"\n"
        try:
            with self.box.slots:  # few at a time, the clock starts inside: load must not look like slowness
                start = time.monotonic()
                data = self.exchange(request, start + min(self.timeout, self.budget))
                self.budget -= time.monotonic() - start
            return well_formed(method, json.loads(data.decode()))
        except EnvError as error:
            failure = error
        except TimeoutError:
            failure = EnvError("timeout", f"timeout: {method} did not return in time")
        except (ValueError, RecursionError):
            failure = EnvError("protocol", f"protocol: {method} sent no JSON")
        except OSError:
            failure = None
        code = os.waitstatus_to_exitcode(self.close())
        how = signal.strsignal(-code) if code < 0 else f"exit status {code}"
        raise failure or EnvError("crash", f"crash: {method} ended the process ({how})")

    def exchange(self, request, deadline):
        self.socket.settimeout(self.timeout)
        self.socket.sendall(request)
        data = bytearray()
        while not data.endswith(b"\n"):
            left = deadline - time.monotonic()  # to one deadline: a reply that drips in does not extend it
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            if not (chunk := self.socket.recv(1 << 16)):
                raise ConnectionError
            data += chunk
            if len(data) > MAX_REPLY:
                raise EnvError("protocol", f"protocol: a reply of more than {MAX_REPLY} bytes")
        return data

    def close(self):
        self.socket.close()
        pid, self.pid = self.pid, 0  # once: another worker may get the number
        box_is_open = self.box.control.fileno() >= 0
        return self.box.ask(pid) if pid and box_is_open else 0

    def __exit__(self, *exception):
        self.close()


class Game(SandboxedEnv):
    """One episode of a game. Most programs compare the player's words, open 3; one whose text opens the box itself, as
    those of the papers' pools do, is handed the whole \\boxed{open 3}.
    """

    def __init__(self, box, code, *arguments, **options):
        super().__init__(box, code, *arguments, **options)
        self.opens_box = "boxed" in code or "[7:-1]" in code   # \boxed{ has seven characters

    def step(self, action):
        content = re.fullmatch(r"\\boxed\{(.*)\}", action, re.S)
        return super().step(content[1] if content and not self.opens_box else action)


# --- is a program a sound environment? ---
SEEDS = (0, 1, 2)
JUNK = ("", "I would rather not say.", "\\boxed{}", "\\boxed{qwxz}")
CONSTANTS = "0 1 2 3 5 10 42 A B C D yes no true false up down left start next done".split()


@dataclass
class Verdict:
    valid: bool
    reason: str = ""  # of an unsound one; its first word is one of regret.STAGES
    solutions: tuple = ()  # of a sound one: what solution() offered, for each seed on which it offered something


def boxed(action):
    return action if "\\boxed{" in action else "\\boxed{" + action + "}"


def replies_to(env, seed, actions):
    """The replies of one episode, first the one to reset, until the program ends it or the actions do."""
    replies = [env.reset(seed)]
    for action in actions:
        reply = env.step(action)
        replies.append(reply)
        _, _, terminated, truncated, _ = reply
        if terminated or truncated:
            break
    return replies


def won(replies):
    """Did the last step of an episode end it with a reward? (The reply to reset has none.)"""
    if len(replies) == 1:
        return False
    _, reward, terminated, _, _ = replies[-1]
    return terminated and reward > 0


def without_info(replies):
    """What the Agent sees and is paid of an episode; info may differ from one to the next."""
    return [reply[:-1] for reply in replies]


def validate(box, code, max_turns=25, timeout=5.0):
    """Is it a sound environment, and quick? A worker for each seed, and a fourth that must repeat the first;
    each has `timeout` seconds in all for several episodes (reset() makes a new instance). Refused is what breaks,
    shows nothing at first, replies otherwise when repeated, is won by junk, or is not won by its own solution()."""
    junk = [JUNK[turn % len(JUNK)] for turn in range(max_turns)]
    commands = [boxed(constant) for constant in CONSTANTS]
    seeds = [*SEEDS, SEEDS[0]]
    try:
        with ExitStack() as stack:
            envs = []
            for i in range(len(seeds)):
                env = Game(box, code, timeout, checked=i > 0, budget=timeout)  # one check of the text will do
                envs.append(stack.enter_context(env))
            after_junk = [replies_to(env, seed, junk) for env, seed in zip(envs, seeds)]
            after_commands = [replies_to(env, seed, commands[:max_turns]) for env, seed in zip(envs, seeds)]
            solutions, after_solution = [], []
            for env, seed in zip(envs, seeds):
                env.reset(seed)
                solutions.append(env.solution())
            for env, seed, actions in zip(envs, seeds, solutions):
                moves = [boxed(action) for action in actions or []]
                after_solution.append(replies_to(env, seed, moves[:max_turns]))
            for episodes in (after_junk, after_commands, after_solution):
                if without_info(episodes[0]) != without_info(episodes[-1]):
                    return Verdict(False, "determinism: the same seed and actions, but other replies")
            for seed, junk_replies, actions, replies in zip(seeds, after_junk, solutions, after_solution):
                observation, _ = junk_replies[0]
                if not observation.strip():
                    return Verdict(False, "reset: the first observation is empty")
                if won(junk_replies):
                    return Verdict(False, f"junk wins: on seed {seed} with reward {junk_replies[-1][1]:g}")
                if actions is not None and not won(replies):
                    return Verdict(False, f"solution: it does not win on seed {seed}")
            for command in commands:
                again_and_again = [command] * max_turns
                if all(won(replies_to(env, seed, again_and_again)) for env, seed in zip(envs, SEEDS)):
                    return Verdict(False, f"junk wins: {command} and nothing else, on every seed")
    except EnvError as error:
        return Verdict(False, str(error))
    return Verdict(True, solutions=tuple(actions for actions in solutions[:len(SEEDS)] if actions))


def main():
    parser = argparse.ArgumentParser(description="Play a program as an environment, or check it.")
    parser.add_argument("files", nargs="+", metavar="FILE.py")
    parser.add_argument("--check", action="store_true", help="print a verdict on each file, do not play it")
    parser.add_argument("--seed", type=int, default=0, help="of the episode to play (default 0)")
    parser.add_argument("--unsafe-sandbox", action="store_true", help="go on where workers cannot be sealed")
    args = parser.parse_args()
    with Sandbox(strict=not args.unsafe_sandbox) as box:
        for name in args.files:
            code = read_text(name)
            if args.check:
                print(f"{name}: {validate(box, code).reason or 'sound'}")
                continue
            with Game(box, code, timeout=60) as env:
                observation, _ = env.reset(args.seed)
                print(printable(observation, also="\n"))
                over = False
                while not over:
                    observation, reward, terminated, truncated, _ = env.step(boxed(input("> ")))
                    print(printable(observation, also="\n"), reward, terminated, truncated)
                    over = terminated or truncated


if __name__ == "__main__":
    try:
        main()
    except (EnvError, RuntimeError, OSError, EOFError, KeyboardInterrupt) as error:
        sys.exit(f"{type(error).__name__}: {error}")
