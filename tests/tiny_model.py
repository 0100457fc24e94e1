"""Tiny random chat models for the tests: made in a temporary folder, nothing is downloaded.

    folder = tiny_model.build(tmp_path / "m")                                a Qwen3 that speaks ChatML
    folder = tiny_model.build(tmp_path / "m", "llama", tiny_model.LLAMA3)    a Llama that speaks Llama-3
    folder = tiny_model.build(tmp_path / "m", "qwen3_moe")                   a mixture of 4 experts
    policy = tiny_model.policy(folder, lr=1e-3)                              policy.Policy on it, for the CPU

The tokenizer has one token per byte and one per control token, so any text can be written and a text of n ASCII
characters has n tokens. The weights are random but not small: the model's distribution is far from uniform.
"""
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

CHATML = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

LLAMA3 = """\
{{- '<|begin_of_text|>' }}
{%- for m in messages %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content.strip() + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

# As hybrid thinkers do: thoughts of earlier turns are cut, and with enable_thinking=False the reply is opened by an
# empty thought that is not there when the same reply has become history.
HYBRID = """\
{%- for m in messages %}
{%- set said = m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content %}
{{- '<|im_start|>' + m.role + '\n' + said + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""

# Always opens a thought and always cuts it from history.
REWRITES = """\
{%- for m in messages %}
{%- set said = m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content %}
{{- '<|im_start|>' + m.role + '\n' + said + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"""

# ChatML with tools: schemas, calls and results as Hermes and Qwen show them.
HERMES = """\
{%- if tools %}{{ '<|im_start|>system\n<tools>' }}{% for t in tools %}{{ '\n' + t | tojson }}{% endfor %}
{{- '\n</tools><|im_end|>\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content }}
{%- for c in m.tool_calls or [] %}{{ '\n<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' }}
{{- c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# Control tokens end replies only; a user's turn is marked by words.
LLAMA2 = """\
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ m.content + '</s>' }}{% endif %}
{%- endfor %}"""

# control tokens: (end of turn, padding, others)
CONTROL = {CHATML: ("<|im_end|>", "<|endoftext|>", ["<|im_start|>"]),
           HERMES: ("<|im_end|>", "<|endoftext|>", ["<|im_start|>"]),
           HYBRID: ("<|im_end|>", "<|endoftext|>", ["<|im_start|>"]),
           REWRITES: ("<|im_end|>", "<|endoftext|>", ["<|im_start|>"]),
           LLAMA3: ("<|eot_id|>", "<|end_of_text|>",
                    ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"])}


def tokenizer(template: str = CHATML) -> PreTrainedTokenizerFast:
    end, pad, others = CONTROL[template]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    if template == LLAMA3:   # control tokens without a role of their own, as in the real one
        inner.add_special_tokens(others)
        others = []
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=end, pad_token=pad,
                                   additional_special_tokens=others, chat_template=template,
                                   clean_up_tokenization_spaces=False, model_max_length=2048)


def word_tokenizer(spaces: str, template: str = LLAMA2, swallows: bool = False) -> PreTrainedTokenizerFast:
    """A token per character, where spaces count as part of what follows, as in sentencepiece. `spaces` says before
    which texts one is put: "first" (only where a text begins), "always" (also behind control tokens), "never", or
    "normaliser" (as "always", in older files). With `swallows` the end token takes the white space behind it.
    """
    letters = ["<unk>", "▁", "\n", *(chr(i) for i in range(33, 127))]
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[], unk_token="<unk>"))
    if spaces == "normaliser":
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=spaces, split=False)
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=AddedToken("</s>", rstrip=swallows, special=True),
                                   pad_token="<pad>", unk_token="<unk>", chat_template=template)


def build(folder, family: str = "qwen3", template: str = CHATML, seed: int = 0, tied: bool = True,
          short: bool = False, words: PreTrainedTokenizerFast | None = None, **more) -> str:
    """Writes a random model (0.1 million parameters) and its tokenizer into `folder`; returns the folder.

    A random model seldom finds its end token. With `short` a tenth of all tokens ends a reply. `words` is another
    tokenizer; `more` goes into the model's configuration.
    """
    folder = Path(folder)
    words = words or tokenizer(template)
    pad, end = words.pad_token_id, words.eos_token_id
    sizes = dict(vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                 num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=2048,
                 tie_word_embeddings=tied, initializer_range=0.15, bos_token_id=None, eos_token_id=end,
                 pad_token_id=pad)
    if family == "qwen3_moe":
        sizes |= dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True)
    sizes |= more
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes))
    model.generation_config.eos_token_id = [end, pad]   # as the real ones have it: two ways to end
    if short:
        model.generation_config.eos_token_id += [i for i in range(256) if not words.decode([i]).isprintable()][:26]
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


def policy(folder, **options):
    from machinery.policy import Policy
    return Policy(folder, **{"engine": "transformers", "context": 512} | options)
