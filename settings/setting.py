"""What a kind of environment must provide. Games (agent.py) are one, the files beside this one hold the others.

What it teaches: everything in which tools, questions and games differ is a field here, so the loop never asks which one
it runs. A setting of your own is one file that ends in a Setting, and an entry in SETTINGS of train.py.

What it leaves out: defaults for the functions above the line. A kind of environment has to say what it asks for.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:   # these files import this one
    from agent import Episode
    from machinery.flags import Args
    from machinery.policy import Policy
    from machinery.records import Design, Environment, Order
    from machinery.state import State
    from sandbox import Sandbox, SandboxedEnv, Verdict

Messages = list[dict]   # of a chat: {"role": ..., "content": ...}


def as_they_are(args: Args, given: set[str]) -> None:
    """No flag follows from the setting."""


def unchanged(setting: Setting, args: Args, policy: Policy) -> Setting:
    """Nothing depends on the flags or the model."""
    return setting


def everything(args: Args, state: State, plays: list[Episode]) -> list[Episode]:
    """The Agent learns from every play."""
    return plays


@dataclass(frozen=True)
class Setting:
    """One kind of environment. `Refused` and `EnvError` are the errors that its functions may raise."""
    name: str
    skills: dict[str, str]                                    # name -> what it asks of a player
    design_messages: Callable[[Order, bool], Messages]        # (order, brief): the Designer's prompt
    parse_design: Callable[[str, Order], Environment]         # (reply, order); raises Refused
    validate: Callable[[Sandbox, Environment], Verdict]
    hint_messages: Callable[[Environment, bool], Messages] | None   # None: the design brought its hint
    open: Callable[[Sandbox, Environment], SandboxedEnv]      # or anything with reset(seed), step(action), close()
    agent_messages: Callable[[str, dict, str, bool], tuple[Messages, list | None]]
    #                 (first observation, info, hint or "", brief) -> (opening of a play, tools for the chat template)
    observation_messages: Callable[[str, dict], Messages]     # (observation, info): every later turn
    parse_action: Callable[[str], str]                        # (reply) -> the action for step()
    # --- what has a usual answer ---
    prelude: str = ""                    # trusted source that the sandbox loads before the generated program
    orders_per_document: int = 1         # of more than one: they share their document, and with it their baseline
    judge: Callable[[Policy, list[Design], Args], None] | None = None   # refuses what cannot be won (--judge)
    heldout: str = ""                    # the set that the laptop model is measured on before and after a run
    lessons: str = "laptop.ladders"      # the module whose DEMONSTRATIONS the laptop model is taught
    check_flags: Callable[[Args, set[str]], None] = as_they_are
    #                 (flags, names that were given): sets what follows; raises ValueError(one line)
    for_run: Callable[[Setting, Args, Policy], Setting] = unchanged          # what depends on the flags or the model
    given: Callable[[Args, State], list[Environment]] | None = None         # a set that nobody designs
    after_plays: Callable[[Args, State, list[Episode]], None] | None = None  # may relabel returns, or note a level
    learnt_from: Callable[[Args, State, list[Episode]], list[Episode]] = everything
