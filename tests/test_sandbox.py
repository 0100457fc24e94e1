"""What sandbox.py promises, held to it. The hostile programs themselves are in tests/hostile/."""
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

import agent  # noqa: E402
import designer  # noqa: E402
import sandbox  # noqa: E402
from machinery import files, worker  # noqa: E402
from machinery.source import normalised  # noqa: E402
from sandbox import EnvError, Sandbox, SandboxedEnv, validate  # noqa: E402

HOSTILE = TOP / "tests" / "hostile"
EXPECTED = json.loads((HOSTILE / "expectations.json").read_text())

HONEST = '''
import random
import re


class GuessEnv:
    """A number between 1 and 1000, with hints: more or less."""

    def reset(self, seed=None):
        self.number, self.turn = random.Random(seed).randint(1, 1000), 0
        return "Guess my number from 1 to 1000 in \\\\boxed{}", {}

    def step(self, action):
        self.turn += 1
        found = re.search(r"boxed\\{(\\d+)\\}", action)
        if not found:
            return "Answer with \\\\boxed{number}", 0.0, False, self.turn == 12, {}
        guess = int(found.group(1))
        if guess == self.number:
            return "Right", 1.0, True, False, {"turn": self.turn}
        return ("more" if guess < self.number else "less"), 0.0, False, self.turn == 12, {"turn": self.turn}

    def solution(self):
        return ["1", str(self.number)]
'''


def program(reset='"start", {}', step='"next", 0.0, False, False, {}', head="", more="pass", before="pass"):
    """A small environment with these expressions in its two methods."""
    return f"""{head}
class SmallEnv:
    {more}

    def reset(self, seed=None):
        return {reset}

    def step(self, action):
        {before}
        return {step}
"""


@pytest.fixture(scope="module")
def box():
    with Sandbox() as it:
        yield it


def episode(box, code, seed=7, actions=("\\boxed{1}",), **options):
    with SandboxedEnv(box, code, **options) as env:
        return [env.reset(seed), *(env.step(action) for action in actions)]


def fails(box, code, *kinds, **options):
    with pytest.raises(EnvError) as caught:
        episode(box, code, **options)
    assert caught.value.kind in kinds, str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) <= 300
    return str(caught.value)


def processes(session):
    """Pids of the living processes of a session (the zygote's, which is its own)."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                state, *fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == session and state != "Z":
                found.append(int(entry))
    return found


# --- what programs cannot do ---

@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_hostile(box, name):
    code, expected = (HOSTILE / f"{name}.py").read_text(), EXPECTED[name]
    seen, start, rss = [], time.monotonic(), memory()
    try:
        with SandboxedEnv(box, code, timeout=1.0 if "timeout" in expected.get("kinds", []) else 10.0) as env:
            seen.append(env.reset(7))
            seen.append(env.step("\\boxed{1}"))
            seen.append(env.solution())
            closing = time.monotonic()
        assert time.monotonic() - closing < 1
        assert expected["outcome"] in ("plays", "either")
    except EnvError as error:
        assert expected["outcome"] in ("fails", "either"), str(error)
        assert error.kind in expected["kinds"], str(error)
    assert "ESCAPED" not in str(seen) and "FORGED" not in str(seen), seen
    assert time.monotonic() - start < 10
    assert memory() - rss < 50 << 20
    for observation in [reply[0] for reply in seen if reply]:
        assert type(observation) is str and len(observation) <= sandbox.MAX_TEXT
        observation.encode()
    json.dumps(seen, ensure_ascii=False).encode()  # info too can go to a log
    assert episode(box, program())[0][0] == "start"  # and the next episode is well
    assert processes(box.process.pid) == [box.process.pid]


def memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


WALK = '''
load = __import__


class WalkEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        c = load("ctypes")
        libc, answers = c.CDLL(None, use_errno=True), []
        for number in eval(action):
            c.set_errno(0)
            result = libc.syscall(c.c_long(number), *[c.c_long(-1)] * 6)
            if (result, c.get_errno()) != (-1, 1):
                answers.append((number, result, c.get_errno()))
        return repr(answers), 0.0, False, False, {}
'''


def test_system_calls(box):
    """Of 0..470, and of the x32 doubles, all but the list answer EPERM. 335 and 336 (uretprobe, uprobe) pass every
    filter by the kernel's design, and only end the caller."""
    allowed = {row[list(worker.ARCHITECTURES).index(os.uname().machine)] for row in worker.SYSCALLS.values()}
    assert len(allowed) == 22
    numbers = [n for n in range(471) if n not in allowed | {335, 336}]
    numbers += [0x40000000 + n for n in range(548)]
    assert episode(box, WALK, actions=[repr(numbers)])[1][0] == "[]"
    for number in (335, 336):
        try:
            assert f"({number}, -1, " in episode(box, WALK, actions=[f"[{number}]"])[1][0]
        except EnvError as error:
            assert error.kind == "crash"


def test_limits(box):
    """Read from outside what a worker may still do."""
    with SandboxedEnv(box, program()) as env:
        status = Path(f"/proc/{env.pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        limits = Path(f"/proc/{env.pid}/limits").read_text()
        assert fields["Seccomp"] == "2" and fields["NoNewPrivs"] == "1"
        assert fields["CapEff"].strip("0") == ""
        assert set(fields["Uid"].split()) == {"65534" if os.getuid() == 0 else str(os.getuid())}
        assert Path(f"/proc/{env.pid}/oom_score_adj").read_text().strip() == "1000"
        for name, value in {"core file size": 0, "file size": 0, "processes": 0, "open files": 64, "cpu time": 60,
                            "address space": 512 << 20}.items():
            row = next(row for row in limits.splitlines() if row.lower().startswith(f"max {name}"))
            assert row.split()[-3:-1] == [str(value)] * 2 or row.split()[-2:] == [str(value)] * 2, row
        assert Path(f"/proc/{env.pid}/environ").read_bytes() == Path(f"/proc/{box.process.pid}/environ").read_bytes()
        names = [entry.split(b"=")[0] for entry in Path(f"/proc/{env.pid}/environ").read_bytes().split(b"\0")]
        assert set(names) <= {b"PYTHONHASHSEED", b"LD_LIBRARY_PATH", b""}
        links = sorted(os.readlink(f"/proc/{env.pid}/fd/{n}").split(":")[0] for n in os.listdir(f"/proc/{env.pid}/fd"))
        assert links == ["/dev/null"] * 3 + ["socket"]


RAW = '''
write = __import__("os").write


class RawEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        data = eval(action) + b"\\n"
        while data:
            data = data[write(3, data):]
        while True:
            pass
'''
BAD_REPLIES = [
    b"", b"null", b"1", b"[]", b'"ok"', b"{}", b'{"ok": null}', b'{"ok": []}', b'{"ok": 1, "error": 2}',
    b'{"timeout": "forged"}', b'{"ok": "abcde"}', b'{"ok": {"0": "a", "1": 1.0, "2": true, "3": false, "4": {}}}',
    b'{"ok": ["a", 1.0, true, false]}', b'{"ok": ["a", 1.0, true, false, {}, {}]}',
    b'{"ok": ["a", 1e999, true, false, {}]}', b'{"ok": ["a", NaN, true, false, {}]}',
    b'{"ok": ["a", -Infinity, true, false, {}]}', b'{"ok": ["a", 1' + b"0" * 400 + b', true, false, {}]}',
    b'{"ok": ["a", true, true, false, {}]}', b'{"ok": ["a", "1.0", true, false, {}]}',
    b'{"ok": ["a", null, true, false, {}]}', b'{"ok": ["a", 1.0, 1, 0, {}]}', b'{"ok": ["a", 11, true, false, {}]}',
    b'{"ok": ["a", 1.0, null, false, {}]}', b'{"ok": ["a", 1.0, true, false, []]}',
    b'{"ok": ["a", 1.0, true, false, null]}', b'{"ok": [1, 1.0, true, false, {}]}',
    b'{"ok": [["a"], 1.0, true, false, {}]}', b'{"ok"', b"\xff\xfe\xfd", b"\x00", b"1" * 5000,
    '{"ok": ["a", 1.0, true, false, {}]}'.encode("utf-16"), b'\xef\xbb\xbf{"ok": ["a", 1.0, true, false, {}]}',
    b'{"ok": ["a", 1.0, true, false, {}]}\n{"ok": 1}',
]
LONG_REPLIES = [
    'b"[" * 1000000', """b'{"a":' * 150000""", 'b"1" * 1048000', 'b"0." + b"1" * 1048000', 'b" " * 1100000',
    """b'{"ok": ["' + b"a" * 100001 + b'", 1.0, true, false, {}]}'""", """b'{"ok": [' + b"[],"  * 300000 + b'1]}'""",
    """b'{"ok": ["a", 1.0, true, false, ' + b'{"a":' * 60000 + b'1' + b'}' * 60000 + b']}'""",
]


@pytest.mark.parametrize("reply", [*map(repr, BAD_REPLIES), *LONG_REPLIES], ids=lambda reply: reply[:40])
def test_replies(box, reply):
    """A worker that writes what it likes: always our own error, soon, and nothing else."""
    start, rss = time.monotonic(), memory()
    fails(box, RAW, "protocol", actions=[reply], timeout=2.0)
    assert time.monotonic() - start < 1.5 and memory() - rss < 100 << 20


def test_replies_that_are_odd_but_well_formed(box):
    reply = b'{"ok": ["\\ud800 \\u0000", 1, true, false, {"\\udfff": [NaN, "\\ud800"]}]}'
    observation, reward, *flags, info = episode(box, RAW, actions=[repr(reply)])[1]
    assert (observation, reward, flags) == ("? \0", 1.0, [True, False]) and type(reward) is float
    assert json.dumps([observation, info], ensure_ascii=False).encode()
    text = fails(box, RAW, "exception", actions=[repr(b'{"exception": "\\ud800\\n\\u001b[2J' + b"x" * 9000 + b'"}')])
    assert text.startswith("? ?[2Jxx")


def test_load(box):
    """Honest steps of 0.1 s on all cores, many at once: none may look slow. (The clock starts in the slot.)"""
    busy = program(before="sum(i * i for i in range(1_000_000))")
    with ThreadPoolExecutor(24) as pool:
        list(pool.map(lambda seed: episode(box, busy, seed, timeout=1.5), range(24)))


def test_orphans():
    """The trainer is killed while 20 workers loop: 1 s later nothing is left."""
    script = f'''
import sys
import threading
sys.path.insert(0, {str(TOP)!r})
from sandbox import Sandbox, SandboxedEnv
box = Sandbox()
box.slots = threading.Semaphore(20)
loop = """
class LoopEnv:
    def reset(self, seed=None):
        while True: pass
    def step(self, action): pass
"""
envs = [SandboxedEnv(box, loop, timeout=60) for _ in range(20)]
for env in envs:
    threading.Thread(target=env.reset, args=(1,)).start()
print(box.process.pid, flush=True)
'''
    trainer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    zygote = int(trainer.stdout.readline())
    time.sleep(0.3)
    assert len(processes(zygote)) == 21
    trainer.kill()
    trainer.wait()
    deadline = time.monotonic() + 1
    while processes(zygote) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes(zygote) == []


def test_death_of_the_zygote():
    """Not the program's fault, so no EnvError; and no worker survives."""
    with Sandbox() as box:
        env = SandboxedEnv(box, program())
        os.kill(box.process.pid, signal.SIGKILL)
        box.process.wait()
        with pytest.raises(RuntimeError, match="zygote"):
            env.reset(1)
        with pytest.raises(RuntimeError, match="zygote"):
            SandboxedEnv(box, program())
        time.sleep(0.2)
        assert processes(box.process.pid) == []


def test_leaks(box):
    """Every outcome, many times: no descriptor, process or memory more. (tests/bench.py leaks: 10,000 episodes.)"""
    def all_outcomes():
        for seed in range(30):
            episode(box, HONEST, seed)
            fails(box, "def", "rejected")
            fails(box, program("1 / 0"), "exception")
            fails(box, program(before="__import__('os').abort()"), "crash")
            fails(box, program(step="None"), "protocol")

    all_outcomes()
    before = len(os.listdir("/proc/self/fd")), memory()
    all_outcomes()
    assert len(os.listdir("/proc/self/fd")) == before[0]
    assert memory() - before[1] < 4 << 20
    assert processes(box.process.pid) == [box.process.pid]


def test_same_seed(box):
    """Sets of strings, the global random, class attributes, other episodes: none makes a difference."""
    code = program(head="import random\nDRAWN = random.random()", more="count = 0",
                   reset="f'{DRAWN} {random.random()} {set(map(chr, range(65, 91)))} {self.count}', {}",
                   before="SmallEnv.count += 1; random.shuffle(letters := list('abcdefgh'))",
                   step="f'{letters} {self.count}', 0.0, False, False, {}")
    first = episode(box, code, 7, ["a"] * 3)
    assert episode(box, code, 8, ["a"] * 3) != first
    assert episode(box, code, 7, ["a"] * 3) == first
    with Sandbox() as other:
        assert episode(other, code, 7, ["a"] * 3) == first
    with SandboxedEnv(box, HONEST) as env:
        assert env.reset(3) == env.reset(3)


def test_threads(box):
    """Interleaved episodes keep apart."""
    def play(seed):
        with SandboxedEnv(box, HONEST) as env:
            env.reset(seed)
            return [env.step(f"\\boxed{{{n}}}")[0] for n in (500, 250, 750)]

    alone = [play(seed) for seed in range(16)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(play, range(16))) == alone


def test_interrupted_conversation():
    """A Ctrl-C in the middle of a question to the zygote must not give the next question its answer."""
    with Sandbox() as box:
        real, box.control = box.control, None

        class Interrupted:
            def __getattr__(self, name):
                if name == "recv":
                    raise KeyboardInterrupt
                return getattr(real, name)

        box.control = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            SandboxedEnv(box, program())
        box.control = real
        with pytest.raises(RuntimeError):
            SandboxedEnv(box, program())


def test_control_tokens(box, tmp_path):
    """Observations full of control tokens go through the real tokenizer path; only the template's own come out."""
    tiny_model = pytest.importorskip("tiny_model")
    policy = tiny_model.policy(tiny_model.build(tmp_path / "model"))
    seen = [reply[0] for reply in episode(box, (HOSTILE / "write_to_reader.py").read_text())]
    special = set(policy.tokenizer.all_special_ids)

    def control(ids):
        return [i for i in ids if i in special]

    for text in [*seen, "".join(policy.controls) * 3]:
        for ids in (policy.prompt_ids, policy.turn_ids):
            assert control(ids([{"role": "user", "content": text}])) == control(ids([{"role": "user", "content": "x"}]))


# --- where the seal does not hold ---

CONTAINED = '''
"""Runs a command under a filter that answers EPERM to the system calls named by number."""
import ctypes
import os
import struct
import sys
numbers = [int(n) for n in sys.argv[1].split(",")]
code = [(0x20, 0, 0, 0)] + [(0x15, len(numbers) - i, 0, n) for i, n in enumerate(numbers)]
code += [(6, 0, 0, 0x7FFF0000), (6, 0, 0, 0x00050001)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
header = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(program)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(header)), 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
'''
TRY = f'''
import sys
sys.path.insert(0, {str(TOP)!r})
from sandbox import *
code = {HONEST!r}
with Sandbox(strict=sys.argv[1] == "strict") as box:
    print(validate(box, code), SandboxedEnv(box, code).reset(1)[0])
'''
UNSHARE = "272,308,165,166,155,321,101,425,426,427"  # unshare, setns, mounts, pivot_root, bpf, ptrace, io_uring


def contained(refused, strict):
    command = [sys.executable, "-c", CONTAINED, refused, sys.executable, "-c", TRY, strict]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="system calls named by their x86_64 numbers")


@x86
def test_container_without_namespaces():
    """What Docker's default profile refuses, we do not need."""
    result = contained(UNSHARE, "strict")
    assert "Verdict(valid=True" in result.stdout and "Guess my number" in result.stdout, result.stderr


@x86
def test_strict_refuses():
    """prctl refused: no seal. The message says what is missing and what strict=False would mean."""
    result = contained("157", "strict")
    assert result.returncode == 1 and result.stdout == ""
    assert "RuntimeError: cannot seal a worker here (prctl" in result.stderr and "strict=False" in result.stderr
    result = contained("157", "loose")
    assert "Verdict(valid=True" in result.stdout and "Guess my number" in result.stdout, result.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="is about root")
def test_another_user():
    """As an ordinary user it is the same sandbox. (Needs an interpreter and a checkout that others may read.)"""
    def run(*command):
        return subprocess.run([sys.executable, *command], capture_output=True, text=True, user=65534, group=65534,
                              extra_groups=[], cwd="/", timeout=60)
    try:
        readable = run("-c", f"open({str(TOP / 'worker.py')!r})").returncode == 0
    except OSError:
        readable = False
    if not readable:
        pytest.skip("nobody may read the interpreter or the checkout")
    result = run("-c", TRY, "strict")
    assert "Verdict(valid=True" in result.stdout, result.stderr


# --- kindness ---

@pytest.mark.parametrize("code", [
    program(reset='"start"'),
    program(head="from __future__ import annotations\nimport gym\nimport gymnasium as gymnasium"),
    program("str(deque([1])) + str(list(combinations('abc', 2))), {}", "str(math.gcd(4, 6)), 0, False, False, {}"),
    program(head="Grid = List[Dict[str, Optional[int]]]"),
    "class PlainEnv(Env):\n def reset(self, seed=None):\n  super().reset(seed=seed)\n  return 'start', {}\n"
    " def step(self, action: Undefined) -> (observation, reward): return 'next', 0.5, False, False, {}\n",
    "import gym\nclass GymEnv(gym.Env):\n def reset(self, seed=None): return 'start', {}\n"
    " def step(self, action): return 'next', 0, False, False, {}\n",
    "class Game:\n def reset(self, seed=None): return 'start'\n"
    " def step(self, action): return ['next', 0, False, False, {}]\n",
    program() + "\nenv = SmallEnv()\nprint(env.reset())\nwhile True:\n    env.step(input('action? '))\n",
    program() + "\nif __name__ == '__main__':\n    1 / 0\n",
    "@dataclass\nclass CardEnv:\n hand: list[int] = field(default_factory=list)\n"
    " def reset(self, seed=None): return 'start', {}\n def step(self, action): return 'next', 0, False, False, {}\n",
    "class BaseEnv:\n def reset(self, seed=None): raise NotImplementedError\n def step(self, action): pass\n"
    "class RealEnv(BaseEnv):\n def reset(self, seed=None): return 'start', {}\n"
    " def step(self, action): return 'next', 0, False, False, {}\nclass Helper(RealEnv):\n reset = None\n",
    program(reset="'%s' % datetime.datetime.strptime('2024', '%Y'), {}", head="import datetime"),
    program(step='"next", 0.0, False, False, {"a": {1, 2}, 3: object()}'),
    program(reset='"\\N{EM DASH}".encode("latin-1", "replace").decode("cp1252") + "x".encode("utf-16").hex(), {}'),
])
def test_kindness(box, code):
    assert validate(box, code).reason == ""


STANDARD = {   # what it imports: what it does in reset
    "import sys": "sys.stdout.write('x') and sys.setrecursionlimit(5000) or sys.maxsize",
    "import sys\nprint(sys.version_info >= (3, 11))": "sys.getsizeof('') > 0",
    "import logging\nlogging.basicConfig(level=logging.DEBUG, format='%(asctime)s %(message)s')":
        "logging.getLogger(__name__).warning('a %s', 1) or logging.error('b', exc_info=True)",
    "import secrets": "len(secrets.token_hex(4)) + (secrets.choice([1, 2]) < 3)",
    "from graphlib import CycleError, TopologicalSorter": "list(TopologicalSorter({'a': ['b']}).static_order())",
    "import weakref, contextvars":
        "[weakref.finalize(self, print).alive, contextvars.ContextVar('x', default=1).get()]",
    "import codecs": "[codecs.encode('ab', 'rot13'), codecs.encode(b'ab', 'hex'), 'ü'.encode('punycode'), "
                     "'é'.encode('cp437'), codecs.decode(r'\\n', 'unicode_escape'), 'x'.encode('utf-8-sig')]",
    "import csv, io, html, hmac":
        "[*csv.reader(io.StringIO('a,b')), html.unescape('&lt;'), hmac.digest(b'k', b'm', 'sha1')]",
    "import shlex, colorsys, keyword, inspect": "[shlex.split('a \\'b c\\''), colorsys.rgb_to_hsv(1, 0, 0), "
                                                "keyword.iskeyword('if'), str(inspect.signature(self.step))]",
    "import pickle, copyreg, ast, reprlib": "[pickle.loads(pickle.dumps([1])), ast.literal_eval('[1]')]",
    "import argparse": "argparse.ArgumentParser('x').format_help()",
    "import builtins, collections.abc, html.parser": "isinstance([], collections.abc.Sequence)",
    "from gym.core import Env as Base": "issubclass(Base, object)",
    "import gymnasium.spaces": "gymnasium.spaces.MultiDiscrete([2, 3]).arguments",
    "from gymnasium import spaces":
        "[spaces.Discrete(4).n, spaces.Text(max_length=9).max_length, spaces.Box(0, 1, (2,)).arguments]",
    "from gymnasium.spaces import Dict as D, Discrete, Space": "isinstance(D({'a': Discrete(2)}), Space)",
    "from gymnasium.core import ActType, Env, ObsType\nclass Base(Env[str, str]): reset = None": "Base.__name__",
    "from gymnasium.envs.registration import register\nregister(id='x-v0', entry_point='x:E')": "register.__name__",
}


@pytest.mark.parametrize("imports", STANDARD)
def test_the_standard_library_works_sealed(box, imports):
    assert validate(box, program(reset=f"str({STANDARD[imports]}), {{}}", head=imports)).reason == ""


@pytest.mark.parametrize("end", ["sys.exit()", "sys.exit('bye')", "raise SystemExit", "exit_code = sys.exit(1)",
                                 "if __name__ == '__main__':\n    sys.exit(2)"])
def test_an_exit_under_a_good_class_is_example_code(box, end):
    assert validate(box, f"import sys\n{program()}\n{end}\n").reason == ""


@pytest.mark.parametrize("escape", [
    "sys.modules['os'].open('/etc/passwd', 0)", "sys.modules['os'].fork()",
    "sys.modules['socket'].socket()", "logging.FileHandler('/tmp/x')", "sys.modules['shutil'].rmtree('/tmp')",
    "sys.modules['os'].kill(1, 9)", "io.FileIO('/etc/hostname')"])
def test_what_the_modules_lead_to_is_sealed(box, escape):
    fails(box, program(head="import sys, logging, io", before=escape), "exception")


@pytest.mark.parametrize("module", "os pathlib threading asyncio subprocess socket zoneinfo numpy gymnast".split())
def test_other_modules_are_named(box, module):
    reason = validate(box, program(head=f"import {module}")).reason
    assert reason == f"import: {module} is not among the allowed modules"


def test_prelude():
    """Trusted source is there before the program, and its classes are not taken for the program's own."""
    prelude = "import math\n\n\nclass ToolEnv:\n    def reset(self, seed=None):\n        return self.greet(), {}\n" \
              "    def step(self, action):\n        return 'next', 0.0, False, False, {}\n"
    with Sandbox(prelude=prelude) as box:
        assert episode(box, "class MyEnv(ToolEnv):\n def greet(self): return f'{math.pi:.2f}'")[0][0] == "3.14"
        assert "class:" in fails(box, "x = ToolEnv", "rejected")
    with pytest.raises(RuntimeError):
        Sandbox(prelude="1 / 0")


# --- validation ---

SLOW = "__import__('time').sleep(0.4)"
UNSOUND = {
    "syntax: expected": "class BrokenEnv\n    pass",
    "syntax: 'return' outside": "return 1",
    "syntax: 300": "#" * 300_000,
    "syntax: UnicodeEncodeError": "x = '\ud800'",
    "syntax: Exceeds the limit (4300 digits)": "x = " + "9" * 5000,
    "syntax: too many nested parentheses": "x = " + "(" * 900 + "0" + ")" * 900,
    "syntax: ": "x = " + "-" * 50_000 + "1",
    "import: numpy": program(head="import numpy as np"),
    "import: os.path": program(head="import os.path"),
    "import: .": program(head="from . import other"),
    "class: ": "def reset(seed=None):\n    return 'start', {}",
    "load: ZeroDivisionError": "1 / 0\n" + program(),
    "load: SystemExit": "raise SystemExit\n" + program(),
    "reset: TypeError": "class NeedyEnv:\n def __init__(self, size): pass\n reset = step = None",
    "reset: KeyError: 'x' (line ": program("{}['x']"),
    "reset: observation is of type int": program("5, {}"),
    "reset: the first observation is empty": program("' ', {}"),
    "reset: does not return": program("None"),
    "step: does not return": program(step="'next', 0.0, False, {}"),
    "step: ValueError": program(step="str(int(action)), 0.0, False, False, {}"),
    "step: reward is of type bool": program(step="'next', True, False, False, {}"),
    "step: terminated is of type int": program(step="'next', 1.0, 1, False, {}"),
    "step: IndexError": program(more="left = 20", before="self.left -= 1; [0][-1 if self.left else 9]"),
    "reward: nan": program(step="'next', float('nan'), False, False, {}"),
    "reward: 100": program(step="'next', 100, False, False, {}"),
    "determinism: ": program("str(uuid.uuid4()), {}"),
    "determinism:": program(step="str(time.time_ns()), 0.0, False, False, {}"),
    "junk wins: on seed 0": program(step="'well done', 0.5, True, False, {}"),
    "junk wins: on seed 2": program("str(seed), {}", "'next', float(self.seed == 2), self.seed == 2, False, {}",
                                    more="seed = property(lambda self: self.s)").replace(
                                        "return str(seed), {}", "self.s = seed; return str(seed), {}"),
    "junk wins: \\boxed{C}": program(step="'next', float('C' in action), 'C' in action, False, {}"),
    "junk wins: \\boxed{up}": program(more="height = 0", before="self.height += 'up' in action",
                                      step="str(self.height), float(self.height > 9), self.height > 9, False, {}"),
    "solution: it does not win": program(more="def solution(self): return ['left', 'right']"),
    "solution: not a list": program(more="def solution(self): return {'left': 1}"),
    "solution: RuntimeError": program(more="def solution(self): raise RuntimeError('lost')"),
    "timeout: reset": program("[0 for _ in iter(int, 1)]"),
    "timeout: step": program(before=SLOW),
    "crash: step": program(before="__import__('os').abort()"),
    "protocol: ": program("'x' * 90_000, {'more': ['y' * 99_000] * 12}"),
}


@pytest.mark.parametrize("reason", UNSOUND)
def test_unsound(box, reason):
    start = time.monotonic()
    verdict = validate(box, UNSOUND[reason], timeout=1.0)
    assert not verdict.valid and verdict.reason.startswith(reason), verdict.reason
    assert time.monotonic() - start < 5


def test_sound(box):
    verdict = validate(box, HONEST)
    assert verdict.valid and verdict.reason == "" and len(verdict.solutions) == 3
    assert verdict.solutions[0] == ["1", "865"]
    assert validate(box, HONEST, max_turns=1).reason == "solution: it does not win on seed 0"


def test_choice_among_four_is_sound(box):
    """A constant that wins on one seed is luck; on all three it would be a lie."""
    code = program("str(self.pick(seed)), {}", "'next', float(self.key in action), True, False, {}", more=(
        "pick = lambda self, seed: setattr(self, 'key', '{' + 'BCA'[seed] + '}')"))
    assert validate(box, code).reason == ""


@pytest.mark.parametrize("same", [
    HONEST.replace("GuessEnv", "OtherEnv"), HONEST.replace("self.turn += 1", "self.turn  +=  1  # one more"),
    "# a title\n\n" + HONEST.replace("\n\n\nclass", "\n\n\n\n\n# here\nclass"), HONEST.rstrip(),
    HONEST.replace("        ", "          "),
])
def test_normalised(same):
    assert same != HONEST and normalised(same) == normalised(HONEST)


def test_normalised_tells_apart():
    others = {normalised(HONEST.replace(*change)) for change in (
        ("1000", "999"), ("more", "mehr"), ("self.turn += 1", "self.turn -= 1"), ("        if not", "        if"))}
    assert len(others | {normalised(HONEST)}) == 5
    for broken in ("class", "(", "'''", "\0", "\ud800", "  x\n y", "x = $", "\t\x0c\r", ""):
        assert type(normalised(broken)) is str


def test_fuzz(box):
    """Random, cut and mutated programs: a verdict each, never an exception of ours. (tests/bench.py fuzz: 10,000.)"""
    from bench import designer_noise
    for reply in designer_noise(60, seed=1):
        start = time.monotonic()
        verdict = validate(box, reply, timeout=0.5)
        assert verdict.valid == (verdict.reason == "") and type(normalised(reply)) is str
        assert time.monotonic() - start < 4 * 0.5 + 1


@pytest.mark.parametrize("text", [
    "", "x = 1", "class Helper:\n    pass", "class OnlyResetEnv:\n    def reset(self, seed=None): return 'a', {}",
    "def reset(): pass\ndef step(): pass", "import gym\nfrom gym.spaces import Discrete", '{"question": "?"}', "class"])
def test_a_folder_and_check_judge_alike(box, tmp_path, text):
    (tmp_path / "a.py").write_text(text)
    (tmp_path / "b.py").write_text(HONEST)
    checked = command("--check", *map(str, sorted(tmp_path.glob("*.py")))).stdout.splitlines()
    pool = [files.load_environment(path) for path in sorted(tmp_path.glob("*.py"))]
    reasons = files.refusals(box, agent.GAMES, pool)
    assert checked == [f"{tmp_path / 'a.py'}: {reasons[0]}", f"{tmp_path / 'b.py'}: sound"]
    assert reasons[0].split(":")[0] in ("class", "syntax") and reasons[1] == ""


def test_an_unsound_program_of_a_folder_is_played(box):
    lucky = designer.Environment(program(step="'won', 1.0, True, False, {}"), "", "", "games", "", "lucky")
    assert agent.GAMES.validate(box, lucky).reason.startswith("junk wins")
    assert files.refusals(box, agent.GAMES, [lucky]) == [""]


# --- the command line ---

def command(*arguments, stdin=""):
    return subprocess.run([sys.executable, "sandbox.py", *arguments], cwd=TOP, input=stdin, capture_output=True,
                          text=True, timeout=60)


def test_command_line(tmp_path):
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(HONEST)
    bad.write_text("import numpy")
    played = command(str(good), "--seed", "2", stdin="1\nnonsense\n\\boxed{979}\n")
    assert "Guess my number" in played.stdout and "more 0.0 False False" in played.stdout, played.stderr
    assert "Right 1.0 True False" in played.stdout
    checked = command("--check", str(good), str(bad))
    assert checked.stdout.splitlines() == [f"{good}: sound", f"{bad}: import: numpy is not among the allowed modules"]
    assert command(str(bad)).stderr.startswith("EnvError: import: numpy")
    marked = [("\ufeff" + HONEST).encode(encoding) for encoding in ("utf-8", "utf-16-le", "utf-16-be")]
    marked += [HONEST.replace("\n", "\r\n").encode(), HONEST.replace("Env:", "Env:  # \xfc").encode("latin-1")]
    names = [tmp_path / f"marked{i}.py" for i in range(len(marked))]
    for name, data in zip(names, marked):
        name.write_bytes(data)
    assert command("--check", *map(str, names)).stdout.splitlines() == [f"{name}: sound" for name in names]
    assert command("absent.py").stderr.startswith("FileNotFoundError: ")
    assert "\x1b" not in command(str(HOSTILE / "write_to_reader.py")).stdout


WORDS = '''
class WordsEnv:
    def reset(self, seed=None):
        return "which door?", {}
    def step(self, action):
        return repr(action), float(action == WINS), action == WINS, False, {}
    def solution(self):
        return ["open 3"]
'''


@pytest.mark.parametrize("wins, more", [
    ("'open 3'", ""), (r"'\\boxed{open 3}'", ""), ("'open 3'", "    says = 'no boxes'\n"),
    ("'xxxxxxxopen 3x'[7:-1]", "    def step(self, action):\n        action = action[7:-1]\n"
     "        return 'so', float(action == 'open 3'), action == 'open 3', False, {}\n")])
def test_a_program_may_want_the_words_or_the_box(box, wins, more):
    """All of them can be won, by the same reply; only what their text says of boxes differs."""
    code = WORDS.replace("WINS", wins) + more
    assert validate(box, code).valid, validate(box, code)
    with sandbox.Game(box, code) as env:
        env.reset(0)
        assert env.step(r"\boxed{open 3}")[1:3] == (1.0, True)


def test_words_without_a_box_reach_a_program_as_they_are(box):
    with sandbox.Game(box, WORDS.replace("WINS", "'open {3}'")) as env:
        env.reset(0)
        assert env.step("open the box")[0] == "'open the box'"
        assert env.step(r"\boxed{open {3}}")[1:3] == (1.0, True)
        assert env.step(r"so \boxed{open 3} it is")[0] == repr(r"so \boxed{open 3} it is")
