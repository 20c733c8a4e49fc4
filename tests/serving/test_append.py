"""New tokens into pages, against a loop over tokens; and what is refused before anything is written."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import attn_dsl
from attn_dsl import CallError
from attn_dsl.serving.append import places_of, write

HEADS, DIM, DIM_V = 2, 8, 4
POOL = 12  # pages


def pools(page_size: int, dtype: torch.dtype = torch.bfloat16, layout: str = "NHD") -> tuple[Tensor, Tensor]:
    make = torch.Generator().manual_seed(page_size)
    if layout == "joint":
        pool = torch.randn(POOL, 2, page_size, HEADS, DIM, generator=make).to(dtype)
        return pool[:, 0], pool[:, 1]
    if layout == "HND":
        k, v = (torch.randn(POOL, HEADS, page_size, dim, generator=make).to(dtype) for dim in (DIM, DIM_V))
        return k.transpose(1, 2), v.transpose(1, 2)
    k, v = (torch.randn(POOL, page_size, HEADS, dim, generator=make).to(dtype) for dim in (DIM, DIM_V))
    return k, v


def ints(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def expected(pool: Tensor, new: list[Tensor], table: Tensor, used: list[int]) -> Tensor:
    """Token by token, by the words of the language."""
    result = pool.clone()
    for b, tokens in enumerate(new):
        for i, token in enumerate(tokens):
            slot = used[b] + i
            result[table[b, slot // pool.shape[1]], slot % pool.shape[1]] = token
    return result


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.float(), b.float())


@pytest.mark.parametrize("page_size", [1, 3, 4])
@pytest.mark.parametrize("layout", ["NHD", "HND", "joint"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("packed", [False, True])
def test_rows_land_in_their_pages(page_size: int, layout: str, dtype: torch.dtype, packed: bool) -> None:
    """Nothing else changes; entries of other pages, garbage included, are not looked at."""
    k_pages, v_pages = pools(page_size, dtype, layout)
    table = ints([[7, 2, 9, 1], [0, 11, 5, 8], [3, 4, 6, 10]])
    counts = [3, 0, 2] if packed else [2, 2, 2]
    used = [1, 2, 0] if page_size == 1 else [4, 2, 0]
    for b, (slots, count) in enumerate(zip(used, counts, strict=True)):
        table[b, : slots // page_size] = 99
        table[b, -(-(slots + count) // page_size) :] = -5
    make = torch.Generator().manual_seed(5)
    k, v = (
        [torch.randn(n, HEADS, pool.shape[3], generator=make).to(dtype) for n in counts] for pool in (k_pages, v_pages)
    )
    k_wanted, v_wanted = expected(k_pages, k, table, used), expected(v_pages, v, table, used)
    join = (torch.cat, torch.stack)[not packed]
    cumulative = ints([0, *torch.tensor(counts).cumsum(0).tolist()]) if packed else None
    lengths = ints(used)
    found = attn_dsl.append_kv(k_pages, v_pages, join(k), join(v), table, lengths, cu_seqlens=cumulative, debug=True)
    assert same(k_pages, k_wanted)
    assert same(v_pages, v_wanted)
    assert found.tolist() == [a + b for a, b in zip(used, counts, strict=True)]
    assert (found.dtype, lengths.tolist()) == (torch.int32, used)


def test_a_decode_loop_fills_what_attention_reads() -> None:
    """Ten steps into pages, then paged attention: equal to attention over the rows in order."""
    text = "q: f32[batch, seq_q, heads, dim]\nmask = kv_idx <= q_pos\n"
    paged = attn_dsl.compile(
        attn_dsl.parse(
            text + "k, v: f32[pages, page_size, heads, dim]\npage_table: i32[batch, max_pages]\nused: i32[batch]\n"
            "paged { table = page_table }\nlengths k { used = used }"
        )
    )
    dense = attn_dsl.compile(attn_dsl.parse(text + "k, v: f32[batch, seq_k, heads, dim]"))
    make = torch.Generator().manual_seed(2)
    k, v = (torch.randn(2, 10, HEADS, DIM, generator=make) for _ in range(2))
    q = torch.randn(2, 3, HEADS, DIM, generator=make)
    pool = torch.full((8, 2, 3, HEADS, DIM), torch.nan)
    table, used = ints([[6, 1, 4, 0], [7, 2, 5, 3]]), ints([0, 0])
    for step in range(10):
        rows = slice(step, step + 1)
        used = attn_dsl.append_kv(pool[:, 0], pool[:, 1], k[:, rows], v[:, rows], table, used)
    o = paged(q, pool[:, 0], pool[:, 1], table, used)
    torch.testing.assert_close(o, dense(q, k, v), atol=1e-6, rtol=1e-6)


def test_values_that_are_a_part_of_the_keys() -> None:
    pool, _ = pools(4)
    k = torch.ones(3, 1, HEADS, DIM).bfloat16()
    table = ints([[0], [1], [2]])
    attn_dsl.append_kv(pool, None, k, None, table, ints([0, 3, 2]), page_size=4)
    assert (pool[[0, 1, 2], [0, 3, 2]] == 1).all()


@pytest.mark.parametrize("packed", [False, True])
def test_no_tokens_and_no_sequences(packed: bool) -> None:
    k_pages, v_pages = pools(4)
    before = k_pages.clone()
    for batch, table in ((0, ints([]).reshape(0, 3)), (2, ints([[0], [1]])), (2, ints([[], []]).reshape(2, 0))):
        shape = (0,) if packed else (batch, 0)
        k, v = (torch.zeros(*shape, HEADS, dim).bfloat16() for dim in (DIM, DIM_V))
        cumulative = ints([0] * (batch + 1)) if packed else None
        used = attn_dsl.append_kv(k_pages, v_pages, k, v, table, ints([0] * batch), cu_seqlens=cumulative)
        assert used.tolist() == [0] * batch
    assert torch.equal(k_pages, before)


def test_unchecked_tokens_without_a_place_are_not_written() -> None:
    """Where contents are not read on the host: a slot past the table, a page outside of the pool, a negative length."""
    pool, _ = pools(2)
    k = torch.arange(1.0, 9.0).bfloat16()[:, None, None].expand(8, HEADS, DIM)
    table, used = ints([[3, 99], [5, -1], [4, 1], [0, 2]]), ints([1, 2, 3, -2])
    wanted = pool.clone()
    wanted[3, 1] = 1  # slot 1 of sequence 0; its slot 2 is on page 99
    wanted[1, 1] = 5  # slot 3 of sequence 2; its slot 4 is past the table
    write(pool, k, places_of(pool, k.reshape(4, 2, HEADS, DIM), table, used, None))
    assert torch.equal(pool, wanted)
    places = places_of(pool, k[:4], table, used, ints([0, 2, 1, 4, 2]))  # not cumulative: some place or none
    assert ((places.page >= 0) & (places.page < POOL) & (places.row < 2)).all()
    write(pool, k, places_of(pool, k.reshape(4, 2, HEADS, DIM), table, used + 100, None))
    assert torch.equal(pool, wanted)  # none has a place


def given() -> dict:
    k_pages, v_pages = pools(4)
    k, v = torch.zeros(2, 3, HEADS, DIM).bfloat16(), torch.zeros(2, 3, HEADS, DIM_V).bfloat16()
    return {
        "k_pages": k_pages,
        "v_pages": v_pages,
        "k": k,
        "v": v,
        "page_table": ints([[0, 1], [2, 3]]),
        "used": ints([5, 0]),
    }


def packed(cumulative: list[int], tokens: int = 6) -> dict:
    k, v = torch.zeros(tokens, HEADS, DIM).bfloat16(), torch.zeros(tokens, HEADS, DIM_V).bfloat16()
    return {"k": k, "v": v, "cu_seqlens": ints(cumulative)}


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"v": None}, "E270", "v_pages is given and v is None"),
        ({"cu_seqlens": ints([0, 3, 6])}, "E270", "k is dense [batch, seq_new, kv_heads, dim] and cu_seqlens is given"),
        ({"k": torch.zeros(6, HEADS, DIM).bfloat16()}, "E270", "cu_seqlens is missing"),
        ({"page_size": 8}, "E271", "page_size is 8, the pages of k_pages have 4 rows"),
        ({"k_pages": torch.zeros(12, 4, DIM).bfloat16()}, "E271", "k_pages has shape [12, 4, 8], expected [pages,"),
        ({"v_pages": torch.zeros(11, 4, HEADS, DIM_V).bfloat16()}, "E271", "v_pages has shape [11, 4, 2, 4]"),
        ({"page_table": ints([0, 1])}, "E271", "page_table has shape [2], expected [batch, max_pages]"),
        ({"page_table": ints([[0], [1], [2]])}, "E271", "used has shape [2], expected [3]"),
        ({"used": ints([5, 0, 1])}, "E271", "used has shape [3], expected [2]: page_table has 2 rows"),
        ({"k": torch.zeros(3, 3, HEADS, DIM).bfloat16()}, "E271", "k has shape [3, 3, 2, 8], expected [2, 3, 2, 8]"),
        ({"v": torch.zeros(2, 2, HEADS, DIM_V).bfloat16()}, "E271", "v has shape [2, 2, 2, 4], expected [2, 3, 2, 4]"),
        ({"page_table": torch.tensor([[0, 1], [2, 3]])}, "E272", "page_table has dtype torch.int64, expected i32"),
        ({"used": torch.tensor([5.0, 0.0])}, "E272", "used has dtype f32, expected i32"),
        ({"k": torch.zeros(2, 3, HEADS, DIM)}, "E272", "k has dtype f32, its pages have bf16"),
        ({"used": [5, 0]}, "E272", "used is a list, expected a tensor"),
        ({"k": torch.zeros(2, 3, HEADS, DIM, device="meta").bfloat16()}, "E273", "k is on meta, expected cpu"),
        (packed([1, 3, 6]), "E275", "cu_seqlens[0] is 1, expected 0"),
        (packed([0, 7, 6]), "E275", "cu_seqlens[2] is 6, expected 7 or more"),
        (packed([0, 3, 5]), "E275", "cu_seqlens ends at 5, k has 6 tokens"),
        (
            {"used": ints([6, 0])},
            "E276",
            "used[0] is 6 and 3 tokens are new, expected 0 to 8 together: 2 pages of 4 rows",
        ),
        ({"used": ints([5, -1])}, "E276", "used[1] is -1"),
        ({"page_table": ints([[0, 12], [2, 3]])}, "E277", "page_table[0, 1] is 12, expected 0 to 11"),
        ({"page_table": ints([[0, 1], [-1, 3]])}, "E277", "page_table[1, 0] is -1, expected 0 to 11"),
        ({"page_table": ints([[0, 2], [2, 3]])}, "E278", "tokens 0 and 4 are both written to row 1 of page 2"),
        (
            {"k_pages": torch.zeros(1, 4, HEADS, DIM).bfloat16().expand(12, -1, -1, -1)},
            "E278",
            "two elements of k_pages",
        ),
        ({"k": torch.zeros(2, 3, HEADS, DIM).bfloat16().requires_grad_()}, "E278", "k requires a gradient"),
    ],
)
def test_what_does_not_fit(change: dict, code: str, text: str) -> None:
    arguments = given() | change
    before = {n: arguments[n].clone() for n in ("k_pages", "v_pages")}
    with pytest.raises(CallError) as caught:
        attn_dsl.append_kv(**arguments)
    assert caught.value.code == code
    assert text in str(caught.value)
    for name, pool in before.items():
        assert torch.equal(arguments[name], pool)


def test_new_rows_may_not_lie_in_the_pool() -> None:
    arguments = given()
    arguments["k"] = arguments["k_pages"][:2, :3]
    with pytest.raises(CallError, match="the memory of k_pages overlaps the memory of k"):
        attn_dsl.append_kv(**arguments)
