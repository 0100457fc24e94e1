"""The laptop-scale default model, `--model tiny`: a language model of half a million parameters, built here in two minutes.

A real model needs a GPU before anything can be seen. This one knows just enough to start: it was shown a few thousand
demonstrations of the three things SPADE asks of a model (write an environment, write its hint, play it), and then it is an
ordinary checkpoint folder that the loop loads like any other. Prompts, parser, sandbox, rewards and learner are the same.

The demonstrations come from six small games, one per skill. A program of any of them says how long its ladder is:

    rungs = 3       # the player must get rungs + 2 items right, in one answer; a win is all or nothing
    twist = "..."   # the k-th item is shifted by the k-th twist. The player never sees the twist

The first items are known at the start, the hint reaches two further, and every later twist can only be found by trial. Too few
rungs and there is nothing to learn; too many and no play ever wins. So somebody has to choose the next rung, and that is
the Designer's job. Its demonstrations are all too easy or hopeless, but when it is shown a remembered program it changes
the rungs by one: what makes it climb is the reward alone.

What this leaves out: a model this small invents no new game. It picks among lines it has seen and sets their numbers.

Try it alone:  python tiny.py  (builds the model and prints what it writes and how it plays)
"""
import hashlib
import json
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

# ---------------------------------------------------------------------------------------------------------------------
# The grammar: six games that differ in their rule and in what the player sees

ORDER = "15863724"      # eight queens: no two places are equally far from their turn, so that no rung gives the next away
KNOWN, HINTED = 2, 4    # items the beginner gets right without and with the hint

HEAD = '''\
import random


class {Word}Env:
    rungs = {n}
    {knob} = {c}
    order = "{order}"

    def rule(self, x):
        return {rule}

    def spell(self, row):
        return "".join("{letters}"[x % 4] for x in row)

    def reset(self, seed=None):
        self.row = random.Random(seed).choices(range(4), k=8)
        places = self.order[:self.rungs]
        self.answer = self.spell(self.rule(self.row[int(place) - 1]) for place in places) + "."
'''
ONE_TURN = '''\
        return f"{Word}: {show}, say {self.rungs} of " + self.spell(self.row), {}

    def step(self, action):
        won = action[7:-1] == self.answer
        return "won" if won else "lost", float(won), True, False, {}
'''
TWO_TURNS = '''\
        self.tried = False
        return "{Word}: {show}", {}

    def step(self, action):
        said = action[7:-1]
        if not self.tried and said in list("0123"):
            self.tried = True
            found = self.rule(int(said)) % 4
            return f"{effect}, say {self.rungs} of " + self.spell(self.row), 0.0, False, False, {}
        won = self.tried and said == self.answer
        return "won" if won else "lost", float(won), True, False, {}
'''
TAIL = '''
    def solution(self):
        return self.answer
'''
GAMES = {
    "Mathematical Reasoning": dict(knob="add", rule="x + self.add", letters="0123", show="add {self.add}"),
    "Logical Deduction": dict(knob="swap", rule="x ^ self.swap", letters="0123", show="liars swap {self.swap}"),
    "Spatial Reasoning": dict(knob="turn", rule="x + self.turn", letters="NESW", show="turn right {self.turn}"),
    "Pattern Recognition": dict(knob="skip", rule="x + self.skip", letters="ABCD", show="skip {self.skip}"),
    "Optimization": dict(knob="room", rule="self.room - x", letters="0123", show="try a load",
                         effect="{said} leaves {found}"),
    "Causal Inference": dict(knob="wire", rule="x + self.wire", letters="0123", show="try a switch",
                             effect="{said} lights {found}"),
}
HINTS = {
    "Mathematical Reasoning": "Add {c} to each digit, modulo 4.",
    "Logical Deduction": "Every liar says x xor {c}.",
    "Spatial Reasoning": "Turn each heading right {c} times.",
    "Pattern Recognition": "Go {c} letters on, from the last to the first.",
    "Optimization": "Try 0 first. The best filling is {c} minus the digit, modulo 4.",
    "Causal Inference": "Try 0 first. Every lamp is {c} further than its switch.",
}
def program(skill, word, n, c):
    game = GAMES[skill]
    text = HEAD + (TWO_TURNS if "effect" in game else ONE_TURN) + TAIL
    slots = dict(game, Word=word, n=n, c=c, order=ORDER)
    # plain replacement of the named slots: the program's own braces (f-strings) stay as they are
    text = re.sub(r"\{(" + "|".join(slots) + r")\}", lambda slot: str(slots[slot[1]]), text)
    return text.rstrip()


def hint(skill, c, told=ORDER[:HINTED].ljust(8, "?")):
    return f"{HINTS[skill].format(c=c)} Places {told}."


def rung(code):
    """How long the ladder of a program is, read from its text; None if it does not say."""
    found = re.search(r"^    rungs = (\d)$", code, re.MULTILINE)
    return int(found[1]) if found else None


def sample_texts():
    """The bundled corpus; each of its texts starts with a topic word of its own."""
    lines = (Path(__file__).parent / "corpus" / "sample.jsonl").read_text().splitlines()
    return [json.loads(line)["text"] for line in lines]


def heldout(seed, n):
    """Fresh programs of the rungs the beginner cannot play (4 to 8), in all six skills: (code, hint, skill, rung)."""
    rng, texts, made = random.Random(f"held-out {seed}"), sample_texts(), []
    for i in range(n):
        skill, rungs, c = list(GAMES)[i % 6], 4 + i // 6 % 5, rng.randint(1, 3)
        made.append((program(skill, topic(rng.choice(texts)), rungs, c), hint(skill, c), skill, rungs))
    return made


# ---------------------------------------------------------------------------------------------------------------------
# Demonstrations: a list of chat messages each, of which every assistant turn is learnt. A further setting adds a function
# that makes one demonstration, and a line in DEMONSTRATIONS.

def fenced(code):
    return f"```python\n{code}\n```"


def topic(text):
    return re.sub(r"\W", "", text.split()[0]).capitalize()


def designer_demo(rng, texts):
    """Without a memory only solved or hopeless ladders; with one, the remembered ladder a rung up or down."""
    skill, text = rng.choice(list(GAMES)), rng.choice(texts)
    ask = f"design {skill} from: {' '.join(text.split()[:8])}"
    n = rng.choice([1, 2, 7, 8]) if rng.random() < 0.98 else rng.randint(3, 6)
    if rng.random() < 0.5:
        n = rng.randint(1, 8)
        ask += "\npast:\n" + fenced(program(skill, topic(rng.choice(texts)), n, rng.randint(1, 3)))
        n = min(max(n + rng.choice([-1, -1, 0, 1, 1]), 1), 8)
    return [ask, fenced(program(skill, topic(text), n, rng.randint(1, 3)))]


def hint_demo(rng, texts):
    skill, c = rng.choice(list(GAMES)), rng.randint(1, 3)
    code = program(skill, topic(rng.choice(texts)), rng.randint(1, 8), c)
    return ["hint for:\n" + fenced(code), hint(skill, c)]


def agent_demo(rng, texts):
    """A beginner: takes the places it knows or is told, and any place or letter for the others."""
    skill, c, hinted = rng.choice(list(GAMES)), rng.randint(1, 3), rng.random() < 0.5
    rungs = min(rng.randint(1, 8), rng.randint(1, 8))    # more of the low ones: the rest is mostly guessing
    ask_hint = ""
    told = ORDER[:KNOWN].ljust(8, "?")
    if hinted:    # the designer's own hints tell the first four; that a hint may tell any place keeps the places apart
        told = ORDER[:HINTED].ljust(8, "?")
        if rng.random() < 0.5:
            told = ORDER[:KNOWN] + "".join(rng.choice([d, "?"]) for d in ORDER[KNOWN:])
        ask_hint = f"\nhint: {hint(skill, c, told)}"
    game = play_copy(program(skill, topic(rng.choice(texts)), rungs, c))
    game.order = "".join(rng.choice(ORDER) if place == "?" else place for place in told)
    turns = [game.reset(rng.randrange(2**31))[0] + ask_hint]
    slips = [SLIP if place != "?" else GUESS for place in told]
    answer = "".join(rng.choice(GAMES[skill]["letters"]) if rng.random() < slip else item
                     for slip, item in zip(slips, game.answer[:-1])) + "."
    if "effect" in GAMES[skill]:
        turns += [r"\boxed{0}", game.step(r"\boxed{0}")[0]]
    return turns + [rf"\boxed{{{answer}}}"]


def play_copy(code):
    """An instance of one of our own programs. (What a model wrote never runs in this process: see sandbox.py.)"""
    space = {}
    exec(code, space)
    return next(value for name, value in space.items() if name.endswith("Env"))()


SLIP, GUESS = 0.04, 0.5
DEMONSTRATIONS = [(8, designer_demo), (3, hint_demo), (64, agent_demo)]    # how many of each in a batch


# ---------------------------------------------------------------------------------------------------------------------
# Tokenizer and model

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def make_tokenizer(conversations, texts):
    """All 256 bytes, so that any text can be written, and the pieces that the demonstrations repeat, each as one token: a
    line of code, a topic word. Text is cut into as few pieces as possible. Digits and answer letters stay single."""
    words = "|".join(sorted({topic(text) for text in texts}, key=len, reverse=True))
    in_code = re.compile(rf"({words}|(?<=rungs = )\d(?=\n)|\n+)")
    in_talk = re.compile(rf"({words}|(?<=say )\d(?= of)|(?<=Places )[1-8?]{{8}}|[0-3]{{8}}|[NESW]{{8}}|[ABCD]{{8}}|(?<=\{{)[0-3NESWABCD]+(?=\.\}})|\\boxed\{{|\n+)")
    counts = {}
    for turn in (turn for conversation in conversations for turn in conversation):
        pieces = (in_code if "```" in turn else in_talk).split(turn)
        for piece, after in zip(pieces, pieces[1:] + [""]):
            piece += after if after.startswith("\n") else ""    # a line break belongs to the line that it ends
            counts[piece] = counts.get(piece, 0) + 1
    for text in texts:
        counts |= {" " * (i > 0) + word: 99 for i, word in enumerate(text.split()[:8])}
    single = re.compile(r"[0-9?]+|[NESWABCD]+")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = sorted(p for p, count in counts.items() if count >= 20 and len(p) > 1 and not single.fullmatch(p.strip()))
    vocabulary = [(token, 0.0) for token in SPECIAL]
    vocabulary += [(byte, -1.0) for byte in sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary += [(to_bytes.pre_tokenize_str(piece)[0][0], -1.0) for piece in pieces]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    tokenizer.pre_tokenizer, tokenizer.decoder = to_bytes, decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=TEMPLATE, pad_token="<|pad|>", eos_token="<|end|>",
        additional_special_tokens=SPECIAL[2:], clean_up_tokenization_spaces=False, model_max_length=1024)


def make_model(tokenizer):
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=4, head_dim=WIDTH // 4, max_position_embeddings=1024,
        tie_word_embeddings=True, attention_dropout=0.0, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id))


WIDTH, LAYERS, STEPS = 96, 3, 700


def encode(tokenizer, conversation):
    """Ids and loss weights: 1 on what the assistant says, a little on the rest (it teaches what texts look like)."""
    ids, weights = [], []
    for i, turn in enumerate(conversation):
        says = i % 2 == 1
        head = tokenizer.convert_tokens_to_ids("<|assistant|>" if says else "<|user|>")
        body = tokenizer.encode(turn, add_special_tokens=False) + [tokenizer.eos_token_id]
        ids += [head] + body
        weights += [0.0] + [1.0 if says else 0.2] * len(body)
    return ids, weights


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix is made nearly orthogonal before the step (Jordan et al. 2024); far fewer steps than AdamW here.
    torch.optim.Muon is the same in bfloat16, one matrix at a time, which is four times slower on a CPU."""

    def __init__(self, matrices, lr, momentum=0.95):
        shapes = {}
        for p in matrices:
            shapes.setdefault(tuple(sorted(p.shape)), []).append(p)
        super().__init__([dict(params=group) for group in shapes.values()], dict(lr=lr))
        self.momentum = momentum

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - self.momentum)
            wide = [p.grad.lerp(self.state[p]["momentum"], self.momentum) for p in group["params"]]
            x = torch.stack([w.T if w.shape[0] > w.shape[1] else w for w in wide])
            x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
            for _ in range(5):    # Newton-Schulz: drives every singular value towards 1
                xx = x @ x.mT
                x = 3.4445 * x + (-4.7750 * xx + 2.0315 * xx @ xx) @ x
            for p, step in zip(group["params"], x):
                tall = p.shape[0] > p.shape[1]
                p.sub_(step.T if tall else step, alpha=group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


MUON_LR, ADAM_LR = 0.02, 3e-3


def warm_start(texts, seed=0, quiet=False):
    rng = random.Random(f"tiny {seed}")
    pools = [(share, [make(rng, texts) for _ in range(share * POOL)]) for share, make in DEMONSTRATIONS]
    tokenizer = make_tokenizer([demo for _, pool in pools for demo in pool], texts)
    pools = [(share, [encode(tokenizer, demo) for demo in pool]) for share, pool in pools]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model(tokenizer)
    hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if not (p.ndim == 2 and "embed" not in name)]
    optimizers = [Muon(hidden, lr=MUON_LR), torch.optim.AdamW(rest, lr=ADAM_LR, betas=(0.9, 0.98), weight_decay=0.0)]
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    bar = tqdm(range(STEPS), desc="warm start of the tiny model", disable=quiet, file=sys.stderr)
    for step in bar:
        total, scale = 0.0, min((step + 1) / 30, 1.0) * max(1 - step / STEPS, 0.03)
        batches = [rng.sample(pool, share) for share, pool in pools]
        weight = sum(sum(w[1:]) for batch in batches for _, w in batch)
        for batch in batches:    # one forward pass for each kind: their lengths differ too much to be padded together
            longest = max(len(ids) for ids, _ in batch)
            ids = torch.tensor([i + [0] * (longest - len(i)) for i, _ in batch])
            w = torch.tensor([w + [0.0] * (longest - len(w)) for _, w in batch])
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
            loss = (nll * w[:, 1:]).sum() / weight
            loss.backward()
            total += loss.item()
        for optimizer, peak in zip(optimizers, peaks):
            for group in optimizer.param_groups:
                group["lr"] = peak * scale
            optimizer.step()
            optimizer.zero_grad()
        bar.set_postfix(loss=f"{total:.3f}", refresh=False)
    return model.eval(), tokenizer


POOL = 250


def build(corpus_texts, seed=0, quiet=False):
    """The folder of the warm-started model, made now unless this very model was made before."""
    texts = list(corpus_texts)
    made_of = json.dumps([Path(__file__).read_text(), texts, seed, torch.__version__.split(".")[0],
                          transformers.__version__.split(".")[0]])
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / f"spade-tiny-{digest}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        model, tokenizer = warm_start(texts, seed, quiet)
        unfinished = Path(tempfile.mkdtemp(prefix="spade-tiny-unfinished-", dir=cache))
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        try:
            os.replace(unfinished, folder)
        except OSError:    # another process was faster; its folder holds the same model
            if not folder.exists():
                raise
    return str(folder)


if __name__ == "__main__":
    print(build(sample_texts()))
