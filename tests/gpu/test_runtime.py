"""Compiled kernels inside torch, Triton's habits and transformers, on a GPU that has kernels. Skipped elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from forward_specs import assert_close
from tiny_models import decoder_sizes

import attn_dsl
from attn_dsl import CallError, UnsupportedError
from attn_dsl.cli import main
from attn_dsl.runtime import random_inputs

CAPABILITY = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
TARGET = {(9, 0): "sm90", (10, 0): "sm100", (10, 3): "sm100"}.get(CAPABILITY or (0, 0), "sm90")
pytestmark = pytest.mark.skipif(CAPABILITY not in ((9, 0), (10, 0), (10, 3)), reason="no GPU that has kernels")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
CAUSAL = attn_dsl.parse(HEAD + "mask = kv_idx <= q_pos", name="causal")
TUNABLE = attn_dsl.parse(
    HEAD + "param window: int in 1.. = 4096\nparam cap: float = 20.0\nparam factor: float = 0.1\n"
    "scale = factor\nmask = 0 <= q_pos - kv_idx < window\nscore = cap * tanh(score / cap)",
    name="tunable",
)
SIZES = {"batch": 2, "seq_q": 300, "seq_k": 300, "heads": 4, "kv_heads": 2, "dim": 64}


def tensors_of(spec: Any, seed: int = 0, **sizes: int) -> dict[str, torch.Tensor]:
    return dict(random_inputs(spec, SIZES | sizes, seed=seed, device="cuda").tensors)


def exact(spec: Any, tensors: dict[str, Any], **params: Any) -> Any:
    return attn_dsl.compile(spec, target="reference-f64")(**tensors, **params, return_lse=True)


@pytest.fixture(scope="module")
def causal() -> Any:
    return attn_dsl.compile(CAUSAL, target=TARGET)


# -- torch ----------------------------------------------------------------------------------------------------------


def test_nothing_is_compiled_for_new_extents_and_values():
    compiled = attn_dsl.compile(TUNABLE, target=TARGET)
    for place, sizes in enumerate([{}, {"batch": 5}, {"seq_q": 129, "seq_k": 700}, {"heads": 8, "kv_heads": 4}]):
        for window, cap, factor in ((1, 5.0, 0.2), (1000, 50.0, 0.05)):
            tensors = tensors_of(TUNABLE, place, **sizes)
            params = {"window": window, "cap": cap, "factor": factor}
            for _ in range(3):  # checked in full, found by its layout, by a shortcut
                found = compiled(**tensors, **params, return_lse=True)
            assert_close(TUNABLE, found, exact(TUNABLE, tensors, **params))
    assert len(compiled.backend.loaded) == 1


def test_a_call_runs_on_the_current_stream(causal):
    """The side stream writes q late; a launch elsewhere would read what was there before."""
    tensors = tensors_of(CAUSAL, 1)
    q, k, v = tensors.values()
    true = exact(CAUSAL, tensors)
    late = torch.zeros_like(q)
    side = torch.cuda.Stream()
    for _ in range(4):  # the first call is checked in full, later ones take shortcuts
        late.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)  # cycles: about 10 ms
            late.copy_(q)
            found = causal(late, k, v, return_lse=True)
        side.synchronize()
        assert_close(CAUSAL, found, true)


def test_captured_graphs_see_new_contents(causal):
    compiled = attn_dsl.compile(TUNABLE, target=TARGET)
    static = tensors_of(TUNABLE, 2)
    causal(*static.values())
    o, lse = compiled(**static, window=70, return_lse=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plain = causal(*static.values())
        again = causal(*static.values())
        compiled(**static, window=70, out=o, lse=lse)
    for seed in (3, 4):
        fresh = tensors_of(TUNABLE, seed)
        for name, tensor in static.items():
            tensor.copy_(fresh[name])
        for output in (plain, again, o, lse):
            output.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert_close(TUNABLE, (o, lse), exact(TUNABLE, fresh, window=70))
        true = causal(*fresh.values())
        assert torch.equal(plain, true)
        assert torch.equal(again, true)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch begins its trees of graphs with an empty one
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_without_a_break(mode):
    """One graph for every length, and inside CUDA graphs of torch's own."""
    compiled = attn_dsl.compile(TUNABLE, target=TARGET)
    count = torch._dynamo.testing.CompileCounterWithBackend("inductor")

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return compiled(q * 2, k, v, window=100) + 1

    torch._dynamo.reset()
    if mode == "default":
        traced = torch.compile(layer, fullgraph=True, dynamic=True, backend=count)
    else:
        traced = torch.compile(layer, fullgraph=True, mode=mode)
    for seed, length in enumerate((300, 300, 300, 411) if mode == "default" else (300, 300, 300, 300)):
        tensors = tensors_of(TUNABLE, seed, seq_q=length, seq_k=length)
        torch.compiler.cudagraph_mark_step_begin()
        found = traced(*tensors.values())
        assert torch.equal(found, layer(*tensors.values()))
    if mode == "default":
        assert count.frame_count == 1


def test_gradients(causal):
    tensors = [t.requires_grad_() for t in tensors_of(CAUSAL, 5, seq_q=70, seq_k=70).values()]
    expected = [t.detach().clone().requires_grad_() for t in tensors]
    weights = torch.randn(2, 70, 4, 64, device="cuda")
    (causal(*tensors).float() * weights).sum().backward()
    (attn_dsl.compile(CAUSAL)(*expected).float() * weights).sum().backward()
    for one, other in zip(tensors, expected, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_threads_share_a_compiled_object():
    """Eight threads, each with a stream of its own, need the first kernel at once."""
    compiled = attn_dsl.compile(TUNABLE, target=TARGET)
    cases = [tensors_of(TUNABLE, seed, batch=1 + seed % 3, seq_q=100 + seed) for seed in range(8)]
    true = [exact(TUNABLE, tensors, window=50) for tensors in cases]
    together = threading.Barrier(8)
    torch.cuda.synchronize()

    def work(place: int) -> list[Any]:
        with torch.cuda.stream(torch.cuda.Stream()):
            together.wait()
            found = [compiled(**cases[(place + step) % 8], window=50, return_lse=True) for step in range(24)]
            torch.cuda.current_stream().synchronize()
        return found

    with ThreadPoolExecutor(8) as threads:
        for place, results in enumerate(threads.map(work, range(8))):
            for step, found in enumerate(results):
                assert_close(TUNABLE, found, true[(place + step) % 8])
    assert len(compiled.backend.loaded) == 1


# -- wrong calls ----------------------------------------------------------------------------------------------------


def test_wrong_calls_after_right_ones(causal):
    """Nothing is written, and the device stays usable."""
    tensors = tensors_of(CAUSAL, 6)
    q, k, v = tensors.values()
    expected = causal(q, k, v)
    for _ in range(3):
        assert torch.equal(causal(q, k, v), expected)
    odd = torch.empty(q.numel() + 1, dtype=q.dtype, device="cuda")[1:].view(q.shape)
    inner = torch.empty(*q.shape, 2, dtype=q.dtype, device="cuda")[..., 0]
    out = torch.full_like(q, 7.0)
    for args, code, message in (
        ((q.cpu(), k.cpu(), v.cpu()), "E282", "runs on CUDA tensors of"),
        ((q, k.cpu(), v), "E273", "k is on cpu, expected cuda:0"),
        ((q.float(), k, v), "E272", "q has dtype f32"),
        ((odd, k, v), "E279", "q starts at an address that is no multiple of 16 bytes"),
        ((q, inner[:, :, :2], v), "E279", "k has stride 2 along dim, expected 1"),
        ((q[:1], k, v), "E271", "axis 'batch' is 1 in q and 2 in k"),
        ((q, k, v[:, :299]), "E271", "axis 'seq_k'"),
    ):
        for buffers in ({}, {"out": out} if code != "E282" else {}):
            with pytest.raises((CallError, UnsupportedError)) as caught:
                causal(*args, **buffers)
            assert caught.value.code == code, caught.value
            assert message in str(caught.value)
    torch.cuda.synchronize()
    assert (out == 7).all()
    assert torch.equal(causal(q, k, v), expected)


def test_kernels_of_another_gpu_are_refused():
    other = "sm90" if TARGET == "sm100" else "sm100"
    compiled = attn_dsl.compile(CAUSAL, target=other)
    with pytest.raises(UnsupportedError) as caught:
        compiled(**tensors_of(CAUSAL))
    assert caught.value.code == "E282"
    assert torch.cuda.get_device_name() in str(caught.value)
    assert f"target='{TARGET}' has kernels for it" in str(caught.value)


# -- Triton's habits ------------------------------------------------------------------------------------------------


def test_launches_as_in_triton(causal):
    tensors = tensors_of(CAUSAL, 7)
    q, k, v = tensors.values()
    kernel = causal.warmup(q, k, v)
    grid = kernel.signature.grid(SIZES)
    true = exact(CAUSAL, tensors)
    for given in (None, grid, grid[:1]):
        o, lse = torch.full_like(q, float("nan")), torch.full((2, 4, 300), float("nan"), device="cuda")
        assert causal[given](q, k, v, o, lse) is kernel
        assert_close(CAUSAL, (o, lse), true)
    with pytest.raises(CallError, match="E324"):
        causal[(grid[0] + 1,)](q, k, v, torch.empty_like(q))
    assert kernel.n_regs > 0
    assert f".entry {kernel.metadata.name}(" in kernel.asm["ptx"]


def test_triton_measures_it(causal, tmp_path):
    testing = pytest.importorskip("triton.testing")
    pytest.importorskip("pandas")
    q, k, v = tensors_of(CAUSAL, 8).values()
    assert 0 < testing.do_bench(lambda: causal(q, k, v), warmup=5, rep=20) < 5  # milliseconds
    assert 0 < testing.do_bench_cudagraph(lambda: causal(q, k, v), rep=20) < 5
    benchmark = testing.Benchmark(
        x_names=["seq"],
        x_vals=[128, 256],
        line_arg="provider",
        line_vals=["attn-dsl"],
        line_names=["attn-dsl"],
        plot_name="causal",
        args={},
    )

    @testing.perf_report(benchmark)
    def measure(seq: int, provider: str) -> float:
        tensors = tensors_of(CAUSAL, seq_q=seq, seq_k=seq)
        assert provider == "attn-dsl"
        return float(testing.do_bench(lambda: causal(*tensors.values()), warmup=2, rep=5))

    table = measure.run(return_df=True, save_path=str(tmp_path))
    assert table["seq"].tolist() == [128, 256]
    assert (table.iloc[:, 1] > 0).all()
    assert (tmp_path / "causal.csv").exists()


def test_the_bench_command(tmp_path, capsys):
    path, chart = tmp_path / "causal.attn", tmp_path / "chart.png"
    path.write_text(HEAD + "mask = kv_idx <= q_pos\n")
    options = ["--device", "cuda", "--target", TARGET, "--seq", "512", "--repeat", "3", "--png", str(chart)]
    shape = ["--shape", "heads=4,kv_heads=2,dim=64,batch=2"]
    assert main(["bench", str(path), *options, *shape, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    found = {entry["name"]: entry for entry in row["contenders"]}
    assert set(found) == {TARGET, "SDPA", "FlexAttention"}
    for name, entry in found.items():
        assert entry["seconds"]["median"] > 0, entry
        assert entry["difference"] is None if name == TARGET else entry["difference"] < 0.02
    assert chart.read_bytes().startswith(b"\x89PNG")


# -- bundles and the cache ------------------------------------------------------------------------------------------

RUN_BUNDLE = """
import sys
sys.modules["cutlass"] = None
import torch, attn_dsl
from attn_dsl.runtime import random_inputs
compiled = attn_dsl.load_bundle(sys.argv[1])
inputs = random_inputs(compiled.spec, {"batch": 2, "seq_q": 300, "seq_k": 300, "heads": 4, "kv_heads": 2, "dim": 64},
                       seed=9, device="cuda")
o, lse = compiled(**inputs.tensors, return_lse=True)
torch.save((o, lse), sys.argv[2])
"""


def test_a_bundle_runs_without_the_compiler(tmp_path):
    path = tmp_path / "causal.attn"
    path.write_text(HEAD + "mask = kv_idx <= q_pos\n")
    bundle = tmp_path / "causal.bundle"
    command = ["compile", str(path), "--target", "sm90,sm100", "--shape", "dim=64", "--out", str(bundle)]
    assert main(command) == 0
    where = os.pathsep.join(part for part in sys.path if part)
    run = [sys.executable, "-c", RUN_BUNDLE, str(bundle), str(tmp_path / "found.pt")]
    subprocess.run(run, env=os.environ | {"PYTHONPATH": where}, check=True)
    found = [value.cuda() for value in torch.load(tmp_path / "found.pt", weights_only=True)]
    assert_close(CAUSAL, found, exact(CAUSAL, tensors_of(CAUSAL, 9)))
    with pytest.raises(UnsupportedError, match="E282"):
        attn_dsl.load_bundle(bundle, target="sm100" if TARGET == "sm90" else "sm90")(**tensors_of(CAUSAL))
    cubin = next(bundle.glob(f"{TARGET}-*/kernel.so"))
    cubin.write_bytes(cubin.read_bytes()[:-1] + b"x")
    with pytest.raises(UnsupportedError, match=r"E320.*kernel.so was changed"):
        attn_dsl.load_bundle(bundle)


# -- transformers ---------------------------------------------------------------------------------------------------


def model_of(family: str) -> tuple[Any, Any, dict[str, float]]:
    """A small random model in f32, its spec, and inputs of the spec that the model does not pass."""
    transformers = pytest.importorskip("transformers")
    sizes = decoder_sizes(head_dim=64, num_attention_heads=8)
    if family == "llama":
        made = transformers.LlamaForCausalLM, transformers.LlamaConfig(**sizes), "llama_causal", {}
    elif family == "gemma2":
        config = transformers.Gemma2Config(
            **sizes, sliding_window=40, query_pre_attn_scalar=64, attn_logit_softcapping=5.0
        )
        made = transformers.Gemma2ForCausalLM, config, "gemma2_local", {"query_scalar": 64.0}
    elif family == "gpt_oss":
        config = transformers.GptOssConfig(**sizes, sliding_window=40, num_local_experts=2, num_experts_per_tok=2)
        made = transformers.GptOssForCausalLM, config, "gpt_oss_local", {}
    else:
        more = {"vocab_size": 64, "hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 2}
        made = transformers.BertModel, transformers.BertConfig(num_attention_heads=4, **more), None, {}
    model_class, config, example, inputs = made
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    for name, parameter in model.named_parameters():
        # projections large enough that attention is far from uniform; norms, biases and sinks get values
        spread = 0.5 if parameter.ndim < 2 else 0.2 if "proj" in name or "attention" in name else 0.05
        parameter.data = torch.randn_like(parameter) * spread
    spec = attn_dsl.parse(HEAD, name="full") if example is None else attn_dsl.load(EXAMPLES / f"{example}.attn")
    return model.cuda(), spec, inputs


def logits(model: Any, implementation: str, **inputs: torch.Tensor) -> torch.Tensor:
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(**inputs)[0].double()


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "bert"])
def test_models_of_transformers(family):
    """In bf16 the kernel is no farther from eager attention in f32 than eager attention in bf16 is."""
    model, spec, inputs = model_of(family)
    from attn_dsl.integrations.transformers import register

    name = f"attn_dsl_gpu_{family}"
    attention = register(name, spec, target=TARGET, inputs=inputs)
    ids = torch.randint(3, 60, (3, 150), generator=torch.Generator().manual_seed(1)).cuda()
    pads = torch.tensor([0, 17, 90], device="cuda")[:, None]
    places = torch.arange(150, device="cuda")[None]
    real = places < 150 - pads if family == "bert" else places >= pads
    padded = {"input_ids": ids, "attention_mask": real.long()}
    true = logits(model, "eager", **padded)[real]
    half = model.bfloat16()
    eager, ours = (logits(half, which, **padded)[real] for which in ("eager", name))
    far = (eager - true).norm() / true.norm()
    assert 1e-4 < far < 0.1, "eager attention in bf16 is a useful yardstick"
    assert (ours - true).norm() / true.norm() < 1.2 * far + 1e-4
    compiled = list(attention._compiled.values())
    assert compiled
    assert all(each.target == TARGET for each in compiled)


@pytest.mark.filterwarnings("default")  # of torch.compile, about code of transformers
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_generate_with_a_static_cache(family, compiled):
    """Every token is the best by eager attention in f32, but for what bf16 rounds away."""
    model, spec, inputs = model_of(family)
    from attn_dsl.integrations.transformers import register

    name = f"attn_dsl_gpu_static_{family}"
    register(name, spec, target=TARGET, inputs=inputs, compare_masks=not compiled)
    ids = torch.randint(3, 60, (2, 50), generator=torch.Generator().manual_seed(2)).cuda()
    real = torch.ones_like(ids)
    real[0, :9] = 0
    half = model.bfloat16()
    half.set_attn_implementation(name)
    torch._dynamo.reset()
    made = half.generate(
        input_ids=ids,
        attention_mask=real,
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        cache_implementation="static",
        disable_compile=not compiled,
    )
    assert made.shape == (2, 62)
    whole = torch.cat([real, torch.ones(2, 12, dtype=real.dtype, device="cuda")], 1)
    scores = logits(half.float(), "eager", input_ids=made, attention_mask=whole)[:, 49:-1]
    scores[..., model.generation_config.eos_token_id] = -torch.inf
    chosen = scores.gather(2, made[:, 50:, None])[..., 0]
    spread = scores[torch.isfinite(scores)].std()
    assert (scores.amax(2) - chosen).max() < 0.05 * spread
