"""Lists of blocks for a spec's block-sparse mask, and BlockMasks as specs, against dense masks.

FlexAttention's kernels leave out the blocks that no list names; its uncompiled form looks at the mask_mod alone.
"""

from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask
from torch.nn.functional import scaled_dot_product_attention

import attn_dsl
from attn_dsl import ConversionError

EXAMPLES = Path(__file__).parents[2] / "examples"
HEADS, SEQ, BLOCK = 3, 52, 16  # the last block is cut short
BLOCKS = -(-SEQ // BLOCK)
HEAD = "q: f32[batch, heads, seq_q, dim]\nk, v: f32[batch, heads, seq_k, dim]\n"


def spec(table="kept: bool[heads, rows, keys]", mask="kept[h, q_idx // tile, kv_idx // tile]", **constants):
    return attn_dsl.parse(f"{HEAD}{table}\nparam tile: int in 1.. = 16\nmask = {mask}", **constants)


def table(batch=1, heads=HEADS, seed=0):
    kept = torch.rand(batch, heads, BLOCKS, BLOCKS, generator=torch.Generator().manual_seed(seed)) < 0.5
    return kept | torch.eye(BLOCKS, dtype=torch.bool)


def lists_of(kept):
    """kv_num_blocks and kv_indices; entries that do not count are garbage."""
    order = torch.argsort(kept.int(), dim=-1, descending=True, stable=True)
    counts = kept.sum(-1)
    used = torch.arange(BLOCKS) < counts[..., None]
    return counts.int(), torch.where(used, order, -7).int()


def block_mask(kept, mask_mod=None, full=None):
    counts, indices = lists_of(kept)
    more = (None, None) if full is None else tuple(part.clamp(min=0) for part in lists_of(full))
    return BlockMask.from_kv_blocks(counts, indices.clamp(min=0), *more, BLOCK, mask_mod, (SEQ, SEQ))


def inputs(batch=2):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(batch, HEADS, SEQ, 8, generator=generator, dtype=torch.float32) for _ in range(3)]


def pairs(blocks):
    """A table of blocks as a dense mask."""
    return blocks.bool().repeat_interleave(BLOCK, -1).repeat_interleave(BLOCK, -2)[..., :SEQ, :SEQ]


def assert_keeps(compiled, captures, dense):
    q, k, v = inputs()
    expected = scaled_dot_product_attention(q, k, v, attn_mask=dense)
    torch.testing.assert_close(compiled(q, k, v, **captures), expected, atol=1e-5, rtol=1e-5)


def test_a_block_mask_for_a_table_of_heads():
    mask = block_mask(table())
    attention = attn_dsl.compile(spec())
    given = attn_dsl.block_lists(attention.spec, mask)
    assert given["tile"] == BLOCK
    assert torch.equal(given["kept"], table()[0])
    assert_keeps(attention, given, pairs(table()))


def test_full_and_partial_lists_are_one_table():
    kept, full = table(seed=1), table(seed=2)
    mask = block_mask(kept & ~full, full=full)
    given = attn_dsl.block_lists(spec(), mask)
    assert torch.equal(given["kept"], (kept | full)[0])
    assert_keeps(attn_dsl.compile(spec()), given, pairs(kept | full))


def test_axes_are_those_of_the_spec():
    mask = block_mask(table(batch=2))
    turned = spec("kept: bool[keys, batch, rows, heads]", "kept[kv_idx // tile, b, q_idx // tile, h]")
    given = attn_dsl.block_lists(turned, mask)
    assert given["kept"].shape == (BLOCKS, 2, BLOCKS, HEADS)
    assert_keeps(attn_dsl.compile(turned), given, pairs(table(batch=2)))


def test_the_lists_themselves():
    counts, indices = lists_of(table()[0])
    given = attn_dsl.block_lists(spec(), (counts, indices), block_size=BLOCK, seq_q=SEQ, seq_k=SEQ)
    assert torch.equal(given["kept"], table()[0])
    one = table(heads=1)[0, 0]
    given = attn_dsl.block_lists(spec(), lists_of(one), block_size=(BLOCK, BLOCK), heads=HEADS)
    assert torch.equal(given["kept"], one.expand(HEADS, -1, -1))


def test_more_key_blocks_than_entries():
    counts, indices = torch.tensor([1, 2]), torch.tensor([[5, 0], [3, 1]])
    given = attn_dsl.block_lists(spec(), (counts, indices), block_size=16, seq_k=6 * 16 - 3, heads=1)
    assert given["kept"].nonzero().tolist() == [[0, 0, 5], [0, 1, 1], [0, 1, 3]]


def test_the_gallery_takes_block_masks():
    for name in ("block_topk", "bigbird"):
        gallery = attn_dsl.load(EXAMPLES / f"{name}.attn")
        given = attn_dsl.block_lists(gallery, block_mask(table()))
        assert sorted(given) == sorted({"block_topk": ["kept", "tile"], "bigbird": ["random_blocks", "block"]}[name])


@pytest.mark.parametrize("kind", ["created", "by hand", "with full blocks"])
def test_a_block_mask_becomes_a_spec(kind):
    def window(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx).abs() < 9 + h

    dense = create_mask(window, 2, HEADS, SEQ, SEQ, device="cpu")
    if kind == "created":
        mask = create_block_mask(window, 2, HEADS, SEQ, SEQ, device="cpu", BLOCK_SIZE=BLOCK)
    elif kind == "by hand":
        mask, dense = block_mask(table(), window), dense & pairs(table())
    else:
        full = table(seed=3) & ~table()
        mask, dense = block_mask(table(), window, full), dense & pairs(table()) | pairs(full)
    found = attn_dsl.from_flex(mask, dtype="f32")
    assert dict(found.spec.fixed_axes) == {"seq_q": SEQ, "seq_k": SEQ}
    assert_keeps(attn_dsl.compile(found.spec), found.captures, dense)
    q, k, v = (x[:, :, :-1] for x in inputs())
    with pytest.raises(attn_dsl.CallError):
        attn_dsl.compile(found.spec)(q, k, v, **found.captures)


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("mask = kv_idx <= q_idx", {}, "reads no table of blocks"),
        (
            "kept: bool[heads, rows, keys]\nmask = kept[h, q_idx // 16, kv_idx // 32]",
            {},
            "the spec has 32 keys of a block",
        ),
        ("kept: bool[rows, keys]\nmask = kept[q_idx // 16, kv_idx // 16]", {}, "differ along heads (3)"),
        (
            "kept: bool[batch, heads, rows, keys]\nmask = kept[b, h, q_idx // 16, kv_idx // 16]",
            {},
            "an axis batch, along which the lists have extent 1",
        ),
        (
            "x, y: bool[heads, rows, keys]\nmask = x[h, q_idx // 16, kv_idx // 16] or y[h, q_idx // 16, kv_idx // 16]",
            {},
            "the mask reads several",
        ),
        (
            "kept: bool[heads, rows, keys]\nmask = kept[h, q_idx // 16, kv_idx // 16]",
            {"heads": 4},
            "heads = 3, the call 4",
        ),
        (
            "kept: bool[heads, rows, keys]\nmask = kept[h, q_idx // 16, kv_idx // 16]",
            {"table": "x"},
            "'x' is none of them",
        ),
    ],
)
def test_specs_that_do_not_fit(text, arguments, said):
    with pytest.raises(ConversionError) as raised:
        attn_dsl.block_lists(attn_dsl.parse(HEAD + text), block_mask(table()), **arguments)
    assert raised.value.code == "E403"
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("counts", "indices", "said"),
    [
        ([1, 3], [[0, 1], [0, 1]], "kv_num_blocks[1] is 3, expected 0 to 2"),
        ([1, -1], [[0, 1], [0, 1]], "kv_num_blocks[1] is -1"),
        ([1, 2], [[0, 1], [0, 2]], "kv_indices[1, 1] is 2, expected 0 to 1"),
        ([1, 2], [[0, 1], [1, 1]], "names block 1 twice in row [1]"),
        ([1.0, 2.0], [[0, 1], [0, 1]], "counts and indices of blocks are ints"),
        ([1], [[0, 1], [0, 1]], "kv_indices has one axis more"),
    ],
)
def test_malformed_lists(counts, indices, said):
    with pytest.raises(ConversionError) as raised:
        attn_dsl.block_lists(spec(), (torch.tensor(counts), torch.tensor(indices)), block_size=16, heads=1)
    assert raised.value.code == "E403"
    assert said in str(raised.value)


def test_lengths_that_do_not_fit():
    with pytest.raises(ConversionError, match="the lists have 4 rows of blocks, and 30 query rows make 2"):
        attn_dsl.block_lists(spec(), lists_of(table()[0]), block_size=BLOCK, seq_q=30)
    with pytest.raises(TypeError, match="block_size"):
        attn_dsl.block_lists(spec(), lists_of(table()[0]))


def test_a_mask_mod_is_never_dropped():
    mask = block_mask(table(), lambda b, h, q_idx, kv_idx: kv_idx <= q_idx)
    with pytest.raises(ConversionError, match="partial blocks, in which its mask_mod decides"):
        attn_dsl.block_lists(spec(), mask)
