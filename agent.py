"""The Reasoning Agent: prompts, actions, and `play()`, one loop for both arms.

What it teaches: a multi-turn rollout whose tokens can be trained on. The context of an episode is one growing list of
ids: the opening prompt, then by turns what the model sampled (mask 1) and the new observation (mask 0). Nothing is
ever tokenised twice, so the ids trained on are the ids sampled. A chat template that cuts the thoughts of earlier turns
leaves nothing to append to: there every turn has a context of its own, the whole conversation as it is shown by then.
The hinted and the unhinted arm differ in one argument: same function, same seeds, same budgets; otherwise their
difference would not be the value of the hint.

What it leaves out: discounting, intermediate rewards (a return is the last reward of a finished episode), tools
(settings/tools.py).

Try it:  python train.py --show-every 1        prints a program and a play of it in every rollout
"""
import os
import re
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

import designer
from designer import MARGIN
from machinery import short_prompts
from machinery.progress import shown
from machinery.records import Environment
from sandbox import EnvError, Game, validate
from settings.setting import Setting


@dataclass
class Job:
    """One play to be made."""
    environment: Environment
    seed: int
    hinted: bool


@dataclass
class Piece:
    """One context of the model, with what it sampled there. `mask[i]` is 1 exactly on tokens the model sampled, its
    end-of-turn token included; `logprobs` has one entry per such token.
    """
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass
class Episode:
    """One play. `pieces` is what can be trained on: one that grew turn by turn, or one a turn if the chat template
    rewrites earlier turns; none where nothing was asked for. `turns` is the conversation as (role, text).
    `ret`, in [-1, 1], is the last reward if the environment said `terminated`, else 0. `outcome` is one of
    terminated | truncated (by the environment) | turn_limit | context_limit (or a reply cut short) | env_error.
    """
    environment: Environment
    seed: int
    hinted: bool
    pieces: list[Piece] = field(default_factory=list)
    turns: list[tuple[str, str]] = field(default_factory=list)
    ret: float = 0.0
    outcome: str = ""
    error: str = ""   # kind and message of the sandbox's EnvError, for outcome env_error

    @property
    def logprobs(self) -> list[float]:
        """One entry per token that was sampled in this play."""
        return [logprob for piece in self.pieces for logprob in piece.logprobs]


# without braces: a number, a command, or a letter that ends there
BOX = re.compile(r"\\(?:boxed|f(?:rame)?box)\s*(?:(?:\[[^][{}]*\]\s*){1,2}(?=\{))?"
                 r"(\{|[+-]?\d+(?:[.,/]\d+)*|(?!\\f?box)\\[A-Za-z]+(?:\{[^{}]*\})*|[A-Za-z](?=\s*(?:[$.,;)\\\n]|\Z)))")


def box_spans(text: str) -> dict[int, int]:
    """Where the content of each box begins: where it ends, or -1 if it never does; in the order they begin.

    One pass with a stack: hostile text with 20,000 open boxes must not cost 20,000 passes.
    """
    spans = {}
    for box in BOX.finditer(text):
        if box[1] == "{":
            spans[box.end()] = -1
        else:
            spans[box.start(1)] = box.end(1)
    stack = []   # where the contents of open braces begin
    for brace in re.finditer(r"\\[\\{}]|[{}]", text):   # \{ and \} are no braces, but text
        if brace[0] == "{":
            stack.append(brace.end())
        elif brace[0] == "}" and stack:
            start = stack.pop()
            if start in spans:
                spans[start] = brace.start()
    return spans


def last_boxed(text: str) -> str | None:
    r"""What the \boxed{...} or \fbox{...} holds that begins last; None if there is none, or if it never ends.

    The last, because reasoning may box its guesses: one that was cut off takes none of them back.
    """
    spans = box_spans(text)
    start = max(spans, default=0)
    return text[start:spans[start]] if spans.get(start, -1) >= 0 else None


def acted(reply: str) -> str:
    """What a reply says outside its thoughts. A thought may be opened by the prompt, or never be closed."""
    return re.sub(r"<think>.*?(?:</think>|\Z)", "", reply, flags=re.S).rpartition("</think>")[2]


def extract_action(reply: str) -> str:
    r"""The action for step(): the last \boxed{...}, boxed again; without one, the stripped text. No thought acts.

    r"\boxed{2} no, \boxed{open {3}}" -> r"\boxed{open {3}}";   "  go north " -> "go north"
    A last box that never ends is text, and what was boxed before it is cut off: programs look for boxes, too.
    """
    said = acted(reply)
    content = last_boxed(said)
    if content is not None:
        return "\\boxed{" + content.strip() + "}"
    guesses = max(box_spans(said).values(), default=-1)   # where the last of them ends
    return said[guesses + 1:].strip()


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


def for_run(setting: Setting, args, policy) -> Setting:
    """A program that takes more turns than there are is not sound; and --prompt short."""
    if args.prompt == "short" and not args.brief:
        setting = replace(setting, design_messages=short_prompts.design_messages,
                          hint_messages=short_prompts.hint_messages, agent_messages=short_prompts.agent_messages)
    return replace(setting, validate=lambda box, environment: validate(box, environment.code, args.max_turns))


GAMES = Setting(
    name="games", skills=designer.SKILLS, design_messages=designer.design_messages,
    parse_design=designer.parse_game, validate=lambda box, environment: validate(box, environment.code),
    hint_messages=designer.hint_messages,
    open=lambda box, environment: Game(box, environment.code, checked=True, budget=30),   # s of all turns
    agent_messages=agent_messages, observation_messages=observation_messages, parse_action=extract_action,
    heldout="tiny", for_run=for_run)


def play(policy, box, setting: Setting, jobs: list[Job], *, brief: bool, temperature: float, max_turns: int = 25,
         max_new_tokens: int = 8192, context: int = 32768, progress=None) -> list[Episode]:
    """Plays all jobs at once and returns their episodes in the order of the jobs.

    No barrier: whenever a reply is there, its environment steps in a thread and the next turn is submitted, while
    other episodes still decode. With an engine that answers all that waits at once the order of events, and so
    every sampled token, is repeatable. `progress` is called with each episode that is over.
    """
    episodes = [Episode(job.environment, job.seed, job.hinted) for job in jobs]
    worlds = [None] * len(jobs)
    tools = [None] * len(jobs)

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

    def request(i, messages):
        """Shows the new turn and asks for the reply, if the context has room for one."""
        episode = episodes[i]
        episode.turns += [(m["role"], m["content"]) for m in messages]
        if policy.rewrites or not episode.pieces:
            piece = Piece()
            ids = policy.prompt_ids([{"role": role, "content": text} for role, text in episode.turns], tools[i])
        else:
            piece = episode.pieces[-1]
            ids = policy.turn_ids(messages)
        room = context - len(piece.ids) - len(ids)
        if room < min(MARGIN, max_new_tokens):
            return finish(i, "context_limit")   # a huge observation never reaches the learner
        if not piece.ids:
            episode.pieces.append(piece)
        piece.ids = piece.ids + ids
        piece.mask += [0] * len(ids)
        policy.engine.submit(i, piece.ids, min(max_new_tokens, room), temperature)

    def observe(i, future):
        """What the environment of episode i has just answered becomes the next turn, or the end."""
        episode = episodes[i]
        try:
            result = future.result()
        except EnvError as error:
            return finish(i, "env_error", f"{error.kind}: {error}")
        if len(result) == 2:   # reset
            hint = episode.environment.hint if episode.hinted else ""
            messages, tools[i] = setting.agent_messages(*result, hint, brief)
            return request(i, messages)
        observation, reward, terminated, truncated, info = result
        messages = setting.observation_messages(observation, info)
        if terminated or truncated:
            episode.turns += [(m["role"], m["content"]) for m in messages]
            episode.ret = max(-1.0, min(1.0, reward)) if terminated else 0.0
            return finish(i, "terminated" if terminated else "truncated")
        if sum(role == "assistant" for role, _ in episode.turns) >= max_turns:
            return finish(i, "turn_limit")
        request(i, messages)

    def record(i, reply):
        piece = episodes[i].pieces[-1]
        piece.ids = piece.ids + reply.ids
        piece.mask += [1] * len(reply.ids)
        piece.logprobs += reply.logprobs
        episodes[i].turns.append(("assistant", reply.text))

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


def play_shown(what: str, policy, box, setting: Setting, jobs: list[Job], args) -> list[Episode]:
    """`play()` as a run's flags say, with a progress bar once it takes longer than a few seconds."""
    with shown(what, len(jobs), engine=policy.engine) as advance:
        return play(policy, box, setting, jobs, brief=args.brief, temperature=args.temperature,
                    max_turns=args.max_turns, max_new_tokens=args.max_tokens, context=args.context,
                    progress=lambda _: advance())
