"""Every flag and every recipe of `train.py`.

A file of its own because the defaults *are* the documentation: each flag has its unit, its default and where
the number comes from, and each row of the papers' tables is SPADE plus a few named differences.

    python train.py --help        every flag
    python train.py --recipes     every recipe and what differs
"""
import argparse
import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path

import regret

HERE = Path(__file__).parents[1]


def flag(default, text: str, choices=None):
    return dataclasses.field(default=default, metadata={"help": text, "choices": choices})


@dataclass
class Args:
    """The paper's values (SPADE 30B games) unless a flag says otherwise."""
    # what runs
    model: str = flag("tiny", "'tiny' (built here, runs on a laptop), a short name (Qwen3-4B means Qwen/Qwen3-4B), a "
                      "hub id, or a folder")
    recipe: str = flag("spade", "a named set of overrides; see --recipes. Any flag still wins over it")
    setting: str = flag("games", "what is played: text games or worlds of tools that the Designer programs, its "
                        "questions (corpus: SPICE), or problems of the rlve-gym package",
                        ["games", "tools", "corpus", "rlve"])
    engine: str = flag("auto", "the sampler; auto is vllm on a GPU where it is installed, else transformers",
                       ["auto", "vllm", "transformers"])
    seed: int = flag(0, "of everything random in the run")
    run_dir: str = flag("", "where the run is written; default runs/<recipe>-<date>")
    resume: str = flag("", "a run folder to go on with, exactly where its last checkpoint was, with the flags it began "
                       "with; --rollouts may be raised, and --designer-model may name another server")
    save_every: int = flag(20, "rollouts between checkpoints; 0 saves at the end only")
    show_every: int = flag(20, "rollouts between printed examples of an environment and a play; 0 never")
    # the loop
    rollouts: int = flag(400, "optimiser steps, one per rollout (SPADE: 400)")
    k: int = flag(4, "rollouts that one set of environments lives; then the Designer learns (SPADE: 4 for games, 8 "
                  "for tools; SPICE: 1)")
    n_envs: int = flag(24, "environments per set (SPADE: 24; SPICE: 8 questions for each of 8 documents)")
    plays: int = flag(16, "plays of each environment per rollout, without hint (SPADE: 16; its code makes 8)")
    hint_plays: int = flag(16, "plays with hint, once per set, on the instances of the first unhinted (SPADE: 16)")
    paired_seeds: bool = flag(True, "both arms play the same instances; SPADE's code draws them apart")
    skills: str = flag("", "comma-separated subset of the setting's skills; default all (two-skills: 2)")
    skills_per_set: int = flag(3, "skills active per set, in turn (SPADE: 3 of 6)")
    # lengths and sampling
    context: int = flag(32768, "tokens of a whole episode or design (SPADE: 32,768)")
    max_turns: int = flag(25, "replies per episode (SPADE: 25)")
    max_tokens: int = flag(8192, "tokens per agent reply (SPADE: 8,192)")
    design_tokens: int = flag(16384, "tokens per program (SPADE: 16,384)")
    hint_tokens: int = flag(4096, "tokens per hint (SPADE: 4,096)")
    temperature: float = flag(0.6, "of both roles (SPADE: 0.6; SPICE: 1.0)")
    hint_temperature: float = flag(0.3, "of the hint writer (SPADE: 0.3)")
    top_p: float = flag(1.0, "nucleus sampling. Below 1 tokens are drawn from another distribution than the one that "
                        "is differentiated: it biases the gradient (SPADE samples with 0.95)")
    top_k: int = flag(0, "0 is off; biases the gradient like --top-p (SPADE samples with 20)")
    thinking: bool = flag(False, "pass enable_thinking to the chat template")
    brief: bool = flag(False, "one-line prompts without the rules, for a model trained on them (tiny)")
    # the Designer
    corpus: str = flag(str(HERE / "corpus" / "sample.jsonl"), "JSON lines with a `text` field to ground programs in")
    no_corpus: bool = flag(False, "no documents; the prompt keeps everything else (SPADE's code changes more)")
    challenger_format: str = flag("mixed", "questions of --setting corpus: multiple choice, free form, or as the "
                                  "Challenger likes (SPICE: both)", ["mcq", "free", "mixed"])
    document_words: int = flag(6000, "words of a document that are shown (SPADE: 6,000 games, 4,000 tools)")
    memory: int = flag(200, "environments remembered; 0 for none (SPADE: 200)")
    memory_select: str = flag("regret", "how remembered examples are chosen: by regret (SPADE), by the reward "
                              "that was paid, or at random", ["regret", "reward", "random"])
    memory_share: float = flag(1.0, "share of the Designer's prompts that show remembered examples")
    designer_reward: str = flag("blend", "what an environment earns; see python regret.py",
                                sorted(regret.DESIGNER_REWARDS))
    invalid_reward: float = flag(regret.INVALID, "of a refused program (SPICE: -0.1); what is dropped is never "
                                 "unlearnt (SPADE's code drops it)")
    designer_weight: float = flag(0.0, "factor on the Designer's advantages; 0 means min(agent samples / designer "
                                  "samples x k, 50) as in SPADE's code (SPICE: 1)")
    judge: bool = flag(False, "ask the Designer whether each world of tools can be won; all but a clear yes is refused "
                       "(SPADE has such a judge; an unreadable answer passes there)")
    freeze_designer: bool = flag(False, "the Designer writes but does not learn (SPADE's ablation)")
    designer_model: str = flag("", "another model, frozen, in the Designer's place: a folder or hub id, or URL#NAME of "
                               "an OpenAI-compatible server, with its key in $OPENAI_API_KEY")
    pool: str = flag("", "a folder of environment files, such as another run's environments/: played as they are, "
                     "nothing is designed; 'tiny' and 'tiny-oracle' are made for the laptop model")
    # the learner
    lr: float = flag(1e-6, "Adam's learning rate, constant (SPADE: 1e-6)")
    weight_decay: float = flag(0.1, "AdamW's (SPADE: 0.1)")
    max_grad_norm: float = flag(1.0, "gradient clipping (SPADE: 1.0)")
    agent_advantage: str = flag("zscore", "per environment: zscore (SPADE) or center (Dr.GRPO, SPICE)",
                                ["zscore", "center"])
    loss_reduction: str = flag("sample", "sample (SPADE), token (DAPO) or constant (Dr.GRPO, SPICE)",
                               ["sample", "token", "constant"])
    clip_low: float = flag(0.2, "the ratio may fall to 1 - this (SPADE: 0.2); of no effect with one step per batch")
    clip_high: float = flag(0.28, "the ratio may rise to 1 + this (SPADE: 0.28); the same")
    tis_cap: float = flag(2.0, "cap of the importance weight between learner and sampler (SPADE: 2)")
    kl: float = flag(0.0, "weight of the KL to the starting weights (SPADE: 0; 0.005 for 8B and tools)")
    tokens_per_microbatch: int = flag(16384, "padded tokens per forward pass, or one longer sample; for memory only")
    gradient_checkpointing: bool = flag(True, "recompute activations in backward: less memory, a third more time")
    offload: bool = flag(False, "keep weights and Adam state in CPU memory between uses (FSDP2)")
    tensor_parallel: int = flag(1, "GPUs per vLLM replica, under torchrun")
    sleep: bool = flag(False, "vLLM gives its memory back while the learner works")
    # safety and measuring
    unsafe_sandbox: bool = flag(False, "run where worker processes cannot be sealed; see python sandbox.py --help")
    heldout: str = flag("", "environments to measure on before and after: a folder, 'tiny' (the laptop model's "
                        "default), or 'tiny-report', which no choice is made on")
    heldout_envs: int = flag(60, "held-out environments")
    heldout_plays: int = flag(16, "plays of each held-out environment")


TINY = dict(  # sizes, and what a model 10,000 times smaller wants: learning rate, temperature, centred advantages
    rollouts=110, k=2, plays=8, hint_plays=8, context=256, max_turns=8, max_tokens=16, design_tokens=96,
    hint_tokens=24, temperature=1.0, hint_temperature=1.0, brief=True, document_words=8, lr=1e-3, weight_decay=0.0,
    agent_advantage="center", designer_weight=1.0, memory=96, memory_share=0.75, heldout="tiny",
    gradient_checkpointing=False)
SIZES = {"rollouts", "n_envs", "document_words", "hint_tokens"}  # of recipes; TINY keeps its own

QUESTIONS = dict(setting="corpus", designer_reward="variance", k=1, memory=0, temperature=1.0, max_turns=1,
                 agent_advantage="center", loss_reduction="constant", designer_weight=1.0, hint_plays=0,
                 rollouts=640, n_envs=64, plays=8, document_words=4500, heldout="")
ROWS = {  # name: (the row of the papers' tables, what differs from SPADE)
    "spade": ("SPADE, Tables 1-3", dict()),
    "spade-tools": ("SPADE, Table 2", dict(setting="tools", k=8, kl=0.005, skills_per_set=6, document_words=4000,
                                           hint_tokens=2048)),
    "spade-regret": ("SPADE, Eq. 3 alone", dict(designer_reward="regret")),
    "learning-potential": ("SPADE, Table 3", dict(designer_reward="learning-potential")),
    "solve-rate": ("SPADE's code, no number", dict(designer_reward="solve-rate")),
    "no-corpus": ("SPADE, Table 3", dict(no_corpus=True)),
    "no-memory": ("SPADE, Table 3", dict(memory=0)),
    "two-skills": ("SPADE, Table 3", dict(skills="Mathematical Reasoning,Pattern Recognition", skills_per_set=2)),
    "frozen-designer": ("in no table", dict(freeze_designer=True)),
    "frozen-designer-no-memory": ("SPADE, Table 3", dict(freeze_designer=True, memory=0)),
    "fixed-designer": ("SPADE, Table 3", dict(designer_model="https://api.openai.com/v1#gpt-5.5")),
    "fixed-grpo": ("SPADE, Table 1", dict(pool="tiny", k=1, hint_plays=0)),
    "fixed-rlve": ("SPADE, Table 1", dict(setting="rlve", k=1, hint_plays=0, n_envs=16, temperature=1.0,
                                          max_turns=1, heldout="")),
    "spice": ("SPICE, Tables 1-4", QUESTIONS),
    "spice-regret": ("in neither paper", QUESTIONS | dict(designer_reward="regret", hint_plays=8)),
    "spice-mcq": ("SPICE, task ablation", QUESTIONS | dict(challenger_format="mcq")),
    "spice-free": ("SPICE, task ablation", QUESTIONS | dict(challenger_format="free")),
    "spice-no-corpus": ("SPICE, Fig. 4", QUESTIONS | dict(no_corpus=True)),
    "absolute-zero": ("SPICE, reward ablation", QUESTIONS | dict(designer_reward="absolute-zero")),
    "threshold": ("SPICE, reward ablation", QUESTIONS | dict(designer_reward="threshold")),
    "r-zero": ("SPICE, reward ablation", QUESTIONS | dict(designer_reward="r-zero")),
    "strong-challenger": ("SPICE, Table 1", QUESTIONS | dict(designer_model="Qwen3-32B")),
}
RECIPES = {name: overrides for name, (_, overrides) in ROWS.items()}


def print_recipes() -> None:
    print("recipe, its row in SPADE (arXiv 2608.19197) or SPICE (arXiv 2510.24684), and what differs from the "
          "defaults:\n")
    for name, (row, overrides) in ROWS.items():
        base = QUESTIONS if overrides.get("setting") == "corpus" and name != "spice" else {}
        named = ["spice"] * bool(base) + [f"{k}={v}" for k, v in overrides.items() if base.get(k) != v]
        print(f"{name:27s}{row:26s}{', '.join(named) or 'nothing'}")


def resumed(parser, resume: str, **given) -> Args:
    """The flags that a run began with. Only --rollouts may be more, and the Designer's server another."""
    path = Path(resume) / "args.json"
    try:
        args = Args(**json.loads(path.read_text(encoding="utf-8")) | {"resume": resume})
    except (OSError, ValueError, TypeError) as error:
        parser.error(f"--resume wants the folder of a run that this version began; {path}: {error}")
    rollouts = given.pop("rollouts", args.rollouts)
    moved = given.get("designer_model", "")
    if "#" in moved and moved.rpartition("#")[2] == args.designer_model.rpartition("#")[2]:   # the same, elsewhere
        args.designer_model = given.pop("designer_model")
    for name, value in [*given.items(), ("rollouts", min(rollouts, args.rollouts))]:
        if value != getattr(args, name):
            parser.error(f"{resume} began with {name} = {getattr(args, name)!r}: a resumed run keeps it, so {value!r} "
                         f"needs a run of its own")
    return dataclasses.replace(args, rollouts=rollouts)


def is_laptop_model(name: str) -> bool:
    """'tiny', or the folder in which tiny.build() keeps it."""
    return re.fullmatch(r"tiny|spade-tiny-\w{12}", Path(name).name) is not None


def parse(argv=None) -> Args:
    """Defaults, then the sizes of `--model tiny`, then the recipe, then what the command line says."""
    parser = argparse.ArgumentParser(
        prog="train.py", description="SPADE: one model designs environments, plays them, and learns both.",
        formatter_class=argparse.RawTextHelpFormatter, argument_default=argparse.SUPPRESS)
    parser.add_argument("--recipes", action="store_true", help="list the recipes and stop")
    for f in dataclasses.fields(Args):
        text = f.metadata["help"] + f" [default: {f.default!r}" + (
            f"; tiny: {TINY[f.name]!r}]" if f.name in TINY else "]")
        option = "--" + f.name.replace("_", "-")
        if isinstance(f.default, bool):
            action = "store_true" if f.name.startswith("no_") else argparse.BooleanOptionalAction
            parser.add_argument(option, action=action, help=text)
        else:
            parser.add_argument(option, type=type(f.default), choices=f.metadata["choices"], help=text)
    given = vars(parser.parse_args(argv))
    if given.pop("recipes", False):
        print_recipes()
        raise SystemExit
    if "resume" in given:
        return resumed(parser, **given)
    recipe = given.get("recipe", "spade")
    if recipe not in RECIPES:
        parser.error(f"unknown recipe '{recipe}'; choose one of {', '.join(RECIPES)}")
    small = TINY if is_laptop_model(given.get("model", "tiny")) else {}
    overrides = {k: v for k, v in RECIPES[recipe].items() if not (small and k in SIZES)}
    args = Args(**{**small, **overrides, **given})
    if small and args.designer_model and "designer_model" not in given:
        args.designer_model = args.model   # no better one at hand: its starting weights stay the Designer
    args.freeze_designer |= bool(args.designer_model)
    if args.pool == "tiny" and not small:
        parser.error("give --pool DIR: a folder of environment files, such as runs/NAME/environments")
    if args.setting in ("tools", "corpus"):
        args.heldout = given.get("heldout", "")   # the laptop model's held-out programs are games
    if args.judge and args.setting != "tools":
        parser.error("--judge is for --setting tools")
    if args.setting == "corpus":
        if args.skills:
            parser.error("--setting corpus has no --skills but a --challenger-format")
        args.skills = args.challenger_format
        both_arms = args.designer_reward in ("regret", "blend")
        if both_arms and "hint_plays" not in given:
            args.hint_plays = args.hint_plays or args.plays   # the recipe spice has none
        if args.n_envs % 8:
            parser.error("--setting corpus asks 8 questions of each document: --n-envs must be a multiple of 8")
        if both_arms and args.no_corpus:
            parser.error(f"for questions the document is the hint: --designer-reward {args.designer_reward} needs one")
    if args.rollouts < 1 or args.k < 1 or args.n_envs < 1 or args.plays < 1 or args.skills_per_set < 1:
        parser.error("--rollouts, --k, --n-envs, --plays and --skills-per-set must be at least 1")
    if args.plays == 1:
        print("with --plays 1 no environment has a spread of returns: the Agent learns nothing")
        if args.designer_reward == "variance" and args.k == 1:
            parser.error("the variance of a single play is undefined: raise --plays or --k")
    return args
