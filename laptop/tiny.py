"""The laptop-scale default, `--model tiny`: a language model of a third of a million parameters, made in two minutes.

A pretrained model needs a GPU before anything can be seen. This one is shown demonstrations of what SPADE asks of a
model (write an environment, write its hint, play it); then it is a checkpoint folder like any other. The demonstrations
come from six small games, one per skill, with one kind of ladder: the player answers the first `rungs` of eight items,
in an order that it is never told, each changed by the rule of the game. Every rung needs one more place of the order.
The beginner knows two places, a hint tells four, the others can only be found by trial: with too few rungs there is
nothing to learn, with too many no play ever wins. The Designer alone writes solved or hopeless ladders; shown a
remembered program, it changes the rungs by one. Whatever climbs, climbs by the reward.

Left out: a model this small invents no new game. It recombines lines of code it has seen and chooses their numbers.
Try it alone:  python tiny.py  prints a program of each game and its hint, then builds the model
"""
import hashlib
import importlib
import json
import os
import random
import re
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from machinery import source

# --- the grammar: six games with one ladder -------------------------------------------------------------------

ORDER = "12753864"      # no two of the later places are equally far from their turn: no rung gives the next one away
KNOWN, HINTED = 2, 4    # places the beginner knows, and places a hint tells

HEAD = '''\
import random


class {Word}Env:
    rungs = {n}
    {knob} = {c}
    order = "{order}"

    def rule(self, x):
        return {rule}

    def spell(self, row):
        return "".join(str(x % 4) for x in row)

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

    def solution(self):
        return self.answer'''
TWO_TURNS = '''\
        self.tried = False
        return "{Word}: {show}", {}

    def step(self, action):
        said = action[7:-1]
        if not self.tried and said in list("0123"):
            self.tried = True
            found = self.rule(int(said)) % 4
            return f"{said} {effect} {found}, say {self.rungs} of " + self.spell(self.row), 0.0, False, False, {}
        won = self.tried and said == self.answer
        return "won" if won else "lost", float(won), True, False, {}

    def solution(self):
        return ["0", self.answer]'''
GAMES = {  # what fills the template, and what a hint says of the rule
    "Mathematical Reasoning": dict(
        knob="add", rule="x + self.add", show="add {self.add}", hint="Add {c} to each digit, modulo 4."),
    "Logical Deduction": dict(
        knob="swap", rule="x ^ self.swap", show="liars swap {self.swap}", hint="Every liar says x xor {c}."),
    "Spatial Reasoning": dict(
        knob="turn", rule="x + self.turn", show="turn right {self.turn}", hint="Turn each heading right {c} times."),
    "Pattern Recognition": dict(
        knob="skip", rule="x + self.skip", show="cycle 0123 skip {self.skip}", hint="Go {c} steps on in the cycle."),
    "Optimization": dict(knob="room", rule="self.room - x", show="try a load", effect="leaves",
                         hint="Try 0 first. The best filling is {c} minus the digit, modulo 4."),
    "Causal Inference": dict(knob="wire", rule="x + self.wire", show="try a switch", effect="lights",
                             hint="Try 0 first. Every lamp is {c} further than its switch."),
}


def program(skill, word, rungs, c):
    """The Python text of an environment: the template's own slots are filled, its f-strings' braces stay."""
    template = HEAD + (TWO_TURNS if "effect" in GAMES[skill] else ONE_TURN)
    slots = GAMES[skill] | dict(Word=word, n=rungs, c=c, order=ORDER)
    fill = re.compile(r"\{(" + "|".join(slots) + r")\}")
    return fill.sub(lambda slot: str(slots[slot[1]]), template)


def hint(skill, c, told=""):
    return f"{GAMES[skill]['hint'].format(c=c)} Places {told or ORDER[:HINTED].ljust(8, '?')}."


def sample_texts():
    """The bundled corpus; each of its texts starts with a topic word of its own."""
    with open(Path(__file__).parents[1] / "corpus" / "sample.jsonl", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def texts_for(state):
    """What a run's laptop model is taught with: the run's own documents; without a corpus the bundled ones."""
    return state.corpus.texts if state.corpus else sample_texts()


def topic(text):
    """The word that a text is about: its first, as part of a class name."""
    return re.sub(r"\W|^\d+", "", (text.split() or [""])[0]).capitalize()


def heldout(seed, n):
    """Fresh programs in all six skills, of rungs that the beginner cannot play: a list of (code, hint, skill, rung)."""
    rng, texts = random.Random(f"held-out {seed}"), sample_texts()
    drawn = [(list(GAMES)[i % 6], topic(rng.choice(texts)), 4 + i // 6 % 5, rng.randint(1, 3)) for i in range(n)]
    return [(program(skill, word, rungs, c), hint(skill, c), skill, rungs) for skill, word, rungs, c in drawn]


# --- demonstrations: a chat is a list of turns, user first. A further setting adds a function and an entry at the end.

def fenced(code):
    return f"```python\n{code}\n```"


def some_game(rng, texts, rungs):
    skill, c = rng.choice(list(GAMES)), rng.randint(1, 3)
    return skill, c, program(skill, topic(rng.choice(texts)), rungs, c)


def designer_demo(rng, texts):
    """Without a memory only solved or hopeless ladders; with one, the remembered ladder a rung up or down."""
    text = rng.choice(texts)
    rungs = rng.choice([1, 2, 7, 8]) if rng.random() < 0.98 else rng.randint(3, 6)
    skill, _, past = some_game(rng, texts, rng.randint(1, 8))
    ask = f"design {skill} from: {' '.join(text.split()[:8])}"
    if rng.random() < 0.5:
        ask += f"\npast:\n{fenced(past)}"
        rungs = min(max(source.rung(past) + rng.choice([-1, -1, 0, 1, 1]), 1), 8)
    return [ask, fenced(program(skill, topic(text), rungs, rng.randint(1, 3)))]


def hint_demo(rng, texts):
    skill, c, code = some_game(rng, texts, rng.randint(1, 8))
    return [f"hint for:\n{fenced(code)}", hint(skill, c)]


def agent_demo(rng, texts):
    """A beginner: it takes the places that it knows or is told; of the others it thinks that they go on in order, or
    it takes any. What it prefers is wrong, so that growing surer of itself teaches it nothing."""
    told, asked = ORDER[:KNOWN].ljust(8, "?"), rng.random() < 0.6
    if asked:    # half the hints are as the Designer writes them; in the others any place may be told: each by itself
        told = rng.choice([ORDER[:HINTED].ljust(8, "?"),
                           ORDER[:KNOWN] + "".join(rng.choice([place, "?"]) for place in ORDER[KNOWN:])])
    # beyond the places it knows a player without a hint only guesses, so these demonstrations are shorter
    skill, c, code = some_game(rng, texts, rng.randint(1, 8) if asked else min(rng.randint(1, 8), rng.randint(1, 8)))
    game = play_copy(code)
    game.order = "".join(place if place != "?" else rng.choice(ORDER) if rng.random() < GUESS else str(k)
                         for k, place in enumerate(told, 1))    # its belief
    turns = [game.reset(rng.randrange(2**31))[0] + (f"\nhint: {hint(skill, c, told)}" if asked else "")]
    answer = "".join(rng.choice("0123") if rng.random() < SLIP else item for item in game.answer[:-1])
    if "effect" in GAMES[skill]:
        turns += [r"\boxed{0}", game.step(r"\boxed{0}")[0]]
    return turns + [rf"\boxed{{{answer}.}}"]


def play_copy(code):
    """An instance of one of our own programs. (What a model wrote never runs in this process: see sandbox.py.)"""
    exec(code, space := {})
    return next(value for name, value in space.items() if name.endswith("Env"))()


SLIP, GUESS = 0.04, 0.5    # share of random letters, and of the unknown places that it does not take in order
PIECES = r"(?<=say )\d(?= of)|(?<=of )[0-3]{8}|(?<=Places )[1-8?]{8}|(?<=\{)[0-3]+(?=\.\})"    # what talk is cut at
DEMONSTRATIONS = [(6, designer_demo), (6, hint_demo), (64, agent_demo)]    # how many of each kind in a batch

# --- tokenizer and model --------------------------------------------------------------------------------------

TEMPLATE = ("{% for message in messages %}<|{{ message['role'] | replace('tool', 'user') }}|>"
            "{% if loop.first and tools %}tools:{% for tool in tools %} {{ tool['function']['name'] }}"
            "({{ tool['function']['parameters']['properties'] | join(', ') }}){% endfor %}{{ '\\n' }}{% endif %}"
            "{{ message['content'] }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
STEPS, POOL = 800, 200    # optimiser steps; different demonstrations of a kind, in batches


def make_tokenizer(chats, texts, rows):
    """All 256 bytes, so that any text can be written, and as one token each what the demonstrations repeat: a line of
    code, a topic word. Text is cut into as few tokens as possible. Rungs, rows, places and answers stay single."""
    words = "|".join(sorted({topic(text) for text in texts}, key=len, reverse=True))
    in_code = re.compile(rf"({words}|(?<=rungs = )\d(?=\n)|\n+)")
    in_talk = re.compile(rf"({words}|{rows}|\\boxed\{{|\n+)")
    counts = {}
    for turn in (turn for chat in chats for turn in chat):
        pieces = (in_code if "```" in turn else in_talk).split(turn)
        for piece, after in zip(pieces, pieces[1:] + [""]):
            piece += after if after.startswith("\n") else ""    # a line break belongs to the line it ends
            counts[piece] = counts.get(piece, 0) + 1
    for text in texts:
        counts |= {" " * (i > 0) + word: 99 for i, word in enumerate(text.split()[:8])}
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = sorted(p for p, count in counts.items() if count >= 20 and len(p) > 1 and p.strip(" 0123456789?"))
    vocabulary = SPECIAL + sorted(to_bytes.alphabet()) + [to_bytes.pre_tokenize_str(p)[0][0] for p in pieces]
    tokenizer = Tokenizer(models.Unigram([(token, -1.0) for token in vocabulary], unk_id=0))
    tokenizer.pre_tokenizer, tokenizer.decoder = to_bytes, decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=TEMPLATE, pad_token=SPECIAL[0], eos_token=SPECIAL[1],
        additional_special_tokens=SPECIAL[2:], clean_up_tokenization_spaces=False, model_max_length=1024)


def encode(tokenizer, chat):
    """Ids and loss weights: 1 on what the assistant says, a little on the rest, which teaches how texts look."""
    ids, weights = [], []
    for i, turn in enumerate(chat):
        body = tokenizer.encode(turn, add_special_tokens=False) + [tokenizer.eos_token_id]
        ids += [tokenizer.convert_tokens_to_ids(SPECIAL[3 + i % 2])] + body
        weights += [0.0] + [1.0 if i % 2 else 0.2] * len(body)
    return ids, weights


def orthogonal(x):
    """Nearly the closest orthogonal matrix, by Newton-Schulz: the step of Muon (Jordan et al. 2024), which needs half
    the steps of AdamW here. In float32, because torch.optim.Muon's bfloat16 is slow on a CPU."""
    rows, columns = x.shape
    x = (x.T if rows > columns else x) / (x.norm() + 1e-7)
    for _ in range(5):
        xx = x @ x.T
        x = 3.4445 * x + (2.0315 * xx @ xx - 4.7750 * xx) @ x
    return x.T * (rows / columns) ** 0.5 if rows > columns else x


def warm_start(texts, lessons, seed=0, quiet=False):
    """Supervised learning from scratch on the demonstrations. Returns the model and its tokenizer."""
    rng = random.Random(f"tiny {seed}")
    chats = [(share, [make(rng, texts) for _ in range(share * POOL)]) for share, make in lessons.DEMONSTRATIONS]
    tokenizer = make_tokenizer([chat for _, pool in chats for chat in pool], texts, lessons.PIECES)
    pools = [(share, [encode(tokenizer, chat) for chat in pool]) for share, pool in chats]
    with torch.random.fork_rng(devices=[]):    # the initial weights come from the global generator: put it back
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(
            vocab_size=len(tokenizer), hidden_size=96, intermediate_size=192, num_hidden_layers=3, head_dim=24,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id))
    hidden = [(p, torch.zeros_like(p)) for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim == 1 or "embed" in name]
    adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)
    for step in tqdm(range(STEPS), desc="building the tiny model, once", disable=quiet, smoothing=0.05):
        batch = sorted((d for share, pool in pools for d in rng.sample(pool, share)), key=lambda d: len(d[0]))
        total = sum(sum(weights) for _, weights in batch)
        for start in range(0, len(batch), 25):    # sorted by length and cut in three, so that little is padding
            part = batch[start:start + 25]
            ids, weights = (pad_sequence([torch.tensor(row) for row in rows], batch_first=True) for rows in zip(*part))
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1].transpose(1, 2)
            losses = torch.nn.functional.cross_entropy(logits, ids[:, 1:], reduction="none")
            ((losses * weights[:, 1:]).sum() / total).backward()
        pace = min((step + 1) / 30, 1.0) * max(1 - step / STEPS, 0.03)    # a short rise, then straight down
        adam.param_groups[0]["lr"] = 3e-3 * pace
        adam.step()
        with torch.no_grad():
            for p, momentum in hidden:
                momentum.lerp_(p.grad, 0.05)
                p -= 0.02 * pace * orthogonal(p.grad.lerp(momentum, 0.95))
        model.zero_grad()
    return model.eval(), tokenizer


def build(corpus_texts, seed=0, quiet=False, lessons=None):
    """The warm-started model's folder, made once; `lessons`: whose DEMONSTRATIONS it is shown (tiny_tools, or ours)."""
    lessons = importlib.import_module(lessons) if lessons else sys.modules[__name__]
    texts = [" ".join(text.split()[:8]) for text in corpus_texts if topic(text)][:100]
    sources = [Path(file).read_text(encoding="utf-8") for file in (__file__, lessons.__file__)]
    made_of = json.dumps([sources, texts, seed, torch.__version__, transformers.__version__])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / f"spade-tiny-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="spade-tiny-", dir=cache, ignore_cleanup_errors=True) as unfinished:
            for part in warm_start(texts, lessons, seed, quiet):
                part.save_pretrained(unfinished)
            if not folder.exists():    # another process may have been faster; its model is the same
                os.replace(unfinished, folder)
    return str(folder)


if __name__ == "__main__":
    for code, text, skill, _ in heldout(0, 6):
        print(f"# {skill}\n{code}\n# hint: {text}\n")
    print(build(sample_texts()))
