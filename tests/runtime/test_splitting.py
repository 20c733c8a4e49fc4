"""Which calls have their keys cut into parts, from sizes alone."""

from __future__ import annotations

import pytest
import torch

import attn_dsl
from attn_dsl import emulator
from attn_dsl.lowering.forward import sm90, sm100
from attn_dsl.runtime import splitting
from attn_dsl.runtime.binding import bind
from attn_dsl.runtime.kernels import SM90, SM100, shape_class
from attn_dsl.runtime.signature import Signature
from attn_dsl.runtime.splitting import splits_of

QUERIES = "q: bf16[batch, seq_q, heads, dim]\n"
PACKED = "q: bf16[total_q, heads, dim]\ncu_q: i32[batch + 1]\nlengths q { cu_seqlens = cu_q }\n"
KEYS = "k, v: bf16[batch, seq_k, kv_heads, dim]\n"
POOLS = (
    "k, v: bf16[pages, page_size, kv_heads, dim]\npage_table: i32[batch, max_pages]\nused: i32[batch]\n"
    "paged { table = page_table }\nlengths k { used = used }\n"
)

PROCESSORS = splitting._processors


@pytest.fixture(autouse=True)
def processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "_processors", lambda device: 132)


def count(text: str, tensors: dict[str, torch.Tensor], target: str = "sm90") -> int:
    spec = attn_dsl.parse(text, name="decode")
    call = bind(spec, (), tensors, False)
    kernels, select = (SM90, sm90.select) if target == "sm90" else (SM100, sm100.select)
    return splits_of(call, Signature.of(select(spec, shape_class(call, kernels)), kernels.arch))


def dense(batch: int = 1, seq_q: int = 1, seq_k: int = 8192, heads: int = 8, dim: int = 128) -> dict[str, torch.Tensor]:
    k = torch.empty(batch, seq_k, 2, dim, dtype=torch.bfloat16)
    return {"q": torch.empty(batch, seq_q, heads, dim, dtype=torch.bfloat16), "k": k, "v": k.clone()}


def test_few_queries_on_many_keys_are_cut() -> None:
    assert count(QUERIES + KEYS, dense()) == 64  # two K/V heads, a tile of keys for each part
    assert count(QUERIES + KEYS, dense(batch=8)) == 8
    assert count(QUERIES + KEYS, dense(batch=66)) == 1
    assert count(QUERIES + KEYS, dense(seq_k=256)) == 1


def test_blocks_that_share_a_multiprocessor_count() -> None:
    """Narrow heads: 132 thread blocks are a third of what runs at once."""
    assert count(QUERIES + KEYS, dense(batch=66, dim=64)) == 3


def test_queries_that_fill_more_than_a_tile_are_not_cut() -> None:
    assert count(QUERIES + KEYS, dense(seq_q=32)) > 1  # 32 queries of 4 heads are a tile of 128 rows
    assert count(QUERIES + KEYS, dense(seq_q=33)) == 1


def test_packed_queries_are_not_cut() -> None:
    tensors = dense(seq_q=1)
    tensors |= {"q": tensors["q"][0], "cu_q": torch.tensor([0, 1], dtype=torch.int32)}
    assert count(PACKED + KEYS, tensors) == 1


def test_a_page_table_counts_with_the_slots_it_has_room_for() -> None:
    k = torch.empty(3, 16, 2, 128, dtype=torch.bfloat16)
    table, used = torch.zeros(1, 512, dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    tensors = {**dense(), "k": k, "v": k.clone(), "page_table": table, "used": used}
    assert count(QUERIES + POOLS, tensors) == 64
    assert count(QUERIES + POOLS, tensors | {"page_table": table[:, :16]}) == 1


def test_a_schedule_decides() -> None:
    text = QUERIES + KEYS + "schedule { splits = 3 }\n"
    assert count(text, dense()) == count(text, dense(seq_q=500, batch=40)) == 3


def test_blackwell_cuts_what_fills_one_query_tile() -> None:
    """A thread block has two of them where keys are whole, 256 rows, and one for parts."""
    assert count(QUERIES + KEYS, dense(), "sm100") == 64
    assert count(QUERIES + KEYS, dense(seq_q=32), "sm100") > 1
    assert count(QUERIES + KEYS, dense(seq_q=33), "sm100") == 1


def test_each_virtual_device_answers_for_itself() -> None:
    """Tensors of the CPU are those of whichever device is open; what one said is not kept for the next."""
    pytest.importorskip("cutlass")
    cpu, counts = torch.device("cpu"), []
    for arch in ("sm_90a", "sm_100a", "sm_90a"):
        with emulator.device(arch):
            counts.append(PROCESSORS(cpu))
    assert counts == [132, 148, 132]
    if not torch.cuda.is_available():
        assert PROCESSORS(cpu) == 1
