"""One environment from order to pay, as plain records.

    Order        the Designer is asked: skill, document, remembered examples
    Design       it answers: a reply, and an Environment (program and hint) or the reason why there is none
    its window   both arms' returns over the k rollouts that its set lives (regret.Window)
    its reward   what the window was worth, once it is closed
    Remembered   what the memory keeps, to show with later orders

Every rank of a run moves these, a checkpoint saves them, and the report is read off them.
"""
from dataclasses import dataclass, field

from machinery.engines import Reply
from machinery.source import normalised
from regret import Window, hint_regret, solved_share


@dataclass
class Environment:
    """A program, and its hint or "". `code` defines a class ...Env with reset(seed) and step(action)."""
    code: str
    hint: str
    skill: str
    setting: str
    document: str
    name: str


@dataclass
class Remembered:
    """What the memory keeps of an environment, and how it fared."""
    name: str
    skill: str
    code: str
    hint: str
    win_rate: float   # share of its unhinted plays, of all k rollouts, that were won
    reward: float
    regret: float
    rollout: int      # in which its window ended


@dataclass
class Order:
    """What the Designer is asked for: a skill, a document ("" without a corpus), and remembered examples."""
    name: str
    skill: str
    group: str   # whose mean reward is its baseline: the skill's, or the document's (settings/spice.py)
    document: str
    good: list[Remembered] = field(default_factory=list)
    bad: list[Remembered] = field(default_factory=list)
    place: int = 0     # in its set
    attempt: int = 1   # 2 and more: what was ordered for the same place before was refused


@dataclass
class Design:
    """What became of an order, for as long as its set lives: the reply, the environment or the reason why there is
    none, the returns of its plays, what it was paid.
    """
    order: Order
    prompt: list[int]
    reply: Reply | None                     # None: the environment was given, nobody designed it
    code: str = ""
    environment: Environment | None = None
    reason: str = ""                        # of a refused program; of one that holds: why its hint was refused
    solutions: list[list[str]] = field(default_factory=list)   # what wins on the checked seeds, where it says so
    window: Window | None = None            # None when it is made: an empty one of the order's skill
    reward: float = 0.0

    def __post_init__(self):
        self.window = self.window or Window(self.order.skill)

    @property
    def name(self) -> str:
        return self.order.name

    @property
    def played(self) -> bool:
        """Was it played to an end at least once, and never hung? Else its window says nothing of how hard it is."""
        to_an_end = len(self.window.ended().unhinted)
        return self.environment is not None and to_an_end > 0 and not self.window.hung

    @property
    def copy(self) -> bool:
        return self.reason.startswith("duplicate")

    def remembered(self, rollout: int) -> Remembered:
        window = self.window
        return Remembered(self.name, self.order.skill, self.code, self.environment.hint,
                          solved_share(window.unhinted), self.reward,
                          hint_regret(window.hinted, window.first), rollout)


def refuse_copies(designs: list[Design], gather=list) -> None:
    """Of equal programs only the first is kept; with ranks.gather, of all ranks', whatever the number of GPUs."""
    # only programs that hold: on some noise the tokenizer takes quadratic time
    mine = {d.name: normalised(d.code) for d in designs if d.environment}
    # what an earlier attempt brought stays: it has a hint already, and its place would be empty again
    programs = [(d.order.attempt, d.name, mine[d.name]) for d in designs if d.environment]
    first = {}
    for _, name, program in sorted(gather(programs)):
        first.setdefault(program, name)
    for d in designs:
        if d.environment and first[mine[d.name]] != d.name:
            d.environment, d.reason = None, "duplicate: the same program twice in one set"
