"""memory.py and loading.py: what fits and what is refused before anything is loaded; progress.py: what one sees."""
import io
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import tests.tiny_model as tiny_model
from machinery import memory, progress
from machinery.loading import check_weights, count_parameters

torch.set_num_threads(1)
CPU = torch.device("cpu")
MANY, ONE_AND_A_HALF = 494_000_000, 1_540_000_000   # parameters
# Qwen2.5-Coder-0.5B: 2 x 24 layers x 2 heads x 64 numbers of keys and values a token
QWEN = SimpleNamespace(num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, hidden_size=896,
                       intermediate_size=4864)
QWEN.get_text_config = lambda: QWEN


@pytest.fixture
def machine(monkeypatch):
    def of(free, bfloat16=True):
        monkeypatch.setattr(memory, "free_bytes", lambda: free)
        monkeypatch.setattr(memory, "has_bfloat16", lambda: bfloat16)
    return of


def plan(size, context=2048, learns=True, vllm=False, **more):
    return memory.plan(QWEN, size, CPU, context, learns=learns, vllm=vllm, **more)


def test_the_samplers_room_on_a_cpu(machine):
    machine(24e9)
    shared = plan(MANY)                                     # generate() on the learner's own weights
    assert shared.dtype == torch.float32
    assert shared.batch == int(4e9 / (24_576 + 3 * 4864 * 4))   # keys and values, and three tensors of a layer
    beside = plan(MANY, vllm=True)
    assert (beside.dtype, beside.cache, beside.step) == (torch.float32, 2e9, 512)
    alone = plan(MANY, learns=False)
    assert (alone.dtype, alone.batch) == (torch.bfloat16, 65536)
    machine(24e9, bfloat16=False)
    assert plan(MANY, learns=False, vllm=True).dtype == torch.float32
    assert plan(MANY, context=200_000, vllm=True).cache == 200_256 * 24_576      # one episode must fit


def test_a_small_model_is_left_as_it_is(machine):
    machine(0)
    room = plan(100_000, context=256)
    assert (room.dtype, room.batch, room.step, room.cache) == (torch.float32, 65536, None, 2e9)
    assert plan(100_000, context=256, learns=False).dtype == torch.float32


@pytest.mark.parametrize("free, size, options, fits", [
    (13.9e9, MANY, {}, False), (14.0e9, MANY, {}, True),                             # 7.9 + 4 + 2
    (15.8e9, MANY, {"kl": 0.1}, False), (15.9e9, MANY, {"kl": 0.1}, True),           # 2 more
    (17.8e9, MANY, {"vllm": True}, False), (17.9e9, MANY, {"vllm": True}, True),     # 2 and 2 more than the first
    (24e9, ONE_AND_A_HALF, {}, False), (24e9, ONE_AND_A_HALF, {"learns": False}, True),
    (7.0e9, ONE_AND_A_HALF, {"learns": False, "vllm": True}, False),                 # 3.1 + 2 + 2
    (7.1e9, ONE_AND_A_HALF, {"learns": False, "vllm": True}, True),
])
def test_what_does_not_fit_into_memory_is_one_line(machine, free, size, options, fits):
    machine(free)
    if fits:
        assert plan(size, **options)
        return
    with pytest.raises(SystemExit, match="B parameters need .* are free") as refusal:
        plan(size, **options)
    assert "\n" not in str(refusal.value)


def test_the_line_names_every_part(machine):
    machine(20e9)
    with pytest.raises(SystemExit, match="1.54B parameters need 38.8 GB of memory and 20.0 GB are free: the learner "
                                         "takes 24.6 GB, the sampler 8.2 GB, activations and the program itself 6 GB"):
        plan(ONE_AND_A_HALF, vllm=True)


def test_the_samplers_share_of_a_gpu(monkeypatch):
    class Properties:
        total_memory = 141e9
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: Properties)
    gpu, four_billion = torch.device("cuda"), 4_000_000_000

    def share(size, tensor_parallel=1, offload=False, sleep=False, **more):
        return memory.sampler_share(size, gpu, tensor_parallel, offload, sleep, **more)
    assert share(four_billion) == pytest.approx((141 - 64 - 16) / 141)
    assert share(four_billion, sleep=True) == pytest.approx((141 - 48 - 16) / 141)
    assert share(four_billion, offload=True) == pytest.approx(125 / 141)
    assert share(four_billion, kl=.1) == pytest.approx((141 - 80 - 16) / 141)
    assert share(four_billion, learns=False) == share(four_billion, sleep=True, learns=False) == 0.9
    with pytest.raises(SystemExit, match="of each the learner takes 144 GB"):   # its peak, though vLLM sleeps then
        share(8_000_000_000, sleep=True)
    with pytest.raises(SystemExit, match="30.0B parameters do not fit on 1 GPUs of 141 GB.*--offload"):
        share(30_000_000_000)
    with pytest.raises(SystemExit, match="the sampler needs 142 GB"):
        share(70_000_000_000, learns=False)
    room = memory.plan(QWEN, four_billion, gpu, 2048, learns=True, vllm=True)
    assert room == memory.Room(torch.bfloat16, share(four_billion))


def test_what_the_processor_and_the_system_say(monkeypatch):
    files = {"/proc/cpuinfo": "flags : fpu avx512_bf16 amx_tile", "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 5 kB",
             "/sys/fs/cgroup/memory.max": "max\n", "/sys/fs/cgroup/memory.current": "1000\n"}

    class FakePath(str):
        def exists(self):
            return str(self) in files

        def read_text(self):
            return files[str(self)]
    monkeypatch.setattr(memory, "Path", FakePath)
    monkeypatch.setattr(memory.platform, "machine", lambda: "x86_64")
    assert memory.has_bfloat16() and memory.free_bytes() == 5120
    files["/proc/cpuinfo"], files["/sys/fs/cgroup/memory.max"] = "flags : fpu bf16 avx512f", "4000\n"
    assert not memory.has_bfloat16() and memory.free_bytes() == 3000
    monkeypatch.setattr(memory.platform, "machine", lambda: "aarch64")
    assert memory.has_bfloat16()
    files.clear()
    assert not memory.has_bfloat16() and memory.free_bytes() > 1e9


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_without_weights(tmp_path, tied):
    folder = tiny_model.build(tmp_path / "m", tied=tied)
    expected = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(folder).parameters())
    (tmp_path / "m" / "model.safetensors").unlink()
    assert count_parameters(folder, AutoConfig.from_pretrained(folder)) == expected
    with pytest.raises(SystemExit, match="it holds no weights"):
        check_weights(folder)


def test_a_configuration_of_something_else_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="cannot load the model 'x'"):
        count_parameters("x", AutoConfig.for_model("t5"))


def test_a_file_that_was_cut_short_is_refused(tmp_path):
    folder = tiny_model.build(tmp_path / "m")
    check_weights(folder)
    path = tmp_path / "m" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(SystemExit, match="cannot load the model"):
        check_weights(folder)


def test_only_a_sampler_alone_is_rounded(tmp_path, machine, monkeypatch):
    monkeypatch.setattr(memory, "SMALL", 0)
    machine(24e9)
    folder = tiny_model.build(tmp_path / "m")
    alone = tiny_model.policy(folder, learns=False)
    assert alone.engine.model.dtype == torch.bfloat16 and alone.net is None
    beside = tiny_model.policy(folder)
    assert beside.engine.model is beside.net.model and beside.net.model.dtype == torch.float32
    assert alone.eos_ids == beside.eos_ids
    (tmp_path / "m" / "generation_config.json").unlink()
    assert tiny_model.policy(folder, learns=False).eos_ids == beside.eos_ids[:1]     # what config.json has


def test_beside_vllm_a_sampler_alone_loads_nothing(tmp_path, machine, monkeypatch):
    monkeypatch.setattr(memory, "SMALL", 0)
    monkeypatch.setattr("machinery.policy.use_vllm", lambda asked, cuda: True)
    monkeypatch.setattr("machinery.policy.VLLMEngine", lambda *arguments: arguments)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    machine(24e9)
    policy = tiny_model.policy(tiny_model.build(tmp_path / "m"), learns=False)
    assert policy.net is None and policy.engine[-1].dtype == torch.bfloat16 and policy.engine[-1].cache


# --- progress ---

class Terminal(io.StringIO):
    def isatty(self):
        return False


def watch(monkeypatch, seconds, **options):
    monkeypatch.setattr(progress, "QUIET", 0.1)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.shown("programs", **options) as advance:
        advance(2)
        time.sleep(seconds)
        written = sys.stderr.getvalue()
    return written, sys.stderr.getvalue()


def test_a_bar_moves_while_one_call_works(monkeypatch):
    engine = SimpleNamespace(sampled=10)
    before, after = watch(monkeypatch, 0.7, total=8, engine=engine)
    assert before.count("2/8") >= 2 and "0.0 tokens/s" in before   # what was sampled before does not count
    assert after.endswith("\r")                                    # and it is gone

    class Busy:
        @property
        def sampled(self):
            return int(1000 * time.monotonic())
    before, _ = watch(monkeypatch, 0.5, total=8, engine=Busy())
    rates = [float(part.split(" tokens/s")[0].split(", ")[-1]) for part in before.split("\r") if "tokens/s" in part]
    assert rates and all(950 < rate < 1050 for rate in rates)
    assert "tokens/s" not in watch(monkeypatch, 0.5, total=8, engine=SimpleNamespace(sampled=None))[0]
    assert "programs: 00:00" in watch(monkeypatch, 0.3)[0]         # of unknown length


def test_what_is_over_at_once_shows_nothing(monkeypatch):
    assert watch(monkeypatch, 0.0, total=8) == ("", "")


def test_sampled_tokens_are_counted_as_they_come(tmp_path):
    policy, counts = tiny_model.policy(tiny_model.build(tmp_path / "m", short=True)), []
    note = policy.engine._note

    def spy(tokens):
        counts.append(tokens)
        note(tokens)
    policy.engine._note = spy
    replies = policy.sample([policy.prompt_ids([{"role": "user", "content": "x"}])] * 12, 40, 1.0)
    lengths = [len(reply.ids) for reply in replies]
    assert policy.engine.sampled == sum(lengths)
    assert counts == [sum(n > step for n in lengths) for step in range(max(lengths))]
    assert counts[0] == 12 > counts[-1]
