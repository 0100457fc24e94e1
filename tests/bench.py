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
from types import SimpleNamespace

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

from machinery.source import normalised  # noqa: E402
from sandbox import Sandbox, SandboxedEnv, validate  # noqa: E402

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
from machinery import worker
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


def bench_learner():
    """grpo.update against a bare forward and backward of the same model on as many tokens, without padding."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    import grpo
    from machinery.logprobs import TokenLogProbs
    torch.set_num_threads(1)
    model = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=2048, hidden_size=192, intermediate_size=576, num_hidden_layers=4, num_attention_heads=3,
        num_key_value_heads=1, head_dim=64))
    policy = SimpleNamespace(net=TokenLogProbs(model), device=torch.device("cpu"),
                             optimizer=torch.optim.AdamW(model.parameters(), lr=1e-6))
    rng = random.Random(0)
    samples = []
    for _ in range(96):                        # episodes of a few turns; half of the tokens are the model's
        mask = []
        for _ in range(rng.randint(1, 8)):
            n = rng.randint(4, 16)
            mask += [0] * n + [1] * n
        samples.append(grpo.Sample([rng.randrange(2048) for _ in mask], mask, [-8.0] * sum(mask), "agent", "g", 0.0,
                                   rng.choice([-1.0, 1.0])))
    tokens, budget = sum(len(s.ids) for s in samples), 1024
    padded = sum(len(b) * max(len(s.ids) for s in b) for b in grpo.micro_batches(samples, budget))
    stream = torch.tensor([token for s in samples for token in s.ids])
    length = tokens // len(samples)

    def bare():
        for block in stream[:tokens // length * length].view(-1, length).split(budget // length):
            logits = model(input_ids=block).logits
            torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), block[:, 1:].flatten()).backward()
        model.zero_grad()

    def learner():
        grpo.update(policy, samples, tokens_per_microbatch=budget)
    rates = {bare: [], learner: []}
    for _ in range(5):                         # in turns, by processor time: a busy machine is busy for both
        for function, found in rates.items():
            start = time.process_time()
            function()
            found.append(tokens / (time.process_time() - start))
    best = {function.__name__: max(found) for function, found in rates.items()}
    print(f"bare    {best['bare']:7.0f} tokens/s\nlearner {best['learner']:7.0f} tokens/s   ratio "
          f"{best['learner'] / best['bare']:.2f}   padding {1 - tokens / padded:.1%} of {padded} tokens")


PEAK = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import torch
from types import SimpleNamespace
from machinery.logprobs import TokenLogProbs
torch.set_num_threads(2)
vocabulary, tokens = 151936, 4096
head = torch.nn.Linear(64, vocabulary, bias=False)
hidden = torch.randn(1, tokens, 64, requires_grad=True)
ids, mask = torch.randint(0, vocabulary, (1, tokens)), torch.ones(1, tokens).bool()
mask[:, 0] = False
model = torch.nn.Module()
model.config, model.get_output_embeddings = SimpleNamespace(vocab_size=vocabulary), lambda: head
model.get_decoder = lambda: lambda **_: SimpleNamespace(last_hidden_state=hidden)
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1e6
net = TokenLogProbs(model)
start, most, clock = resident(), [0.0], time.perf_counter()
def watch():
    while True:
        most[0] = max(most[0], resident())
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
if sys.argv[2] == "plain":
    whole = (head(hidden[:, :-1]) / 0.6).log_softmax(-1)
    with torch.no_grad():
        entropy = -(whole.exp() * whole).sum(-1)
    whole.gather(2, ids[:, 1:, None]).sum().backward()
else:
    net(ids, None, mask, 0.6)[0].sum().backward()
print(most[0] - start, time.perf_counter() - clock)
"""


def bench_memory():
    """Peak memory of log-probs, entropy and their backward: 4,096 tokens, a vocabulary of 151,936, float32."""
    found = {}
    for way in ("plain", "chunked"):
        out = subprocess.run([sys.executable, "-c", PEAK, str(TOP), way], capture_output=True, text=True, check=True)
        found[way] = list(map(float, out.stdout.split()))
        print(f"{way:8}{found[way][0]:6.2f} GB {found[way][1]:6.1f} s")
    print(f"ratio   {found['chunked'][0] / found['plain'][0]:6.2f}    {found['chunked'][1] / found['plain'][1]:6.2f}")


class Paced:
    """An engine whose replies have given lengths, for the same requests in every way of asking; `barrier` hands over
    nothing before all is there."""

    def __init__(self, engine, barrier):
        self.engine, self.streams, self.turns, self.asked = engine, engine.streams and not barrier, {}, {}

    def submit(self, key, ids, max_new_tokens, temperature):
        turn = self.turns[key] = self.turns.get(key, -1) + 1
        self.asked[key, turn] = ids
        length = int(random.Random(f"{key} {turn}").expovariate(1 / 40)) + 3      # most are short, some are long
        self.engine.submit(key, ids, min(length, 200), temperature)

    def busy(self):
        return self.engine.busy()

    def done(self):
        self.engine.done()

    def collect(self):
        replies = self.engine.collect()
        while not self.streams and self.engine.busy():
            replies += self.engine.collect()
        for _, reply in replies:
            reply.finished = True
        return replies


def bench_play():
    """Episodes of 4 turns in the sandbox: play() against the engine alone on its requests, and against a barrier."""
    os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}    # the other core: the sandbox's
    import importlib.util
    import tempfile

    import agent
    import tests.tiny_model as tiny_model
    from designer import Environment
    name = "vllm" if importlib.util.find_spec("vllm") else "transformers"
    folder = tiny_model.build(Path(tempfile.mkdtemp()) / "m", hidden_size=256, intermediate_size=768,
                              num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    policy = tiny_model.policy(folder, engine=name, context=2048)
    engine = policy.engine
    engine.eos_ids = []
    steps = []
    if name == "vllm":
        engine.fixed["stop_token_ids"], step = [], engine.llm.llm_engine.step
        engine.llm.llm_engine.step = lambda: steps.append(1) or step()
    jobs = [agent.Job(Environment(TRADING, "", "", "games", "", "trading"), seed, False) for seed in range(24)]
    requests = {}

    def play(barrier):
        policy.engine = Paced(engine, barrier)
        agent.play(policy, box, agent.GAMES, jobs, brief=True, temperature=1.0, max_turns=4, context=2048)
        requests.update(policy.engine.asked)

    def alone(_):
        paced = Paced(engine, False)
        for key in range(len(jobs)):
            paced.submit(key, requests[key, 0], 300, 1.0)
        while paced.busy():
            for key, reply in paced.collect():                 # the next turn: what it said, what was observed then
                turn = paced.turns[key]
                ids = paced.asked[key, turn] + reply.ids
                if (key, turn + 1) in requests:
                    paced.submit(key, ids + requests[key, turn + 1][len(ids):], 300, 1.0)
    found = {"play()": [], "the engine alone": [], "a barrier per turn": []}
    with Sandbox() as box:
        play(False)
        for _ in range(3):
            for way, function, barrier in zip(found, (play, alone, play), (False, False, True)):
                policy.sync()                  # nothing cached
                start = time.perf_counter(), len(steps)
                function(barrier)
                found[way].append((time.perf_counter() - start[0], len(steps) - start[1]))
    least = min(found["the engine alone"])[0]
    for way, took in found.items():
        print(f"{name}: {way:20}{min(took)[0]:6.2f} s   {min(took)[0] / least:.2f} x   {min(took)[1]} engine steps")


def bench_trl(rounds=2):
    """One GRPO step and the learner alone, ours against TRL's, with the interpreter that $TRL_PYTHON names."""
    import json
    import tempfile
    python = os.environ.get("TRL_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import trl"], capture_output=True).returncode:
        return print("no TRL here. In an environment of its own: pip install -r requirements.txt trl; then "
                     "TRL_PYTHON=that/bin/python python tests/bench.py trl")
    program, folder = str(TOP / "tests" / "bench_trl.py"), tempfile.mkdtemp() + "/model"
    subprocess.run([python, program, "build", "-", folder], check=True, capture_output=True)
    for what in ("learner", "step"):
        best = {}
        for side in ("ours", "trl") * rounds:          # in turns
            out = subprocess.run([python, program, side, what, folder], check=True, capture_output=True, text=True)
            found = json.loads(out.stdout.strip().splitlines()[-1])
            best[side] = {key: min(value, best.get(side, found)[key]) for key, value in found.items()}
        for key, unit in (("sample", "s CPU"), ("learn", "s CPU"), ("peak", "GB"), ("norm", "")):
            a, b = best["ours"][key], best["trl"][key]
            if what == "step" or key != "sample":
                print(f"{what:8} {key:7} ours {a:8.3f}   TRL {b:8.3f} {unit:6} ratio {a / b:.2f}")


SECTIONS = {"sandbox": bench_sandbox, "leaks": bench_leaks, "fuzz": bench_fuzz, "learner": bench_learner,
            "memory": bench_memory, "play": bench_play, "trl": bench_trl}

if __name__ == "__main__":
    for section in sys.argv[1:] or SECTIONS:
        print(f"--- {section}: {SECTIONS[section].__doc__}")
        SECTIONS[section]()
