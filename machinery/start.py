"""What a run needs before its first rollout: the model that learns, the one that designs, the sandbox."""
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from tqdm import tqdm

import sandbox
from machinery.documents import SAMPLE
from machinery.endpoint import Endpoint
from machinery.flags import Args, is_laptop_model
from machinery.loading import resolve, use_vllm
from machinery.policy import Policy
from machinery.run import Run
from machinery.state import State


def sampling(args: Args) -> dict:
    """What learner and frozen Designer have in common."""
    return dict(engine=args.engine, context=args.context, top_p=args.top_p, top_k=args.top_k,
                thinking=args.thinking, tensor_parallel=args.tensor_parallel)


def learner(args: Args, folders: dict[str, str], weights) -> Policy:
    """The policy. `folders`: where a model lies that was made here; `weights`: a checkpoint to go on from, or None."""
    return Policy(folders.get(args.model, args.model), weights, seed=args.seed, lr=args.lr, kl=args.kl,
                  weight_decay=args.weight_decay, gradient_checkpointing=args.gradient_checkpointing,
                  offload=args.offload, sleep=args.sleep, **sampling(args))


def frozen_designer(args: Args, folders: dict[str, str]) -> Endpoint | Policy | None:
    """Another model in the Designer's place, which does not learn: must the Designer be the model that learns?

    URL#NAME is a server; anything else a model that is loaded here, of which only the sampler is kept.
    """
    if not args.designer_model:
        return None
    where = folders.get(args.designer_model, args.designer_model)
    if where.startswith(("http://", "https://")):
        return Endpoint(where)
    if torch.cuda.is_available() and use_vllm(args.engine, True):
        raise SystemExit(f"a GPU that learns has no room for a second vLLM: `vllm serve {resolve(where)}` "
                         f"elsewhere and give --designer-model http://HOST:8000/v1#{resolve(where)}")
    return Policy(where, learns=False, **sampling(args))


def open_sandbox(args: Args, setting) -> sandbox.Sandbox:
    if args.unsafe_sandbox:
        tqdm.write("--unsafe-sandbox: generated programs run in processes that may not be sealed")
    try:
        return sandbox.Sandbox(strict=not args.unsafe_sandbox, prelude=setting.prelude)
    except RuntimeError as error:
        raise SystemExit(str(error)) from error


def note_sample_corpus(args: Args, setting, state: State) -> None:
    """The bundled texts are there to try things; a real run needs more."""
    if args.corpus == SAMPLE and state.corpus and not setting.given and not is_laptop_model(args.model):
        drawn = args.rollouts / args.k * args.n_envs / setting.orders_per_document
        times = drawn / len(state.corpus.texts)
        print(f"the bundled sample of {len(state.corpus.texts)} texts is in use: each will be seen {times:.0f} times "
              f"or more. Others: --corpus FILE, or the paper's, spade-rl/SPADE-Grounding-Corpus-Games-15K")


@contextmanager
def opened(run: Run, args: Args, setting, state: State, made_here: dict[str, str]) -> Iterator[tuple]:
    """(setting for this model, policy, who designs, sandbox), a resumed run just where it was.

    `made_here`: folders of models that were built on this machine, by name.
    """
    note_sample_corpus(args, setting, state)
    weights, saved = run.load() if args.resume else (None, None)
    author = frozen_designer(args, made_here)   # before the policy: what cannot be is said at once
    policy = learner(args, made_here, weights)
    setting = setting.for_run(setting, args, policy)
    with open_sandbox(args, setting) as box:
        if saved:
            policy.load_optimizer(weights)
            state.restore(saved, policy)
            run.forget_after(state.rollout)
        run.write_args(args)   # of a resumed run --rollouts may have been raised
        yield setting, policy, author or policy, box
