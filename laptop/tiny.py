"""The laptop-scale default, `--model tiny`: a language model of a third of a million parameters, made in two minutes.

A pretrained model needs a GPU before anything can be seen. This one is shown demonstrations of what SPADE asks of a
model (write an environment, write its hint, play it); then it is a checkpoint folder like any other. What it is shown
is a module of `DEMONSTRATIONS`, a list of (how many in a batch, function of (rng, texts) -> chat), and `PIECES`, where
what is said is cut into tokens: ladders.py, or that of another setting.

What it leaves out: pretraining on text. It speaks of nothing but its lessons.

Try it:  python -m laptop.tiny        builds the model and prints its folder
"""
import ast
import hashlib
import importlib
import json
import os
import random
import re
import tempfile
from collections import Counter
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from laptop import ladders
from laptop.texts import beginning, sample_texts, topic

ROOT = Path(__file__).parents[1]
TEMPLATE = ("{% for message in messages %}<|{{ message['role'] | replace('tool', 'user') }}|>"
            "{% if loop.first and tools %}tools:{% for tool in tools %} {{ tool['function']['name'] }}"
            "({{ tool['function']['parameters']['properties'] | join(', ') }}){% endfor %}{{ '\\n' }}{% endif %}"
            "{{ message['content'] }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
STEPS, POOL = 800, 200    # optimiser steps; different demonstrations of a kind, in batches
REPEATED = 20             # times that a piece occurs in the demonstrations to be a token

# --- tokenizer ------------------------------------------------------------------------------------------------


def make_tokenizer(chats, texts, cuts):
    """All 256 bytes, so that any text can be written, and as one token each what the demonstrations repeat: a line of
    code, a topic word. Text is cut into as few tokens as possible. Rungs, rows, places and answers stay single."""
    topics = sorted({topic(text) for text in texts}, key=len, reverse=True)
    words = "|".join(topics)
    in_code = re.compile(rf"({words}|(?<=rungs = )\d(?=\n)|\n+)")
    in_talk = re.compile(rf"({words}|{cuts}|\\boxed\{{|\n+)")
    counts = Counter()
    for chat in chats:
        for turn in chat:
            parts = (in_code if "```" in turn else in_talk).split(turn)
            followers = parts[1:] + [""]
            for part, follower in zip(parts, followers):
                line_end = follower if follower.startswith("\n") else ""    # belongs to the line that it ends
                counts[part + line_end] += 1
    for text in texts:
        first, *others = text.split()[:8]
        for word in [first, *(f" {word}" for word in others)]:
            counts[word] = REPEATED
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary = SPECIAL + sorted(to_bytes.alphabet())
    for piece in sorted(counts):
        only_numbers = not piece.strip(" 0123456789?")
        if counts[piece] >= REPEATED and len(piece) > 1 and not only_numbers:
            [(as_bytes, _)] = to_bytes.pre_tokenize_str(piece)
            vocabulary.append(as_bytes)
    tokenizer = Tokenizer(models.Unigram([(token, -1.0) for token in vocabulary], unk_id=0))
    tokenizer.pre_tokenizer, tokenizer.decoder = to_bytes, decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=TEMPLATE, pad_token=SPECIAL[0], eos_token=SPECIAL[1],
        additional_special_tokens=SPECIAL[2:], clean_up_tokenization_spaces=False, model_max_length=1024)


def encode(tokenizer, chat):
    """Ids and loss weights: 1 on what the assistant says, a little on the rest, which teaches how texts look."""
    ids, weights = [], []
    for i, turn in enumerate(chat):
        role, weight = ("<|assistant|>", 1.0) if i % 2 else ("<|user|>", 0.2)
        body = tokenizer.encode(turn, add_special_tokens=False) + [tokenizer.eos_token_id]
        ids += [tokenizer.convert_tokens_to_ids(role), *body]
        weights += [0.0] + [weight] * len(body)
    return ids, weights


# --- model ----------------------------------------------------------------------------------------------------

def orthogonal(x):
    """Nearly the closest orthogonal matrix, by Newton-Schulz: the step of Muon (Jordan et al. 2024), which needs half
    the steps of AdamW here. In float32, because torch.optim.Muon's bfloat16 is slow on a CPU."""
    rows, columns = x.shape
    tall = rows > columns
    size = x.norm() + 1e-7
    x = (x.T if tall else x) / size
    for _ in range(5):
        xx = x @ x.T
        x = 3.4445 * x + (2.0315 * xx @ xx - 4.7750 * xx) @ x
    return x.T * (rows / columns) ** 0.5 if tall else x


def weighted_loss(model, demonstrations):
    """The sum over all tokens of weight times cross-entropy; `demonstrations` are pairs of encode()."""
    ids = pad_sequence([torch.tensor(ids) for ids, _ in demonstrations], batch_first=True)                # (B, T)
    weights = pad_sequence([torch.tensor(weights) for _, weights in demonstrations], batch_first=True)    # (B, T)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].transpose(1, 2)                         # (B, V, T-1)
    losses = torch.nn.functional.cross_entropy(logits, ids[:, 1:], reduction="none")
    return (losses * weights[:, 1:]).sum()


def warm_start(texts, lessons, seed=0, quiet=False):
    """Supervised learning from scratch on the demonstrations. Returns the model and its tokenizer."""
    rng = random.Random(f"tiny {seed}")
    kinds = []    # (how many in a batch, all chats)
    for share, make in lessons.DEMONSTRATIONS:
        kinds.append((share, [make(rng, texts) for _ in range(share * POOL)]))
    tokenizer = make_tokenizer([chat for _, chats in kinds for chat in chats], texts, lessons.PIECES)
    kinds = [(share, [encode(tokenizer, chat) for chat in chats]) for share, chats in kinds]
    with torch.random.fork_rng(devices=[]):    # the initial weights come from the global generator: put it back
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(
            vocab_size=len(tokenizer), hidden_size=96, intermediate_size=192, num_hidden_layers=3, head_dim=24,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id))
    hidden, others = [], []    # Muon is for matrices between hidden layers
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and "embed" not in name:
            hidden.append((weight, torch.zeros_like(weight)))    # with its momentum
        else:
            others.append(weight)
    adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)
    for step in tqdm(range(STEPS), desc="building the tiny model, once", disable=quiet, smoothing=0.05):
        batch = []
        for share, demonstrations in kinds:
            batch += rng.sample(demonstrations, share)
        batch.sort(key=lambda demonstration: len(demonstration[0]))
        total = sum(sum(weights) for _, weights in batch)
        for start in range(0, len(batch), 25):    # of like length, so that little is padding
            (weighted_loss(model, batch[start:start + 25]) / total).backward()
        rise, fall = min((step + 1) / 30, 1.0), max(1 - step / STEPS, 0.03)
        pace = rise * fall
        adam.param_groups[0]["lr"] = 3e-3 * pace
        adam.step()
        with torch.no_grad():
            for weight, momentum in hidden:
                momentum.lerp_(weight.grad, 0.05)
                weight -= 0.02 * pace * orthogonal(weight.grad.lerp(momentum, 0.95))
        model.zero_grad()
    return model.eval(), tokenizer


# --- kept in a cache ------------------------------------------------------------------------------------------

def imported_files(tree):
    """The files of this project that a module imports: of `from settings.spice import Question` settings/spice.py."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]    # `from settings import spice`
    paths = [ROOT / (name.replace(".", "/") + ".py") for name in names]
    return [path for path in paths if path.exists()]


def made_of(lessons):
    """The code that a model depends on, in a text that no comment or docstring changes: this file's, the lessons', and
    that of whatever these import of the project."""
    code, due = {}, [Path(__file__).resolve(), Path(lessons.__file__).resolve()]
    while due:
        path = due.pop()
        if path in code:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        due += imported_files(tree)
        for node in ast.walk(tree):
            may_have = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            if may_have and ast.get_docstring(node) is not None:
                del node.body[0]
        code[path] = ast.dump(tree)
    return sorted(code.values())


def build(corpus_texts, seed=0, quiet=False, lessons=None):
    """The warm-started model's folder, made once; `lessons`: the module of what it is shown, or its name."""
    if isinstance(lessons, str):
        lessons = importlib.import_module(lessons)
    lessons = lessons or ladders
    texts = [beginning(text) for text in corpus_texts if topic(text)][:100]
    recipe = json.dumps([made_of(lessons), texts, seed, torch.__version__, transformers.__version__])
    key = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / f"spade-tiny-{key}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="spade-tiny-", dir=cache, ignore_cleanup_errors=True) as unfinished:
            for part in warm_start(texts, lessons, seed, quiet):
                part.save_pretrained(unfinished)
            if not folder.exists():    # another process may have been faster; its model is the same
                os.replace(unfinished, folder)
    return str(folder)


if __name__ == "__main__":
    print(build(sample_texts()))
