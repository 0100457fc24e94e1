"""The Reasoning Agent: prompts, actions, and `play()`, one loop for both arms.

What it teaches: a multi-turn rollout whose tokens can be trained on. The context of an episode is one growing list of
ids: the opening prompt, then by turns what the model sampled (mask 1) and the new observation (mask 0). Nothing is
ever tokenised twice, so the ids trained on are the ids sampled. The hinted and the unhinted arm differ in one
argument: same function, same seeds, same budgets; otherwise their difference would not be the value of the hint.

What it leaves out: discounting, intermediate rewards (a return is the last reward of a finished episode), tools
(tools.py), several samples per episode for templates that rewrite earlier turns (policy.py refuses those).
"""
import os
import re
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import designer
from designer import MARGIN, Environment, Setting
from machinery.progress import shown
from sandbox import EnvError, SandboxedEnv, validate


@dataclass
class Job:
    """One play to be made."""
    environment: Environment
    seed: int
    hinted: bool


@dataclass
class Episode:
    """One play. `mask[i]` is 1 exactly on tokens the model sampled, its end-of-turn token included; `logprobs` has
    one entry per such token. `turns` lists (role, text) for people. `ret`, in [-1, 1], is the last reward if the
    environment said `terminated`, else 0. `outcome` is one of
    terminated | truncated (by the environment) | turn_limit | context_limit (or a reply cut short) | env_error.
    """
    environment: Environment
    seed: int
    hinted: bool
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[tuple[str, str]] = field(default_factory=list)
    ret: float = 0.0
    outcome: str = ""
    error: str = ""   # kind and message of the sandbox's EnvError, for outcome env_error


def last_boxed(text: str) -> str | None:
    r"""What the last balanced \boxed{...} holds, or None. The last, because reasoning may box its guesses.

    One pass with a stack: hostile text with 20,000 open boxes must not cost 20,000 passes.
    """
    boxes = {match.end() - 1 for match in re.finditer(r"\\boxed\s*\{", text)}
    stack, last = [], None   # positions of open braces; the span of the box that began last
    for brace in re.finditer(r"[{}]", text):
        if brace.group() == "{":
            stack.append(brace.start())
        elif stack:
            start = stack.pop()
            if start in boxes and (last is None or start > last[0]):
                last = start, brace.start()
    return None if last is None else text[last[0] + 1:last[1]]


def extract_action(reply: str) -> str:
    r"""The action for step(): the last balanced \boxed{...}, boxed again; without a box, the stripped text.

    r"\boxed{2} no, \boxed{open {3}}" -> r"\boxed{open {3}}";   "  go north " -> "go north"
    """
    content = last_boxed(reply)
    return reply.strip() if content is None else "\\boxed{" + content.strip() + "}"


def agent_messages(observation: str, info: dict, hint: str, brief: bool) -> tuple[list[dict], None]:
    """The opening of a play, and no tools."""
    if brief:
        return [{"role": "user", "content": observation + (f"\nhint: {hint}" if hint else "")}], None
    shown = observation + (f"\n\nHINT: {hint}" if hint else "")
    return [{"role": "user", "content":
             f"You are playing a text game and want to win it.\n\n{shown}\n\nThink step by step, then give your next "
             f"action inside \\boxed{{}}. One action per turn."}], None


def observation_messages(observation: str, info: dict) -> list[dict]:
    return [{"role": "user", "content": observation}]


GAMES = Setting(
    name="games", skills=designer.SKILLS, design_messages=designer.design_messages,
    parse_design=designer.parse_game, validate=lambda box, environment: validate(box, environment.code),
    hint_messages=designer.hint_messages,
    open=lambda box, environment: SandboxedEnv(box, environment.code, checked=True, budget=30),
    agent_messages=agent_messages, observation_messages=observation_messages, parse_action=extract_action)


def play(policy, box, setting: Setting, jobs: list[Job], *, brief: bool, temperature: float, max_turns: int = 25,
         max_new_tokens: int = 8192, context: int = 32768, progress=None) -> list[Episode]:
    """Plays all jobs at once and returns their episodes in the order of the jobs.

    No barrier: whenever a reply is there, its environment steps in a thread and the next turn is submitted, while
    other episodes still decode. With an engine that answers all that waits at once the order of events, and so
    every sampled token, is repeatable. `progress` is called with each episode that is over.
    """
    episodes = [Episode(job.environment, job.seed, job.hinted) for job in jobs]
    worlds = [None] * len(jobs)

    # In threads: only the environment. In this thread: text, tokens and the engine.

    def begin(i):
        worlds[i] = setting.open(box, jobs[i].environment)
        return worlds[i].reset(jobs[i].seed)

    def advance(i):
        return worlds[i].step(setting.parse_action(episodes[i].turns[-1][1]))

    def finish(i, outcome, error=""):
        episodes[i].outcome, episodes[i].error = outcome, error
        if worlds[i] is not None:
            worlds[i].close()
        if progress is not None:
            progress(episodes[i])

    def request(i, messages, ids):
        """Appends the new turn and asks for the reply, if the context has room for one."""
        episode = episodes[i]
        episode.turns += [(m["role"], m["content"]) for m in messages]
        room = context - len(episode.ids) - len(ids)
        if room < min(MARGIN, max_new_tokens):
            return finish(i, "context_limit")   # a huge observation never reaches the learner
        episode.ids = episode.ids + ids
        episode.mask += [0] * len(ids)
        policy.engine.submit(i, episode.ids, min(max_new_tokens, room), temperature)

    def observe(i, future):
        """What the environment of episode i has just answered becomes the next turn, or the end."""
        episode = episodes[i]
        try:
            result = future.result()
        except EnvError as error:
            return finish(i, "env_error", f"{error.kind}: {error}")
        if len(result) == 2:   # reset
            hint = episode.environment.hint if episode.hinted else ""
            messages, tools = setting.agent_messages(*result, hint, brief)
            return request(i, messages, policy.prompt_ids(messages, tools))
        observation, reward, terminated, truncated, info = result
        messages = setting.observation_messages(observation, info)
        if terminated or truncated:
            episode.turns += [(m["role"], m["content"]) for m in messages]
            episode.ret = max(-1.0, min(1.0, reward)) if terminated else 0.0
            return finish(i, "terminated" if terminated else "truncated")
        if sum(role == "assistant" for role, _ in episode.turns) >= max_turns:
            return finish(i, "turn_limit")
        request(i, messages, policy.turn_ids(messages))

    def record(i, reply):
        episode = episodes[i]
        episode.ids = episode.ids + reply.ids
        episode.mask += [1] * len(reply.ids)
        episode.logprobs += reply.logprobs
        episode.turns.append(("assistant", reply.text))

    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        running = {pool.submit(begin, i): i for i in range(len(jobs))}
        while running or policy.engine.busy():
            if policy.engine.busy():
                for i, reply in policy.engine.collect():
                    record(i, reply)
                    if reply.finished:
                        running[pool.submit(advance, i)] = i
                    else:
                        finish(i, "context_limit")
            if not policy.engine.busy() and running:
                wait(running, return_when=FIRST_COMPLETED if policy.engine.streams else ALL_COMPLETED)
            for future in [f for f in running if f.done()]:
                observe(running.pop(future), future)
    policy.engine.done()
    return episodes


def play_shown(what: str, policy, box, setting: Setting, jobs: list[Job], **limits) -> list[Episode]:
    """`play()` with a progress bar, once it takes longer than a few seconds."""
    with shown(what, len(jobs), engine=policy.engine) as advance:
        return play(policy, box, setting, jobs, progress=lambda _: advance(), **limits)
