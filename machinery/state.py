"""Everything that a rollout changes besides the weights, and how it becomes JSON and back.

A file of its own because a resumed run is exact only if nothing is missing here.
"""
import random
from dataclasses import asdict

import regret
from designer import Corpus, EnvironmentMemory
from machinery.documents import read_documents
from machinery.engines import Reply
from machinery.records import Design, Environment, Order, Remembered


class State:
    """`designs` are this rank's programs of the current set, with the returns of their plays."""

    def __init__(self, args):
        self.rollout = 0
        self.closed = False     # has the Designer been paid for the current set? Then the next rollout opens a new one
        self.designs: list[Design] = []
        self.corpus = None
        if not args.no_corpus and not args.pool:
            self.corpus = Corpus(read_documents(args.corpus), args.document_words, args.seed)
        self.memory = EnvironmentMemory(args.memory, args.memory_select)
        self.learning_potential = regret.LearningPotential()
        self.levels: dict[str, list[int]] = {}   # difficulties that follow the Agent, where a setting has them (RLVE)
        self.rng = random.Random(f"{args.seed} slots")
        self.heldout_before: dict = {}   # rates before training, see evaluate.heldout_rates

    def note_returns(self, hinted: list, plays: list) -> None:
        """Adds a rollout's plays to the windows of their environments. A play that its program broke counts as
        CRASHED there, whatever the Agent had earned until then; a program that hung is not played again.
        """
        windows = {d.name: d.window for d in self.designs if d.environment}
        for window in windows.values():
            window.by_rollout.append([])
            window.crashed.append(0)
        for episode in hinted + plays:
            window = windows[episode.environment.name]
            if episode.error.startswith("timeout"):
                window.hung = True
            crashed = episode.outcome == "env_error"
            arm = window.hinted if episode.hinted else window.by_rollout[-1]
            arm.append(regret.CRASHED if crashed else episode.ret)
            if crashed and not episode.hinted:
                window.crashed[-1] += 1

    def as_json(self, policy) -> dict:
        return {"rollout": self.rollout, "closed": self.closed, "start": self.heldout_before,
                "designs": [asdict(d) for d in self.designs],
                "corpus": self.corpus.drawn if self.corpus else 0,
                "memory": [asdict(r) for r in self.memory.records],
                "learning_potential": self.learning_potential.state_dict(), "levels": self.levels,
                "rng": self.rng.getstate(), "sampler": policy.rng.getstate()}

    def restore(self, saved: dict, policy) -> None:
        self.rollout, self.closed, self.heldout_before = saved["rollout"], saved["closed"], saved["start"]
        self.designs = [design_of(d) for d in saved["designs"]]
        if self.corpus:
            self.corpus.drawn = saved["corpus"]
        self.memory.records = [Remembered(**r) for r in saved["memory"]]
        self.learning_potential.load_state_dict(saved["learning_potential"])
        self.levels = saved["levels"]
        for rng, (version, numbers, gauss) in ((self.rng, saved["rng"]), (policy.rng, saved["sampler"])):
            rng.setstate((version, tuple(numbers), gauss))


def design_of(d: dict) -> Design:
    """The Design that `as_json` made a dict of."""
    order = d["order"] | {arm: [Remembered(**r) for r in d["order"][arm]] for arm in ("good", "bad")}
    return Design(**d | {"order": Order(**order),
                         "reply": d["reply"] and Reply(**d["reply"]),
                         "environment": d["environment"] and Environment(**d["environment"]),
                         "window": regret.Window(**d["window"])})
