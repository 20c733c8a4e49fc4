"""Where rows lie: packed, used, left-padded, paged and joint storage against the same sequences as plain tensors.

Every slot that belongs to no row holds NaN, so a result without NaN never looked at one.
"""

import math

import pytest
import torch
from dense import bottom_right, dense_attention

import attn_dsl
from attn_dsl.diagnostics import CallError
from attn_dsl.reference import attention, sequence_lengths

HEADS, KV_HEADS, DIM, DIM_V = 6, 2, 8, 5
LENGTHS = [(5, 9), (0, 4), (7, 0), (0, 0), (1, 12), (6, 3)]


def _sequences(lengths=LENGTHS, seed=0, dim_v=DIM_V):
    draw = torch.Generator().manual_seed(seed)
    return [
        bottom_right(
            torch.randn(seq_q, HEADS, DIM, generator=draw, dtype=torch.float64),
            torch.randn(seq_k, KV_HEADS, DIM, generator=draw, dtype=torch.float64),
            torch.randn(seq_k, KV_HEADS, dim_v, generator=draw, dtype=torch.float64),
        )
        for seq_q, seq_k in lengths
    ]


def _nan(*shape):
    return torch.full(shape, math.nan, dtype=torch.float64)


def _cumulative(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def _pack(rows, padding, tail, extra):
    """Rows of each sequence behind `padding` slots and before `tail` slots, then `extra` slots; with cu_seqlens."""
    parts, lengths = [], []
    for part, front, behind in zip(rows, padding, tail, strict=True):
        parts += [_nan(front, *part.shape[1:]), part, _nan(behind, *part.shape[1:])]
        lengths.append(front + len(part) + behind)
    return torch.cat([*parts, _nan(extra, *rows[0].shape[1:])]), _cumulative(lengths)


def _pad(rows, padding, slots):
    """[batch, slots, heads, dim] with each sequence behind its own padding."""
    dense = _nan(len(rows), slots, *rows[0].shape[1:])
    for b, (part, front) in enumerate(zip(rows, padding, strict=True)):
        dense[b, front : front + len(part)] = part
    return dense


def _i32(values):
    return torch.tensor(values, dtype=torch.int32)


def _compare(o, lse, sequences, mask, starts_q, score=lambda s, row: s):
    """o[rows, heads, dim_v] and lse[rows, heads] in storage order; rows of no sequence are 0 and -inf."""
    expected_o, expected_lse = torch.zeros_like(o), torch.full_like(lse, -math.inf)
    for start, (seq_o, seq_lse) in zip(starts_q, dense_attention(sequences, mask, score), strict=True):
        expected_o[start : start + len(seq_o)] = seq_o
        expected_lse[start : start + len(seq_o)] = seq_lse
    torch.testing.assert_close(o, expected_o, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-10, atol=1e-12)


def _causal(row):
    return row.j <= row.p


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("left_pad", [False, True])
def test_packed_queries_and_keys(used, left_pad):
    """cu_seqlens on both sides with empty sequences and spare slots behind the last one."""
    text = (
        "q: f32[total_q, heads, dim]\nk: f32[total_k, kv_heads, dim]\nv: f32[total_k, kv_heads, dim_v]\n"
        "cu_q, cu_k: i32[batch + 1]\nmask = kv_idx <= q_pos\n"
    )
    text += "used_q, used_k: i32[batch]\n" * used + "pad: i32[batch]\n" * left_pad
    text += f"lengths q {{ cu_seqlens = cu_q{', used = used_q' * used} }}\n"
    text += f"lengths k {{ cu_seqlens = cu_k{', used = used_k' * used}{', left_pad = pad' * left_pad} }}\n"
    sequences = _sequences()
    padding = [3, 0, 1, 0, 2, 5] if left_pad else [0] * 6
    tails = [2, 1, 0, 0, 3, 1] if used else [0] * 6
    q, cu_q = _pack([s.q for s in sequences], [0] * 6, tails, 4)
    k, cu_k = _pack([s.k for s in sequences], padding, tails, 3)
    v, _ = _pack([s.v for s in sequences], padding, tails, 3)
    tensors = {"q": q, "k": k, "v": v, "cu_q": cu_q, "cu_k": cu_k}
    if used:
        tensors["used_q"] = _i32([len(s.q) for s in sequences])
        tensors["used_k"] = _i32([len(s.k) + pad for s, pad in zip(sequences, padding, strict=True)])
    if left_pad:
        tensors["pad"] = _i32(padding)
    spec = attn_dsl.parse(text)
    o, lse = attention(spec, tensors, {}, precision="float64", block_q=3, block_k=4)
    _compare(o, lse.T, sequences, _causal, cu_q.tolist()[:-1])
    lengths = [len(s.q) for s in sequences], [len(s.k) for s in sequences]
    assert sequence_lengths(spec, tensors) == lengths


def test_padded_batch_with_used_lengths_and_left_padding():
    """[batch, seq] storage: rows past `used` on either side, left padding in front of the keys."""
    spec = attn_dsl.parse(
        "q: f32[batch, seq_q, heads, dim]\nk: f32[batch, seq_k, kv_heads, dim]\nv: f32[batch, seq_k, kv_heads, dim_v]\n"
        "used_q, used_k, pad: i32[batch]\nlengths q { used = used_q }\nlengths k { used = used_k, left_pad = pad }\n"
        "mask = kv_idx <= q_pos and kv_idx != seq_k - 2 and q_idx != seq_q - 1"
    )
    sequences = _sequences()
    padding = [3, 1, 0, 2, 3, 0]
    tensors = {
        "q": _pad([s.q for s in sequences], [0] * 6, 8),
        "k": _pad([s.k for s in sequences], padding, 16),
        "v": _pad([s.v for s in sequences], padding, 16),
        "used_q": _i32([len(s.q) for s in sequences]),
        "used_k": _i32([len(s.k) + pad for s, pad in zip(sequences, padding, strict=True)]),
        "pad": _i32(padding),
    }
    o, lse = attention(spec, tensors, {}, precision="float64", block_q=3, block_k=5)

    def mask(row):
        return (row.j <= row.p) & (row.j != row.seq_k - 2) & (row.i != row.seq_q - 1)

    _compare(o.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1), sequences, mask, [8 * b for b in range(6)])


def test_padding_past_the_used_slots_leaves_an_empty_sequence():
    spec = attn_dsl.parse(
        "q: f32[batch, seq_q, heads, dim]\nk, v: f32[batch, seq_k, heads, dim]\nused, pad: i32[batch]\n"
        "lengths k { used = used, left_pad = pad }"
    )
    tensors = {
        "q": torch.ones(1, 2, 1, 4),
        "k": _nan(1, 6, 1, 4),
        "v": _nan(1, 6, 1, 4),
        "used": _i32([2]),
        "pad": _i32([5]),
    }
    o, lse = attention(spec, tensors, {})
    assert (o == 0).all()
    assert (lse == -math.inf).all()
    assert sequence_lengths(spec, tensors) == ([2], [0])


def _paged(rows, page_size, padding, seed, spare=3):
    """A NaN pool with the rows of each sequence in shuffled pages, and each sequence's list of pages."""
    counts = [-(-(pad + len(part)) // page_size) for part, pad in zip(rows, padding, strict=True)]
    order = torch.randperm(sum(counts) + spare, generator=torch.Generator().manual_seed(seed)).tolist()
    pool = _nan(len(order), page_size, *rows[0].shape[1:])
    lists = []
    for part, pad, count in zip(rows, padding, counts, strict=True):
        pages = [order.pop() for _ in range(count)]
        for i, row in enumerate(part):
            pool[pages[(pad + i) // page_size], (pad + i) % page_size] = row
        lists.append(pages)
    return pool, lists


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize("left_pad", [False, True])
@pytest.mark.parametrize("joint", [False, True])
def test_paged_keys(page_size, csr, left_pad, joint):
    """Page tables and CSR lists, pages in any order, unused table entries out of range, joint or separate pools."""
    text = "q: f32[batch, seq_q, heads, dim]\nused: i32[batch]\nmask = kv_idx <= q_pos and kv_idx % 5 != 3\n"
    if joint:
        text += "pool: f32[pages, kv_heads, 2, page_size, dim]\n"
        text += "view k = pool[:, :, 0, :, :]\nview v = pool[:, :, 1, :, :]\n"
    else:
        text += "k: f32[pages, page_size, kv_heads, dim]\nv: f32[pages, page_size, kv_heads, dim_v]\n"
    text += "pad: i32[batch]\n" * left_pad
    text += f"lengths k {{ used = used{', left_pad = pad' * left_pad} }}\n"
    if csr:
        text += "indptr: i32[batch + 1]\nindices: i32[num_pages]\npaged { indptr = indptr, indices = indices }\n"
    else:
        text += "table: i32[batch, max_pages]\npaged { table = table }\n"
    seq_q = 4
    sequences = _sequences([(seq_q, seq_k) for seq_k in (9, 0, 1, 17)], dim_v=DIM if joint else DIM_V)
    padding = [5, 0, 2, 4] if left_pad else [0] * 4
    k, lists = _paged([s.k for s in sequences], page_size, padding, seed=page_size)
    v, again = _paged([s.v for s in sequences], page_size, padding, seed=page_size)
    assert lists == again
    tensors = {"q": torch.stack([s.q for s in sequences])}
    tensors |= {"pool": torch.stack([k, v]).permute(1, 3, 0, 2, 4)} if joint else {"k": k, "v": v}
    tensors["used"] = _i32([len(s.k) + pad for s, pad in zip(sequences, padding, strict=True)])
    if left_pad:
        tensors["pad"] = _i32(padding)
    if csr:
        tensors["indptr"] = _cumulative([len(pages) for pages in lists])
        tensors["indices"] = _i32([page for pages in lists for page in pages])
    else:
        width = max(len(pages) for pages in lists) + 2
        tensors["table"] = _i32([pages + [-1, 2**31 - 1] + [-5] * (width - 2 - len(pages)) for pages in lists])
    o, lse = attention(attn_dsl.parse(text), tensors, {}, precision="float64", block_q=3, block_k=4)

    def mask(row):
        return (row.j <= row.p) & (row.j % 5 != 3)

    _compare(o.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1), sequences, mask, [seq_q * b for b in range(4)])


def test_sequences_that_share_pages():
    spec = attn_dsl.parse(
        "q: f32[total_q, heads, dim]\nk, v: f32[pages, page_size, heads, dim]\ncu: i32[batch + 1]\nused: i32[batch]\n"
        "table: i32[batch, max_pages]\nlengths q { cu_seqlens = cu }\nlengths k { used = used }\n"
        "paged { table = table }\nmask = kv_idx <= q_pos"
    )
    draw = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(n, 2, DIM, generator=draw, dtype=torch.float64) for n in (7, 12, 12))
    tables = [[2, 0], [2, 1]]
    tensors = {
        "q": q,
        "k": k.view(3, 4, 2, DIM),
        "v": v.view(3, 4, 2, DIM),
        "cu": _i32([0, 3, 7]),
        "used": _i32([6, 8]),
    }
    tensors["table"] = _i32(tables)
    rows = [
        torch.tensor([4 * page + r for page in pages for r in range(4)][:n])
        for pages, n in zip(tables, (6, 8), strict=True)
    ]
    sequences = [bottom_right(q[:3], k[rows[0]], v[rows[0]]), bottom_right(q[3:], k[rows[1]], v[rows[1]])]
    o, lse = attention(spec, tensors, {}, precision="float64", block_k=3)
    _compare(o, lse.T, sequences, _causal, [0, 3])


def test_values_as_a_part_of_the_keys():
    """Absorbed MLA: one latent of 12, the first 8 of which are the values, and one K/V head."""
    spec = attn_dsl.parse(
        "q: f32[batch, seq_q, heads, dim]\nk: f32[batch, seq_k, kv_heads, dim]\nview v = k[:, :, :, 0..8]\n"
        "mask = kv_idx <= q_pos"
    )
    draw = torch.Generator().manual_seed(4)
    q, k = (torch.randn(2, n, h, 12, generator=draw, dtype=torch.float64) for n, h in ((5, 4), (7, 1)))
    o, lse = attention(spec, {"q": q, "k": k}, {}, precision="float64", block_k=3)
    assert o.shape == (2, 5, 4, 8)
    sequences = [bottom_right(q[b], k[b], k[b, :, :, :8]) for b in range(2)]
    _compare(o.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1), sequences, _causal, [0, 5])


def test_packed_captures_are_local_to_the_sequence():
    spec = attn_dsl.parse(
        "q: f32[total_q, heads, dim]\nk: f32[total_k, kv_heads, dim]\nv: f32[total_k, kv_heads, dim_v]\n"
        "cu_q, cu_k: i32[batch + 1]\nlengths q { cu_seqlens = cu_q }\nlengths k { cu_seqlens = cu_k }\n"
        "tag_q: i32[total_q]\ntag_k: i32[heads, total_k]\nbonus: f32[total_k]\n"
        "mask = tag_q[q_idx] != tag_k[h, kv_idx] and tag_k[h, q_pos] != 1\nscore = score + bonus[kv_idx]"
    )
    sequences = _sequences([(5, 9), (0, 4), (3, 7), (2, 2)])
    q, cu_q = _pack([s.q for s in sequences], [0] * 4, [0] * 4, 2)
    k, cu_k = _pack([s.k for s in sequences], [0] * 4, [0] * 4, 1)
    v, _ = _pack([s.v for s in sequences], [0] * 4, [0] * 4, 1)
    draw = torch.Generator().manual_seed(5)
    tag_q = torch.randint(0, 3, (12,), generator=draw, dtype=torch.int32)
    tag_k = torch.randint(0, 3, (HEADS, 23), generator=draw, dtype=torch.int32)
    bonus = torch.randn(23, generator=draw, dtype=torch.float64)
    starts_q, starts_k = cu_q.tolist(), cu_k.tolist()
    tensors = {"q": q, "k": k, "v": v, "cu_q": cu_q, "cu_k": cu_k, "tag_q": tag_q, "tag_k": tag_k, "bonus": bonus}

    def mask(row):
        tags = tag_k[row.h, starts_k[row.b] :]
        at_row = tags[min(max(row.p, 0), row.seq_k - 1)]
        return (tag_q[starts_q[row.b] + row.i] != tags[row.j]) & (at_row != 1)

    def score(s, row):
        return s + bonus[starts_k[row.b] + row.j]

    o, lse = attention(spec, tensors, {}, precision="float64", block_q=2, block_k=4)
    _compare(o, lse.T, sequences, mask, starts_q[:-1], score)


PACKED = attn_dsl.parse(
    "q: f32[total_q, heads, dim]\nk, v: f32[total_k, heads, dim]\ncu_q, cu_k: i32[batch + 1]\nused, pad: i32[batch]\n"
    "lengths q { cu_seqlens = cu_q }\nlengths k { cu_seqlens = cu_k, used = used, left_pad = pad }"
)
PAGED = attn_dsl.parse(
    "q: f32[batch, seq_q, heads, dim]\nk, v: f32[pages, page_size, heads, dim]\ntable: i32[batch, max_pages]\n"
    "used, pad: i32[batch]\nlengths k { used = used, left_pad = pad }\npaged { table = table }"
)
CSR = attn_dsl.parse(
    "q: f32[batch, seq_q, heads, dim]\nk, v: f32[pages, page_size, heads, dim]\nindptr: i32[batch + 1]\n"
    "indices: i32[num_pages]\nused: i32[batch]\nlengths k { used = used }\npaged { indptr = indptr, indices = indices }"
)
GOOD = {
    "packed": {"cu_q": [0, 2, 6], "cu_k": [0, 3, 8], "used": [3, 4], "pad": [0, 1]},
    "paged": {"table": [[0, 2], [1, 9]], "used": [8, 3], "pad": [0, 0]},
    "csr": {"indptr": [0, 2, 3], "indices": [0, 2, 1], "used": [8, 3]},
}


def _call(kind, **bad):
    spec = {"packed": PACKED, "paged": PAGED, "csr": CSR}[kind]
    rows = {
        "packed": ((6, 1, 4), (8, 1, 4)),
        "paged": ((2, 3, 1, 4), (3, 4, 1, 4)),
        "csr": ((2, 3, 1, 4), (3, 4, 1, 4)),
    }[kind]
    tensors = {"q": torch.ones(rows[0]), "k": torch.ones(rows[1]), "v": torch.ones(rows[1])}
    return attention(spec, tensors | {name: _i32(values) for name, values in (GOOD[kind] | bad).items()}, {})


@pytest.mark.parametrize("kind", GOOD)
def test_good_contents_pass(kind):
    assert _call(kind)[0].isfinite().all()


@pytest.mark.parametrize(
    ("kind", "bad", "code", "message"),
    [
        ("packed", {"cu_q": [1, 2, 6]}, "E275", "cu_q[0] is 1, expected 0"),
        ("packed", {"cu_k": [0, 9, 8]}, "E275", "cu_k[2] is 8, less than cu_k[1] = 9"),
        ("packed", {"cu_k": [0, 3, 9]}, "E275", "cu_k ends at 9, past axis 'total_k', which has 8 elements"),
        ("packed", {"cu_k": [0, -3, 8]}, "E275", "cu_k[1] is -3, less than cu_k[0] = 0"),
        ("packed", {"used": [4, 4]}, "E276", "used[0] is 4, expected 0 to 3"),
        ("packed", {"used": [3, -1]}, "E276", "used[1] is -1, expected 0 to 5"),
        ("packed", {"pad": [0, 6]}, "E276", "pad[1] is 6, expected 0 to 5"),
        ("packed", {"pad": [-1, 0]}, "E276", "pad[0] is -1"),
        ("paged", {"used": [9, 0]}, "E276", "used[0] is 9, expected 0 to 8"),
        ("paged", {"table": [[0, 3], [1, 0]]}, "E277", "table: page 1 of sequence 0 is 3, expected 0 to 2"),
        ("paged", {"table": [[0, 2], [-1, 0]]}, "E277", "table: page 0 of sequence 1 is -1, expected 0 to 2"),
        ("csr", {"indptr": [0, 3, 2]}, "E275", "indptr[2] is 2, less than indptr[1] = 3"),
        ("csr", {"indptr": [0, 2, 4]}, "E275", "indptr ends at 4, past indices"),
        ("csr", {"used": [8, 5]}, "E276", "used[1] is 5, expected 0 to 4"),
        ("csr", {"indices": [0, 2, 7]}, "E277", "indices: page 0 of sequence 1 is 7, expected 0 to 2"),
    ],
)
def test_bad_contents_are_refused_before_anything_is_read(kind, bad, code, message):
    with pytest.raises(CallError) as caught:
        _call(kind, **bad)
    assert caught.value.code == code
    assert message in str(caught.value)


def test_pages_that_hold_only_padding_are_not_looked_at():
    o, _ = _call("paged", table=[[-1, 2], [1, 9]], pad=[4, 0])
    assert o.isfinite().all()
    with pytest.raises(CallError, match="page 0 of sequence 0 is -1"):
        _call("paged", table=[[-1, 2], [1, 9]], pad=[3, 0])
