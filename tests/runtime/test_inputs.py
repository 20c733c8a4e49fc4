"""Random inputs: valid for every layout, the same for the same seed, and overridable."""

import pytest
import torch

import attn_dsl
from attn_dsl import CallError
from attn_dsl.reference import sequence_lengths
from attn_dsl.runtime import bind, random_inputs

LAYOUTS = {
    "dense": "q: bf16[batch, seq_q, heads, dim]\nk: bf16[batch, seq_k, kv_heads, dim]\n"
    "v: bf16[batch, seq_k, kv_heads, dim_v]\n",
    "packed": "q: f16[total_q, heads, dim]\nk, v: f16[total_k, kv_heads, dim]\ncu_q, cu_k: i32[batch + 1]\n"
    "used, pad: i32[batch]\nlengths q { cu_seqlens = cu_q }\n"
    "lengths k { cu_seqlens = cu_k, used = used, left_pad = pad }\n",
    "table": "q: e4m3[batch, seq_q, heads, dim]\nk, v: e5m2[pages, page_size, kv_heads, dim]\nused, pad: i32[batch]\n"
    "table: i32[batch, width]\nlengths k { used = used, left_pad = pad }\npaged { table = table }\n",
    "csr": "q: f32[total_q, heads, dim]\npool: f32[pages, 2, page_size, kv_heads, dim]\nview k = pool[:, 0, :, :, :]\n"
    "view v = pool[:, 1, :, :, :]\ncu_q, indptr: i32[batch + 1]\nused: i32[batch]\nindices: i32[num_pages]\n"
    "lengths q { cu_seqlens = cu_q }\nlengths k { used = used }\npaged { indptr = indptr, indices = indices }\n",
}
EXTENTS = {"batch": 5, "seq_q": 7, "seq_k": 33, "heads": 4, "kv_heads": 2, "dim": 8}
PAGED = EXTENTS | {"page_size": 4}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(5))
def test_inputs_are_valid_and_run(layout, seed):
    text = (
        LAYOUTS[layout]
        + "slopes: f32[heads]\nkeep: bool[2 * heads]\nid: u8[heads]\nparam w: int in 3..\nparam c: float\n"
    )
    spec = attn_dsl.parse(
        text + "mask = q_pos - kv_idx < w and keep[2 * h]\nscore = score * c + slopes[h] + float(id[h])"
    )
    extents = PAGED if layout in ("table", "csr") else EXTENTS
    inputs = random_inputs(spec, extents, seed=seed)
    bind(spec, [], {**inputs.tensors, **inputs.params}, debug=True)
    again = random_inputs(spec, extents, seed=seed)
    assert all(torch.equal(tensor.float(), again.tensors[name].float()) for name, tensor in inputs.tensors.items())
    seq_q, seq_k = sequence_lengths(spec, inputs.tensors)
    assert max(seq_q) == 7
    assert max(seq_k) <= 33
    assert layout == "dense" or len({*seq_k}) > 2
    o = attn_dsl.compile(spec)(**inputs.tensors, **inputs.params, debug=True)
    assert o.float().isfinite().all()


def test_seeds_differ():
    spec = attn_dsl.parse(LAYOUTS["dense"])
    assert not torch.equal(
        random_inputs(spec, EXTENTS, seed=0).tensors["q"], random_inputs(spec, EXTENTS, seed=1).tensors["q"]
    )


def test_totals_may_be_given():
    spec = attn_dsl.parse(LAYOUTS["packed"])
    extents = {name: extent for name, extent in EXTENTS.items() if not name.startswith("seq")} | {
        "total_q": 11,
        "total_k": 29,
    }
    inputs = random_inputs(spec, extents)
    assert inputs.tensors["q"].shape[0] == 11
    assert inputs.tensors["cu_k"][-1] == 29


def test_given_tensors_and_numbers_are_used():
    spec = attn_dsl.parse(LAYOUTS["dense"] + "doc: i32[batch, seq_k]\nparam w: int\nmask = doc[b, kv_idx] == w")
    doc = torch.arange(10, dtype=torch.int32).view(2, 5)
    inputs = random_inputs(spec, {"seq_q": 3, "heads": 2, "dim": 4}, given={"doc": doc, "w": 3})
    assert inputs.tensors["doc"] is doc
    assert inputs.params == {"w": 3}
    assert inputs.tensors["k"].shape == (2, 5, 2, 4)
    assert inputs.tensors["v"].shape == (2, 5, 2, 4)


def test_ids_along_rows_never_decrease():
    spec = attn_dsl.parse(LAYOUTS["dense"] + "doc: i32[batch, seq_k]\nmask = doc[b, kv_idx] == 1")
    inputs = random_inputs(spec, EXTENTS)
    assert (inputs.tensors["doc"].diff(dim=-1) >= 0).all()
    assert any(note.startswith("doc:") for note in inputs.notes)


def test_what_is_missing_or_unknown():
    spec = attn_dsl.parse(LAYOUTS["dense"] + "axis dim = 8\nslopes: f32[heads]\nscore = score + slopes[h]")
    with pytest.raises(CallError, match="q needs the extent of axis 'heads'"):
        random_inputs(spec, {"seq_q": 3, "seq_k": 3})
    with pytest.raises(CallError, match="axis 'dim' is 8 in the given tensors or the spec; asked for 16"):
        random_inputs(spec, EXTENTS | {"dim": 16})
    with pytest.raises(CallError, match="no tensor or parameter 'slope'"):
        random_inputs(spec, EXTENTS | {"dim": 8}, given={"slope": torch.zeros(4)})
    with pytest.raises(CallError, match="no tensor has an axis 'head'"):
        random_inputs(spec, EXTENTS | {"dim": 8, "head": 4})
    with pytest.raises(CallError, match=r"axis 'dim_v' is 4 in c and 8 in v \(whose inner axis is 'dim'\)"):
        random_inputs(attn_dsl.parse(LAYOUTS["packed"] + "c: f32[dim_v]\nscore = score + c[0]"), EXTENTS | {"dim_v": 4})
    with pytest.raises(CallError, match=r"axis 'num_pages' is \d+ in these tensors; asked for 999"):
        random_inputs(attn_dsl.parse(LAYOUTS["csr"]), PAGED | {"num_pages": 999})
    with pytest.raises(CallError, match="axis 'batch' is -1, expected 0 to"):
        random_inputs(spec, EXTENTS | {"dim": 8, "batch": -1})
    with pytest.raises(CallError, match="heads is 4, which is no multiple of kv_heads = 3"):
        random_inputs(spec, EXTENTS | {"dim": 8, "kv_heads": 3})
    with pytest.raises(CallError, match="axis 'width' is 2, and a sequence fills 9 pages"):
        random_inputs(attn_dsl.parse(LAYOUTS["table"]), PAGED | {"width": 2})
    with pytest.raises(CallError, match="axis 'pages' is 3, and these sequences fill"):
        random_inputs(attn_dsl.parse(LAYOUTS["table"]), PAGED | {"pages": 3})
