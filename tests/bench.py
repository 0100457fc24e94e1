"""Measurements, a section each: python tests/bench.py sandbox leaks ...

They print what they measured on this machine and assert nothing; the tests do that.
"""
import os
import random
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

from sandbox import Sandbox, SandboxedEnv, normalised, validate  # noqa: E402

TRADING = r'''
import random
import re


class TradingEnv:
    """Buy low, sell high: three goods, a price list that changes with the day."""

    def __init__(self):
        self.max_turns = 12
        self.goods = ["salt", "tea", "silk"]

    def reset(self, seed=None):
        self.rng = random.Random(seed)
        self.day, self.money, self.stock = 0, 20, {good: 0 for good in self.goods}
        self.prices = {good: self.rng.randint(3, 12) for good in self.goods}
        return "Reach 40 coins. " + self.show(), {}

    def show(self):
        prices = ", ".join(f"{good} {price}" for good, price in self.prices.items())
        return f"Day {self.day}, {self.money} coins. Prices: {prices}. Say \\boxed{{buy tea}} or \\boxed{{sell tea}}."

    def step(self, action):
        self.day += 1
        found = re.search(r"boxed\{(buy|sell) (\w+)\}", action)
        if found and found.group(2) in self.goods:
            verb, good = found.groups()
            if verb == "buy" and self.money >= self.prices[good]:
                self.money -= self.prices[good]
                self.stock[good] += 1
            elif verb == "sell" and self.stock[good]:
                self.money += self.prices[good]
                self.stock[good] -= 1
        self.prices = {good: max(1, price + self.rng.randint(-2, 2)) for good, price in self.prices.items()}
        won = self.money >= 40
        return self.show(), float(won), won, self.day >= self.max_turns, {"money": self.money}
'''


def cpu(box):
    """CPU seconds so far of this process, the zygote and its finished workers."""
    fields = Path(f"/proc/{box.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return time.process_time() + sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def one_episode(box, seed, checked=True):
    with SandboxedEnv(box, TRADING, checked=checked) as env:
        env.reset(seed)
        for action in ("buy tea", "sell tea", "buy silk"):
            env.step(f"\\boxed{{{action}}}")


FORK = """
import importlib, os, sys, time
sys.path.insert(0, sys.argv[1])
import worker
worker.namespace("")
import gc; gc.freeze()
start = time.perf_counter(), sum(os.times()[:4])
for _ in range(300):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
print((time.perf_counter() - start[0]) / 300 * 1e3, (sum(os.times()[:4]) - start[1]) / 300 * 1e3)
"""


def bench_sandbox():
    """Episodes of 3 steps: rate, CPU; against a fresh interpreter each, and against fork alone."""
    out = subprocess.run([sys.executable, "-S", "-c", FORK, str(TOP)], capture_output=True, text=True, check=True)
    wall, used = map(float, out.stdout.split())
    print(f"fork alone, of a process like the zygote   {1000 / wall:6.0f}/s   {used:5.2f} ms CPU")
    start = time.perf_counter(), sum(os.times()[:4])
    for seed in range(20):
        with Sandbox() as box:
            one_episode(box, seed)
    fresh, used = time.perf_counter() - start[0], sum(os.times()[:4]) - start[1]
    print(f"a fresh interpreter per episode            {20 / fresh:6.0f}/s   {used / 20 * 1e3:5.2f} ms CPU")
    with Sandbox() as box:
        for name, checked, threads in [("static pass too, 1 thread", False, 1), ("validated, 1 thread", True, 1),
                                       ("validated, 2 threads", True, 2)]:
            start = time.perf_counter(), cpu(box)
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda seed, checked=checked: one_episode(box, seed, checked), range(400)))
            wall, used = time.perf_counter() - start[0], cpu(box) - start[1]
            print(f"zygote, {name:26}         {400 / wall:6.0f}/s   {used / 400 * 1e3:5.2f} ms CPU"
                  f"   {400 / wall / (20 / fresh):4.1f} x fresh")
        with SandboxedEnv(box, TRADING, checked=True) as env:
            env.reset(1)
            start = time.perf_counter(), time.process_time()
            for _ in range(3000):
                env.step("\\boxed{buy tea}")
            wall, used = time.perf_counter() - start[0], time.process_time() - start[1]
        print(f"a step's round trip: {wall / 3000 * 1e6:.0f} us, {used / 3000 * 1e6:.0f} us CPU of it in the trainer")
        for count in (24, 384):  # all of a rollout alive at the same time
            start = time.perf_counter(), cpu(box)
            envs = [SandboxedEnv(box, TRADING, checked=True) for _ in range(count)]
            for env in envs:
                env.reset(1)
            for action in ("buy tea", "sell tea", "buy silk"):
                for env in envs:
                    env.step(action)
            for env in envs:
                env.close()
            wall, used = time.perf_counter() - start[0], cpu(box) - start[1]
            print(f"{count:3} episodes alive together: {wall / count * 1e3:.2f} ms, {used / count * 1e3:.2f} ms CPU")
        start = time.perf_counter(), cpu(box)
        for _ in range(40):
            assert validate(box, TRADING).valid
        wall, used = time.perf_counter() - start[0], cpu(box) - start[1]
        print(f"validate: {wall / 40 * 1e3:.0f} ms, {used / 40 * 1e3:.0f} ms CPU")


def bench_leaks(count=10_000):
    """Many episodes: what grows?"""
    def state():
        rss = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() >> 20
               for pid in (os.getpid(), box.process.pid)]
        children = Path(f"/proc/{box.process.pid}/task/{box.process.pid}/children").read_text().split()
        return f"{len(os.listdir('/proc/self/fd'))} descriptors, {len(children)} workers, {rss} MB (trainer, zygote)"

    with Sandbox() as box:
        one_episode(box, 0)
        print("before ", state())
        with ThreadPoolExecutor(2) as pool:
            for start in range(0, count, 100):
                list(pool.map(lambda seed: one_episode(box, seed), range(start, start + 100)))
        print(f"after {count} episodes:", state())


def designer_noise(count, seed=0):
    """What a bad Designer may write: random bytes, cut programs, mutated programs."""
    rng = random.Random(seed)
    programs = [path.read_text() for path in sorted((TOP / "tests" / "hostile").glob("*.py"))]
    for _ in range(count):
        text = rng.choice(programs)
        how = rng.randrange(4)
        if how == 0:
            text = rng.randbytes(rng.randrange(2000)).decode("utf-8", rng.choice(["replace", "surrogateescape"]))
        elif how == 1:
            text = text[:rng.randrange(len(text))]
        else:
            for _ in range(rng.randrange(1, 6)):
                i, j = sorted(rng.choices(range(len(text) + 1), k=2))
                text = rng.choice([
                    text[:i] + text[i + 1:], text[:i] + chr(rng.choice([0, 10, 39, 40, 123, 233, 0x1F600])) + text[i:],
                    text[:i] + text[i:j] * 2 + text[j:], text[:i] + text[j:], text.replace("return", "yield", 1),
                ])[:20_000]
        yield text


def bench_fuzz(count=10_000):
    """Noise through the Designer's parser and validate: verdicts by their first word, and the slowest."""
    from designer import extract_code
    reasons, slowest = {}, 0.0

    def judge(reply):
        start = time.perf_counter()
        code = extract_code(reply)
        verdict = validate(box, code, timeout=0.5)
        normalised(code)
        return verdict.reason.split(":")[0] or "sound", time.perf_counter() - start

    with Sandbox() as box, ThreadPoolExecutor(2) as pool:
        for reason, took in pool.map(judge, designer_noise(count)):
            reasons[reason] = reasons.get(reason, 0) + 1
            slowest = max(slowest, took)
    print(dict(sorted(reasons.items(), key=lambda pair: -pair[1])))
    print(f"slowest {slowest:.1f} s (limit 2 s in the sandbox)")


SECTIONS = {"sandbox": bench_sandbox, "leaks": bench_leaks, "fuzz": bench_fuzz}

if __name__ == "__main__":
    for section in sys.argv[1:] or SECTIONS:
        print(f"--- {section}: {SECTIONS[section].__doc__}")
        SECTIONS[section]()
