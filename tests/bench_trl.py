"""One GRPO step, ours or TRL's, in a process of its own: the program behind `python tests/bench.py trl`.

    python tests/bench_trl.py ours step FOLDER          python tests/bench_trl.py trl learner FOLDER

Both sides have the same random Qwen3, prompts, numbers of generations and lengths, transformers' generate, float32, no
gradient checkpointing, one thread. `step` samples and learns; `learner` learns from samples that are fixed, so that the
gradient norms must agree too. It prints JSON: seconds of processor time of the best step, the process's peak memory,
the gradient's norm.

What the comparison is not: on a CPU, TRL puts the head on the prompt's tokens too, which it avoids on a GPU.
"""
import json
import os
import random
import sys
import time
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

VOCABULARY, STEPS = 151936, 2                      # the first step warms up
PROMPTS, GENERATIONS, TOKENS, BATCH = 4, 8, 64, 16
SHAPE = dict(vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=4,
             num_key_value_heads=2, head_dim=64, initializer_range=0.02)
TEXTS = [f"Question {i}. " + "How far is it from here to there? " * (3 + i) for i in range(PROMPTS)]


def peak() -> float:
    """GB that this process has ever held."""
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e6


def fixed_samples(tokenizer) -> list[tuple[list[int], list[int], float]]:
    """Prompt ids, completion ids and advantage of every sample, a function of nothing."""
    rng = random.Random(0)
    samples = []
    for text in TEXTS:
        prompt = tokenizer.encode(text, add_special_tokens=False)
        for i in range(GENERATIONS):
            completion = [rng.randrange(1000, VOCABULARY) for _ in range(TOKENS)]
            samples.append((prompt, completion, 1.0 if i % 2 else -1.0))
    return samples


def ours(what: str, folder: str) -> dict:
    import grpo
    import tests.tiny_model as tiny_model
    policy = tiny_model.policy(folder, context=1024, lr=1e-6)
    policy.engine.eos_ids = policy.engine.config["eos_token_id"] = [VOCABULARY - 1]
    fixed = fixed_samples(policy.tokenizer)
    longest = max(len(prompt) for prompt, _, _ in fixed) + TOKENS
    samples = known_logprobs(policy, fixed) if what == "learner" else []
    times, norm = [], 0.0
    for _ in range(STEPS):
        start = time.process_time()
        if what == "step":
            replies = policy.sample([prompt for prompt, _, _ in fixed], TOKENS, 1.0)
            samples = [(prompt, reply.ids, reply.logprobs, advantage)
                       for (prompt, _, advantage), reply in zip(fixed, replies)]
        learning = time.process_time()
        batch = [grpo.Sample(prompt + ids, [0] * len(prompt) + [1] * len(ids), logprobs, "agent", str(prompt),
                             0.0, advantage) for prompt, ids, logprobs, advantage in samples]
        metrics = grpo.update(policy, batch, tokens_per_microbatch=BATCH * longest)
        times.append((learning - start, time.process_time() - learning))
        norm = norm or metrics["loss/grad_norm"]
    return {"times": times, "norm": norm}


@torch.no_grad()
def known_logprobs(policy, samples):
    """The model's own log-probs in the place of the sampler's: the importance weight is 1, as without a sampler."""
    found = []
    for prompt, ids, advantage in samples:
        row = torch.tensor([prompt + ids])
        mask = torch.tensor([[0] * len(prompt) + [1] * len(ids)]).bool()
        found.append((prompt, ids, policy.net(row, torch.ones_like(row), mask, 1.0)[0].tolist(), advantage))
    return found


def trl(what: str, folder: str) -> dict:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    count = PROMPTS * GENERATIONS
    config = GRPOConfig(
        output_dir=folder + "-trl", per_device_train_batch_size=BATCH, gradient_accumulation_steps=count // BATCH,
        num_generations=GENERATIONS, max_completion_length=TOKENS, max_steps=STEPS, learning_rate=1e-6,
        lr_scheduler_type="constant", weight_decay=0.1, temperature=1.0, beta=0.0, loss_type="grpo",
        scale_rewards="none", epsilon_high=0.28, gradient_checkpointing=False, bf16=False, use_cpu=True,
        save_strategy="no", report_to=[], logging_steps=1, disable_tqdm=True, shuffle_dataset=False)
    times, sampled, began = [], [], []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            began.append(time.process_time())

        def on_step_end(self, *_, **__):
            total = time.process_time() - began[-1]
            times.append((sampled[-1], total - sampled[-1]))

    def reward(completions, **_):
        return [1.0 if i % 2 else -1.0 for i in range(len(completions))]
    trainer = GRPOTrainer(model, reward, config, Dataset.from_dict({"prompt": TEXTS}), processing_class=tokenizer,
                          callbacks=[Clock()])
    generate = trainer._generate_and_score_completions

    def fixed(_):
        samples = fixed_samples(tokenizer)
        widest = max(len(prompt) for prompt, _, _ in samples)
        pad = [widest - len(prompt) for prompt, _, _ in samples]
        return {"prompt_ids": torch.tensor([[0] * n + prompt for n, (prompt, _, _) in zip(pad, samples)]),
                "prompt_mask": torch.tensor([[0] * n + [1] * len(prompt) for n, (prompt, _, _) in zip(pad, samples)]),
                "completion_ids": torch.tensor([ids for _, ids, _ in samples]),
                "completion_mask": torch.ones(count, TOKENS, dtype=torch.long),
                "advantages": torch.tensor([advantage for *_, advantage in samples]),
                "num_items_in_batch": torch.tensor(count * TOKENS)}

    def timed(inputs):
        start = time.process_time()
        made = generate(inputs) if what == "step" else fixed(inputs)
        sampled.append(time.process_time() - start)
        return made
    trainer._generate_and_score_completions = timed
    trainer.train()
    norm = next(row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row)
    return {"times": times, "norm": norm}


def main():
    side, what, folder = sys.argv[1:]
    if side == "build":
        import tests.tiny_model as tiny_model
        return tiny_model.build(folder, **SHAPE)
    torch.set_num_threads(1)
    found = {"ours": ours, "trl": trl}[side](what, folder)
    sample, learn = (min(column) for column in zip(*found["times"][1:]))
    print(json.dumps({"sample": sample, "learn": learn, "peak": peak(), "norm": found["norm"]}))


if __name__ == "__main__":
    main()
