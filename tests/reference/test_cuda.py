"""The reference on CUDA tensors gives what it gives on the CPU. Skipped where there is no CUDA device."""

import pytest
import torch

import attn_dsl
from attn_dsl.runtime import random_inputs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

DENSE = """
q: bf16[batch, seq_q, heads, dim]
k: bf16[batch, seq_k, kv_heads, dim]
v: bf16[batch, seq_k, kv_heads, dim_v]
bias: f32[heads, seq_q, seq_k]
slopes: f32[heads]
sinks: f32[heads]
param cap: float in 1.0.. = 20.0
param reach: int[heads] in 1..
lse: f32[batch, heads, seq_q]
mask = 0 <= q_pos - kv_idx < reach
score = cap * tanh(score / cap) + slopes[h] * float(kv_idx - q_pos) + bias[h, q_idx, kv_idx]
sink = sinks[h]
"""
PAGED = """
q: e4m3[total_q, heads, dim]
pool: e5m2[pages, 2, page_size, kv_heads, dim]
view k = pool[:, 0, :, :, :]
view v = pool[:, 1, :, :, :]
cu: i32[batch + 1]
used, pad: i32[batch]
table: i32[batch, max_pages]
doc: i32[total_q]
o: f32[total_q, heads, dim]
lse: f32[heads, total_q]
lengths q { cu_seqlens = cu }
lengths k { used = used, left_pad = pad }
paged { table = table }
mask = kv_idx <= q_pos and doc[q_idx] != 2
"""
EXTENTS = {"batch": 3, "seq_q": 37, "seq_k": 150, "heads": 6, "kv_heads": 2, "dim": 32}


@pytest.mark.parametrize("text", [DENSE, PAGED], ids=["dense", "paged"])
def test_cuda_gives_what_the_cpu_gives(text):
    spec = attn_dsl.parse(text)
    extents = EXTENTS | {"dim_v": 24} if text is DENSE else EXTENTS
    results = []
    for device in ("cpu", "cuda"):
        inputs = random_inputs(spec, extents, seed=4, device=device)
        params = dict(inputs.params)
        if text is DENSE:
            params["reach"] = torch.tensor([1, 2, 5, 20, 150, 2**31 - 1], dtype=torch.int32, device=device)
            params["cap"] = torch.tensor(15.0, device=device, requires_grad=True)
        names = [name for name in inputs.tensors if inputs.tensors[name].is_floating_point()]
        leaves = {name: inputs.tensors[name].float().requires_grad_() for name in names}
        typed = {name: leaf.to(inputs.tensors[name].dtype) for name, leaf in leaves.items()}
        o, lse = attn_dsl.compile(spec, target="reference-f64")(**{**inputs.tensors, **typed}, **params, debug=True)
        assert o.device.type == device
        wanted = [*leaves.values(), *(p for p in params.values() if isinstance(p, torch.Tensor) and p.requires_grad)]
        loss = o.float().square().sum() + torch.where(lse.isfinite(), lse, 0.0).sum()
        results.append([part.detach().cpu().float() for part in (o, lse, *torch.autograd.grad(loss, wanted))])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=1e-3)
