"""Every row of the papers' tables as SPADE plus a few named differences.

    python train.py --recipes     every recipe and what differs
    python train.py --recipe spice --designer-reward regret     any flag still wins
"""
SIZES = {"rollouts", "n_envs", "document_words", "hint_tokens"}  # of recipes; the laptop model keeps its own

SPICE = dict(setting="corpus", designer_reward="variance", k=1, memory=0, temperature=1.0, max_turns=1,
             agent_advantage="center", loss_reduction="constant", designer_weight=1.0, hint_plays=0,
             rollouts=640, n_envs=64, plays=8, document_words=4500, attempts=1, copies="keep")
# name: (its row in SPADE, arXiv 2608.19197, or SPICE, arXiv 2510.24684; the recipe it starts from; what differs)
ROWS = {
    "spade": ("SPADE, Tables 1-3", None, dict()),
    "spade-4b": ("SPADE, Table 5: 4B, later", "spade", dict(
        model="Qwen3-4B-Instruct-2507", band="0.2,0.4", context=49152)),
    "spade-8b": ("SPADE, Table 5: 8B", "spade", dict(
        model="Qwen3-8B", kl=0.005, design_tokens=20000, thinking=True)),
    "spade-tools": ("SPADE, Table 2", "spade", dict(
        setting="tools", k=8, kl=0.005, skills_per_set=6, document_words=4000, hint_tokens=2048, judge=True,
        compact_filter=True)),
    "spade-regret": ("SPADE, Eq. 3 alone", "spade", dict(designer_reward="regret")),
    "learning-potential": ("SPADE, Table 3", "spade", dict(designer_reward="learning-potential")),
    "solve-rate": ("SPADE's code, no number", "spade", dict(designer_reward="solve-rate")),
    "no-corpus": ("SPADE, Table 3", "spade", dict(no_corpus=True)),
    "no-memory": ("SPADE, Table 3", "spade", dict(memory=0)),
    "two-skills": ("SPADE, Table 3", "spade", dict(
        skills="Mathematical Reasoning,Pattern Recognition", skills_per_set=2)),
    "frozen-designer": ("in no table", "spade", dict(freeze_designer=True)),
    "frozen-designer-no-memory": ("SPADE, Table 3", "spade", dict(freeze_designer=True, memory=0)),
    "fixed-designer": ("SPADE, Table 3", "spade", dict(designer_model="https://api.openai.com/v1#gpt-5.5")),
    "fixed-grpo": ("SPADE, Table 1", "spade", dict(pool="tiny", k=1, hint_plays=0)),
    "fixed-rlve": ("SPADE, Table 1", "spade", dict(
        setting="rlve", k=1, hint_plays=0, n_envs=16, temperature=1.0, max_turns=1)),
    "spice": ("SPICE, Tables 1-4", "spade", SPICE),
    "spice-regret": ("in neither paper", "spice", dict(designer_reward="regret", hint_plays=8)),
    "spice-mcq": ("SPICE, task ablation", "spice", dict(challenger_format="mcq")),
    "spice-free": ("SPICE, task ablation", "spice", dict(challenger_format="free")),
    "spice-no-corpus": ("SPICE, Fig. 4", "spice", dict(no_corpus=True)),
    "absolute-zero": ("SPICE, reward ablation", "spice", dict(designer_reward="absolute-zero")),
    "threshold": ("SPICE, reward ablation", "spice", dict(designer_reward="threshold")),
    "r-zero": ("SPICE, reward ablation", "spice", dict(designer_reward="r-zero")),
    "strong-challenger": ("SPICE, Table 1", "spice", dict(designer_model="Qwen3-32B")),
}


def overrides_of(name: str) -> dict:
    """All that differs from the defaults of the flags."""
    _, base, differs = ROWS[name]
    return (overrides_of(base) if base else {}) | differs


RECIPES = {name: overrides_of(name) for name in ROWS}


def print_recipes() -> None:
    print("recipe, its row in SPADE (arXiv 2608.19197) or SPICE (arXiv 2510.24684), and what differs from the "
          "defaults:\n")
    for name, (row, base, differs) in ROWS.items():
        named = [f"{key}={value}" for key, value in differs.items()]
        if base not in (None, "spade"):
            named.insert(0, base)
        print(f"{name:27s}{row:29s} {', '.join(named) or 'nothing'}")
