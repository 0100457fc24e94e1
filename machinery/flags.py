"""Every flag of train.py.

A file of its own because the defaults *are* the documentation: each flag has its unit, its default and where the number
comes from.

    python train.py --help        every flag
"""
import argparse
import contextlib
import dataclasses
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import regret
from machinery.documents import SAMPLE, from_hub
from machinery.recipes import RECIPES, SIZES, print_recipes


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
                        "questions (corpus: SPICE), or problems of the rlve-gym package")
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
    thinking: bool = flag(False, "let a hybrid model think (SPADE's 8B): passes enable_thinking to the chat template; "
                         "where that cuts earlier thoughts, each turn is a sample of its own")
    prompt: str = flag("full", "of games: full, with all rules, the document and the memory, or short, three worked "
                       "examples and 30 words of the document, for models of about a billion parameters",
                       ["full", "short"])
    brief: bool = flag(False, "one-line prompts without the rules, for a model trained on them (tiny)")
    # the Designer
    corpus: str = flag(SAMPLE, "what to ground programs in: JSON lines with a `text` field, a folder of .txt and .md "
                       "files, or a data set of the hub, such as the paper's "
                       "spade-rl/SPADE-Grounding-Corpus-Games-15K")
    no_corpus: bool = flag(False, "no documents; the prompt keeps everything else (SPADE's code changes more)")
    challenger_format: str = flag("mixed", "questions of --setting corpus: multiple choice, free form, or as the "
                                  "Challenger likes (SPICE: both)", ["mcq", "free", "mixed"])
    document_words: int = flag(6000, "words of a document that are shown (SPADE: 6,000 games, 4,000 tools)")
    memory: int = flag(200, "environments remembered; 0 for none (SPADE: 200)")
    memory_select: str = flag("regret", "how remembered examples are chosen: by regret (SPADE), by the reward "
                              "that was paid, or at random", ["regret", "reward", "random"])
    memory_share: float = flag(1.0, "share of the Designer's prompts that show remembered examples")
    designer_reward: str = flag("blend", "what an environment earns; see python regret.py")
    attempts: int = flag(5, "programs ordered for a place of the set until one is valid, each with a fresh document; "
                         "all of them are learnt from (SPADE: 5)")
    copies: str = flag("keep", "programs equal to another of the set: kept, as in the papers, or refused",
                       ["keep", "refuse"])
    invalid_reward: str = flag(str(regret.INVALID), "of a refused program (SPICE: -0.1; SPADE's code drops it, but "
                               "what is dropped is never unlearnt); 'staged' rises from there by how far a program "
                               "came, and stays below 0 (in no paper)")
    band: str = flag("0.4,0.6", "mean returns that the rewards blend and solve-rate call just right (SPADE: 0.4,0.6; "
                     "its 4B run 0.2,0.4 later)")
    designer_weight: float = flag(0.0, "factor on the Designer's advantages; 0 means min(agent plays / programs x k, "
                                  "50) as in SPADE's code (SPICE: 1)")
    compact_filter: bool = flag(False, "leave plays that were cut off out of the loss; their return of 0 stays in the "
                                "mean of their group (SPADE: tools)")
    judge: bool = flag(False, "ask the Designer whether each world of tools can be won; all but a clear yes is refused "
                       "(SPADE has such a judge; an unreadable answer passes there)")
    freeze_designer: bool = flag(False, "the Designer writes but does not learn (SPADE's ablation)")
    designer_model: str = flag("", "another model, frozen, in the Designer's place: a folder or hub id, or URL#NAME of "
                               "an OpenAI-compatible server, with its key in $OPENAI_API_KEY")
    pool: str = flag("", "a folder of environment files, such as another run's environments/, or a data set of the "
                     "hub, such as the paper's spade-rl/SPADE-Environment-Pool-GPT5.5-Games: played as they are, "
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
    agent_advantage="center", designer_weight=1.0, memory=96, memory_share=0.75,
    gradient_checkpointing=False)


def is_laptop_model(name: str) -> bool:
    """'tiny', or the folder in which laptop.tiny.build() keeps it."""
    return re.fullmatch(r"tiny|spade-tiny-\w{12}", Path(name).name) is not None


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


def arguments(settings: dict) -> argparse.ArgumentParser:
    """The parser; every flag's help ends with its default."""
    parser = argparse.ArgumentParser(
        prog="train.py", description="SPADE: one model designs environments, plays them, and learns both.",
        formatter_class=argparse.RawTextHelpFormatter, argument_default=argparse.SUPPRESS)
    parser.add_argument("--recipes", action="store_true", help="list the recipes and stop")
    known = {"setting": list(settings), "designer_reward": sorted(regret.DESIGNER_REWARDS)}   # what a fork may add to
    for f in dataclasses.fields(Args):
        tiny = f"; tiny: {TINY[f.name]!r}" if f.name in TINY else ""
        text = f"{f.metadata['help']} [default: {f.default!r}{tiny}]"
        option = "--" + f.name.replace("_", "-")
        if isinstance(f.default, bool):
            action = "store_true" if f.name.startswith("no_") else argparse.BooleanOptionalAction
            parser.add_argument(option, action=action, help=text)
        else:
            choices = known.get(f.name, f.metadata["choices"])
            parser.add_argument(option, type=type(f.default), choices=choices, help=text)
    return parser


def parse(argv=None, *, settings: dict) -> Args:
    """Defaults, then the sizes of `--model tiny`, then the recipe, then what the command line says. `settings`: name ->
    Setting, of which each may have a word on the flags that concern it.
    """
    parser = arguments(settings)
    given = vars(parser.parse_args(argv))
    if given.pop("recipes", False):
        print_recipes()
        raise SystemExit
    if "resume" in given:
        return resumed(parser, **given)
    recipe = given.get("recipe", "spade")
    if recipe not in RECIPES:
        parser.error(f"unknown recipe '{recipe}'; choose one of {', '.join(RECIPES)}")
    model = given.get("model", RECIPES[recipe].get("model", Args.model))
    small = TINY if is_laptop_model(model) else {}
    overrides = {k: v for k, v in RECIPES[recipe].items() if not (small and k in SIZES)}
    args = Args(**{**small, **overrides, **given})
    setting = settings[args.setting]
    if small and "heldout" not in given:
        args.heldout = setting.heldout
    if small and args.designer_model and "designer_model" not in given:
        args.designer_model = args.model   # no better one at hand: its starting weights stay the Designer
    args.freeze_designer |= bool(args.designer_model)
    try:
        setting.check_flags(args, set(given))
        check(args, setting, set(given), bool(small))
    except ValueError as error:
        parser.error(str(error))
    return args


def number(text: str, problem: str) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(float(text)):
            return float(text)
    raise ValueError(f"{problem}, not '{text}'")


def band_of(args: Args) -> tuple[float, float]:
    """--band as two numbers."""
    low, _, high = args.band.partition(",")
    band = tuple(number(end, "--band wants two numbers such as 0.4,0.6") for end in (low, high))
    if band[0] > band[1]:
        raise ValueError(f"--band {args.band}: the lower end first")
    return band


def check(args: Args, setting, given: set[str], small: bool) -> None:
    """What no setting knows better; raises ValueError with one line."""
    if args.pool == "tiny" and not small:
        raise ValueError("give --pool DIR: a folder of environment files, such as runs/NAME/environments")
    if not (args.pool in ("", "tiny", "tiny-oracle") or from_hub(args.pool) or any(Path(args.pool).glob("*.py"))):
        raise ValueError(f"--pool {args.pool} holds no .py files")
    if args.judge and setting.judge is None:
        raise ValueError(f"--setting {setting.name} has no --judge")
    skills = [skill.strip() for skill in args.skills.split(",")] if args.skills else []
    for skill in skills:
        if skill not in setting.skills:
            raise ValueError(f"unknown skill '{skill}': the setting {setting.name} has {', '.join(setting.skills)}")
    for name in ("rollouts", "k", "n_envs", "plays", "skills_per_set", "attempts"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    band_of(args)
    if args.invalid_reward != "staged":
        number(args.invalid_reward, "--invalid-reward wants a number or 'staged'")
    designed = not args.pool and setting.given is None
    if designed and regret.DESIGNER_REWARDS[args.designer_reward].needs_hint and args.hint_plays < 1:
        if "hint_plays" in given:
            raise ValueError(f"--designer-reward {args.designer_reward} says nothing without hinted plays: raise "
                             f"--hint-plays, or choose another reward")
        args.hint_plays = args.plays   # the recipe's own reward needs none
    if args.plays == 1:
        print("with --plays 1 no environment has a spread of returns: the Agent learns nothing")
        if args.designer_reward == "variance" and args.k == 1:
            raise ValueError("the variance of a single play is undefined: raise --plays or --k")
