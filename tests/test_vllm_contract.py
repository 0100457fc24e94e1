"""machinery/engines.py against the source of vLLM's GPU build, which is read and never imported: no GPU is needed.

    pip download --no-deps "vllm==0.33.*" -d wheels
    VLLM_WHEEL=wheels/vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl python -m pytest tests/test_vllm_contract.py

The calls are taken from engines.py itself, so a new argument there is checked without a new line here. What vLLM *does*
with them is held by the few facts that our engine rests on; where one of these tests fails with a new vLLM, read
that place in vLLM before its version is added to VLLM_KNOWN.
"""
import ast
import os
import re
import zipfile
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from machinery.engines import VLLM_KNOWN

WHEEL = os.environ.get("VLLM_WHEEL", "")
ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(not WHEEL, reason="VLLM_WHEEL names no wheel of vLLM")
LLM, ENGINE, WORKER = "vllm/entrypoints/llm.py", "vllm/v1/engine/llm_engine.py", "vllm/v1/worker/gpu_worker.py"
RUNNERS = "vllm/v1/worker/gpu/model_runner.py", "vllm/v1/worker/gpu_model_runner.py"   # the default and the older one
RELOAD = "vllm/model_executor/model_loader/reload/"


# --- reading ---

@cache
def text(path):
    with zipfile.ZipFile(WHEEL) as wheel:
        return wheel.read(path).decode()


@cache
def tree(path):
    return ast.parse(text(path))


@cache
def ours():
    """The source of our VLLMEngine."""
    return find(ast.parse((ROOT / "machinery" / "engines.py").read_text()), "VLLMEngine")


def find(where, name):
    """The class or function of this name; an overloaded one is the last, which has the body."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    found = [node for node in ast.walk(where) if isinstance(node, kinds) and node.name == name]
    assert found, f"vLLM has no {name} any more"
    return found[-1]


def calls(where, start):
    """Our calls of functions whose name, written out, starts like this: {name: [call, ...]}."""
    found = {}
    for node in ast.walk(where):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(start):
            found.setdefault(ast.unparse(node.func), []).append(node)
    assert found, f"engines.py does not call {start}... any more: this test is out of date"
    return found


def fields(cls):
    return {node.target.id for node in cls.body if isinstance(node, ast.AnnAssign)}


def choices(path, name):
    """The strings of `name = Literal[...]`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return set(ast.literal_eval(node.value.slice))
    raise AssertionError(f"{path} has no {name}")


def refuses(function, call):
    """Why a method does not take this call, or nothing."""
    arguments = function.args
    places = [a.arg for a in arguments.args][1:]    # without self
    named = {k.arg for k in call.keywords if k.arg}
    if len(call.args) > len(places) and not arguments.vararg:
        return f"{function.name} takes {len(places)} arguments by place"
    unknown = named - {*places, *(a.arg for a in arguments.kwonlyargs)}
    if unknown and not arguments.kwarg:
        return f"{function.name} does not take {sorted(unknown)}"
    required = places[:len(places) - len(arguments.defaults)]
    missing = set(required) - set(places[:len(call.args)]) - named
    return f"{function.name} also wants {sorted(missing)}" if missing else ""


def keyword(call, name):
    return next(k.value for k in call.keywords if k.arg == name)


def strings(node):
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is str}


def in_order(source, *pieces):
    """Do these pieces of source follow each other?"""
    places = [source.find(piece) for piece in pieces]
    return -1 not in places and places == sorted(places)


# --- versions ---

def test_the_wheel_is_of_a_version_that_is_called_known():
    version = Path(WHEEL).name.split("-")[1]
    assert version.startswith(tuple(known + "." for known in VLLM_KNOWN))


def test_its_own_requirements_and_ours_can_be_met_together():
    name = next(n for n in zipfile.ZipFile(WHEEL).namelist() if n.endswith(".dist-info/METADATA"))
    theirs = [Requirement(line) for line in re.findall(r"^Requires-Dist: ([^;\n]+)$", text(name), re.MULTILINE)]
    mine = {Requirement(line).name: Requirement(line).specifier
            for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")}
    shared = [r for r in theirs if r.name in mine]
    assert {"torch", "transformers"} <= {r.name for r in shared}
    for requirement in shared:
        for bound in requirement.specifier:   # its lowest version, and the one it pins, must be allowed by ours
            if bound.operator in (">=", "=="):
                assert mine[requirement.name].contains(Version(bound.version)), requirement


# --- arguments ---

def test_llm_takes_what_we_pass():
    [[call]] = calls(ours(), "LLM").values()
    named = {a.arg for a in find(find(tree(LLM), "LLM"), "__init__").args.kwonlyargs}
    engine = fields(find(tree("vllm/engine/arg_utils.py"), "EngineArgs"))
    asked = {k.arg for k in call.keywords}
    assert len(asked) > 8 and asked <= named | engine, asked - named - engine
    config = "vllm/config/model.py"
    assert strings(keyword(call, "dtype")) <= choices(config, "ModelDType")
    assert strings(keyword(call, "logprobs_mode")) <= choices(config, "LogprobsMode")
    backends = strings(find(tree("vllm/v1/executor/abstract.py"), "get_class"))
    assert strings(keyword(call, "distributed_executor_backend")) <= backends


def test_sampling_params_take_what_we_pass():
    path = "vllm/sampling_params.py"
    [[fixed]] = calls(ours(), "dict").values()
    [[each]] = calls(ours(), "self.params").values()
    asked = {k.arg for k in fixed.keywords + each.keywords if k.arg}
    known = fields(find(tree(path), "SamplingParams"))
    assert len(asked) > 8 and asked <= known, asked - known
    kind = ast.unparse(keyword(fixed, "output_kind")).split(".")
    assert kind[0] == "RequestOutputKind"
    assert kind[1] in {ast.unparse(n.targets[0]) for n in find(tree(path), kind[0]).body if isinstance(n, ast.Assign)}


def test_methods_take_our_calls():
    engine, llm = find(tree(ENGINE), "LLMEngine"), find(tree(LLM), "LLM")
    for name, found in calls(ours(), "self.llm.").items():
        owner = engine if ".llm_engine." in name else llm
        for call in found:
            assert not refuses(find(owner, name.rpartition(".")[2]), call), f"{name}, line {call.lineno} of the class"


def test_environment_variables_are_known():
    names = {n for n in strings(ours()) if n.startswith("VLLM_")}
    assert names and names <= strings(tree("vllm/envs.py")), names


def test_a_prompt_of_ids_looks_like_ours():
    [[call]] = calls(ours(), "self.llm.llm_engine.add_request").values()
    prompt = call.args[1]
    theirs = find(tree("vllm/inputs/engine.py"), "TokensInput")
    said = dict(zip((key.value for key in prompt.keys), prompt.values))
    needed = {n.target.id for n in theirs.body if isinstance(n, ast.AnnAssign) and "NotRequired" not in ast.unparse(n)}
    assert set(said) == needed
    assert ast.unparse(next(n.annotation for n in theirs.body if ast.unparse(n).startswith("type:"))) == \
        f"Literal[{said['type'].value!r}]"


# --- what comes back ---

def test_a_step_returns_requests_with_what_we_read():
    assert "list[RequestOutput" in ast.unparse(find(find(tree(ENGINE), "LLMEngine"), "step").returns)
    outputs = "vllm/outputs.py"
    body = ast.unparse(find(find(tree(outputs), "RequestOutput"), "__init__"))
    for name in ("request_id", "finished", "outputs"):
        assert f"self.{name} = {name}" in body
    assert {"token_ids", "logprobs"} <= fields(find(tree(outputs), "CompletionOutput"))
    assert "logprob" in fields(find(tree("vllm/logprobs.py"), "Logprob"))
    # the name that we gave a request, not the one that the engine makes of it
    assert "request_id=external_req_id" in text("vllm/v1/engine/output_processor.py")


def test_log_probs_are_those_after_the_temperature():
    assert "processed_logprobs" in text("vllm/config/model.py").partition("PROCESSED_LOGPROBS_MODES")[2][:120]
    sampler = ast.unparse(find(tree("vllm/v1/worker/gpu/sample/sampler.py"), "__call__"))
    assert in_order(sampler, "self.sample(", "self.logprobs_mode in PROCESSED_LOGPROBS_MODES",
                    "logits = processed_logits", "compute_topk_scores(")
    older = ast.unparse(find(find(tree("vllm/v1/sample/sampler.py"), "Sampler"), "sample"))
    assert in_order(older, "apply_temperature(", "random_sampled, processed_logprobs")


def test_randomness_comes_from_the_two_global_generators_that_we_seed():
    """Of the default runner: a seed for each request from numpy's. Of the older one: torch's."""
    assert "np.random.randint" in ast.unparse(find(tree("vllm/v1/worker/gpu/sample/states.py"), "add_request"))
    assert "exponential_()" in ast.unparse(find(tree("vllm/v1/sample/ops/topk_topp_sampler.py"), "random_sample"))
    seeded = ast.unparse(find(ours(), "_step"))
    assert "torch.manual_seed(seed)" in seeded and "numpy.random.seed(seed)" in seeded


# --- in one process, with weights given as tensors ---

def test_worker_calls_stay_in_this_process():
    """A generator of tensors cannot be sent to another one."""
    uni = "vllm/v1/executor/uniproc_executor.py"
    assert [ast.unparse(b) for b in find(tree(uni), "ExecutorWithExternalLauncher").bases] == ["UniProcExecutor"]
    assert "run_method(self.driver_worker, method, args, kwargs)" in ast.unparse(
        find(find(tree(uni), "UniProcExecutor"), "collective_rpc"))
    assert "self.engine_core.collective_rpc(" in ast.unparse(
        find(find(tree("vllm/v1/engine/core_client.py"), "InprocClient"), "collective_rpc"))


def test_reload_weights_takes_an_iterator_and_reads_it_once():
    [[call]] = calls(ours(), "self.llm.collective_rpc").values()
    method, options = call.args[0].value, keyword(call, "kwargs")
    names = {key.value for key in options.keys}
    passed_on = find(find(tree(WORKER), "Worker"), method)
    assert passed_on.args.vararg and passed_on.args.kwarg
    for runner in RUNNERS:
        arguments = find(tree(runner), method).args
        known = dict(zip((a.arg for a in arguments.args[1:]), arguments.defaults))
        assert names <= set(known)
        assert ast.unparse(known["is_checkpoint_format"]) == "True"
    body = ast.unparse(find(tree(RELOAD + "inplace.py"), "reload_weights"))
    assert in_order(body, "if is_checkpoint_format:", "initialize_layerwise_reload(model)",
                    "model.load_weights(weights_iterator)", "finalize_layerwise_reload(model, model_config)")


def test_a_reloaded_layer_keeps_its_memory_and_what_is_packed_is_packed_again():
    """CUDA graphs hold addresses; a tied head has no weight of its own in what we send, and keeps the shared one."""
    process = ast.unparse(find(tree(RELOAD + "layerwise.py"), "_layerwise_process"))
    assert in_order(process, "materialize_layer(", "in info.loaded_weights", "process_weights_after_loading(layer)",
                    "_copy_and_restore_kernel_tensors(")
    assert "param.data.copy_(" in ast.unparse(find(tree(RELOAD + "layerwise.py"), "_copy_and_restore_kernel_tensors"))
    rest = ast.unparse(find(tree(RELOAD + "layerwise.py"), "finalize_layerwise_processing"))
    assert in_order(rest, "info.load_numel <= 0", "_place_kernel_tensors(layer, info)")
    head = find(tree("vllm/model_executor/layers/vocab_parallel_embedding.py"), "UnquantizedEmbeddingMethod")
    assert "layer.weight = embed_tokens.weight" in ast.unparse(find(head, "tie_weights"))
    # on a CPU it packs the head, which sync() renews; were there more than this one `if`, a GPU's might need it too
    [only] = find(head, "process_weights_after_loading").body
    assert isinstance(only, ast.If) and ast.unparse(only.test) == "current_platform.is_cpu()" and not only.orelse


def test_models_load_the_names_of_checkpoints():
    models = "vllm/model_executor/models/"
    for name in ("qwen3", "qwen3_moe", "llama"):
        body = ast.unparse(find(tree(models + name + ".py"), "load_weights"))
        assert "AutoWeightsLoader" in body or "mapper" in body, name
    dense = strings(find(tree(models + "qwen2.py"), "Qwen2Model"))
    assert {".q_proj", ".k_proj", ".v_proj", ".qkv_proj", ".gate_proj", ".up_proj", ".gate_up_proj"} <= dense
    assert {".q_proj", ".qkv_proj"} <= strings(find(tree(models + "qwen3_moe.py"), "Qwen3MoeModel"))
    experts = find(tree("vllm/model_executor/layers/fused_moe/routed_experts.py"), "RoutedExperts")
    assert {"gate_proj", "down_proj", "up_proj"} <= strings(find(experts, "__init__").args)


def test_experts_are_laid_out_again_by_every_reload():
    """But for a last step that their kernels take at the first load only: on a CPU sync() takes it again, and of those
    that a GPU chooses by itself without quantisation, Triton's has none and FlashInfer's is about quantisation."""
    folder = "vllm/model_executor/layers/fused_moe/"
    body = ast.unparse(find(tree(folder + "unquantized_fused_moe_method.py"), "_setup_kernel"))
    assert in_order(body, "convert_to_unquantized_kernel_format(", "replace_parameter(layer, 'w13_weight', w13_new",
                    "if not is_weight_update:", "fused_experts.process_weights_after_loading(layer)")
    step = "process_weights_after_loading"
    assert "def " + step not in text(folder + "experts/triton_moe.py")
    [only] = find(tree(folder + "experts/flashinfer_cutlass_moe.py"), step).body
    assert isinstance(only, ast.If) and "nvfp4" in ast.unparse(only.test)
    assert "def " + step not in text(folder + "experts/trtllm_bf16_moe.py")
    assert "def " + step in text(folder + "experts/cpu_moe.py") and step in (ROOT / "machinery/engines.py").read_text()


# --- sleep ---

def test_sleep_and_waking_in_two_parts():
    tags = set().union(*(strings(call) for call in calls(ours(), "self.llm.wake_up")["self.llm.wake_up"]))
    line = re.search(r"^SLEEP_TAGS = (.+)$", text("vllm/v1/executor/abstract.py"), re.MULTILINE)
    assert tags == strings(ast.parse(line.group(1)))
    loaded, cached = (ast.unparse(find(find(tree(WORKER), "Worker"), name))
                      for name in ("load_model", "initialize_from_config"))
    assert "tag='weights'" in loaded and "tag='kv_cache'" in cached
    awake = ast.unparse(find(find(tree("vllm/v1/engine/core.py"), "EngineCore"), "wake_up"))
    assert in_order(awake, "self.model_executor.wake_up(tags)", "not self.model_executor.is_sleeping",
                    "self.resume_scheduler()")     # after the second part it goes on by itself


def test_unfinished_requests_tell_how_many_tokens_they_have():
    """What a progress bar counts."""
    assert "output_processor.request_states" in ast.unparse(ours())
    processor = tree("vllm/v1/engine/output_processor.py")
    assert "self.request_states: dict[str, RequestState] = {}" in ast.unparse(find(processor, "OutputProcessor"))
    assert "self.detokenizer = detokenizer" in ast.unparse(find(processor, "RequestState"))
    assert find(tree("vllm/v1/engine/detokenizer.py"), "num_output_tokens")
