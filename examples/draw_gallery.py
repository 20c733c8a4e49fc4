"""Draw the mask of every example and write the table of README.md: `make pictures`, after a spec was changed or added.

Each picture is made by `attn-dsl show --png` with the small sizes of `PICTURES`; the words of the table are the three
lines at the top of each spec: the variant, its formula, and who uses it.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from attn_dsl.cli import main as attn_dsl_command

EXAMPLES = Path(__file__).parent
README = EXAMPLES / "README.md"
MARK = "<!-- everything below is written by draw_gallery.py -->\n"
PIXELS = 216  # of the longer side of a mask, at most


@dataclass(frozen=True)
class Picture:
    """The call whose first sequence and head is drawn."""

    seq_q: int = 32
    seq_k: int = 32
    params: tuple[str, ...] = ()  # `--param`, where the spec's default is too large for a small picture
    constants: tuple[str, ...] = ()  # `--const`
    shape: tuple[str, ...] = ()  # `--shape`, for axes of tensors that only the score reads
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)  # what the mask reads, without the batch axis


def _runs(*lengths: int, first: int = 0) -> torch.Tensor:
    """The ids first, first + 1, ... in runs of these lengths."""
    return torch.arange(first, first + len(lengths)).repeat_interleave(torch.tensor(lengths)).int()


def _ones(size: int, *places: int) -> torch.Tensor:
    flags = torch.zeros(size, dtype=torch.bool)
    flags[list(places)] = True
    return flags


def _tree(*parents: int) -> torch.Tensor:
    """ancestor[node, other] of the tree in which node i hangs below parents[i]; -1 is the root's parent."""
    ancestor = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            ancestor[node] |= ancestor[parent]
    return ancestor


def _random_blocks(chosen: int) -> torch.Tensor:
    """`chosen` of 8 blocks for each of 8 blocks, [1 head, 8, 8]."""
    order = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(3)).argsort(dim=-1)
    return order < chosen


_CAUSAL = Picture()
_LENGTH = {"length": torch.tensor(22).int()}
_DOCUMENTS = {"document": _runs(11, 5, 12, 4)}
_IMAGE = torch.full((32,), -1).int()
_IMAGE[3:11], _IMAGE[19:27] = 0, 1

SECTIONS: dict[str, dict[str, Picture]] = {
    "Language models": {
        "llama_causal": _CAUSAL,
        "mistral_window": Picture(params=("window_tokens=8",)),
        "gemma2_local": Picture(params=("window_tokens=8",)),
        "gemma3_image": Picture(tensors={"image": _IMAGE}),
        "gpt_oss_local": Picture(params=("window_tokens=6",)),
        "softmax_plus_one": _CAUSAL,
        "streaming_llm": Picture(params=("first=3", "window_tokens=7")),
        "llama4_chunked": Picture(params=("chunk=8",)),
        "llama4_nope": _CAUSAL,
        "qwen_logn": _CAUSAL,
        "paligemma_prefix": Picture(params=("prefix_length=12",)),
        "packed_documents": Picture(tensors=_DOCUMENTS),
        "packed_documents_window": Picture(params=("window_tokens=6",), tensors=_DOCUMENTS),
        "shared_prefix": Picture(tensors={"document": _runs(10, 8, 7, 7), "prefix_of": torch.zeros(4).int()}),
        "eagle_tree": Picture(8, 32, tensors={"ancestor": _tree(-1, 0, 0, 1, 1, 2, 3, 6)}),
        "bd3lm_training": Picture(params=("block=4",)),
    },
    "Biases by position": {
        "bloom_alibi": _CAUSAL,
        "t5_decoder": _CAUSAL,
        "t5_encoder": Picture(),
        "jina_alibi": Picture(tensors=_LENGTH),
        "kerple_log": _CAUSAL,
        "sandwich": _CAUSAL,
        "forgetting_transformer": _CAUSAL,
    },
    "Encoders and sparse attention": {
        "vit_full": Picture(),
        "bert_padding": Picture(tensors=_LENGTH),
        "modernbert_window": Picture(params=("reach=5",)),
        "longformer": Picture(params=("reach=3",), tensors={"is_global": _ones(32, 0, 17)}),
        "longformer_dilated": Picture(params=("reach=9", "dilation=3")),
        "bigbird": Picture(params=("block=4",), tensors={"random_blocks": _random_blocks(1)}),
        "sparse_transformer": Picture(params=("stride=6",)),
        "phi3_small_blocks": Picture(params=("block=2", "local_blocks=3", "stride=4")),
        "block_topk": Picture(params=("tile=4",), tensors={"kept": _random_blocks(3)}),
    },
    "Images, video, pairs": {
        "swin_window": Picture(36, 36, params=("height=6", "width=6", "shift=1"), constants=("size=3",)),
        "swin_v2_cosine": Picture(36, 36),
        "natten_2d": Picture(36, 36, params=("height=6", "width=6", "kernel=3")),
        "sliding_tile": Picture(
            36, 36, params=("tiles_t=1", "tiles_h=4", "tiles_w=4", "kernel=3"), constants=("tile_tokens=2",)
        ),
        "sparse_videogen": Picture(34, 34, params=("prompt=4", "frame=6", "frames=1")),
        "flamingo_cross": Picture(32, 24, params=("latents=8",), tensors={"images_before": _runs(5, 9, 11, 7)}),
        "alphafold_pair_bias": Picture(tensors={"length": torch.tensor(32).int()}),
        "graphormer": Picture(shape=("distances=8",)),
    },
    "Layouts": {
        "packed_varlen": Picture(20, 32),
        "left_padded_batch": Picture(tensors={"padding": torch.tensor(8).int()}),
        "paged_decode": Picture(4, 32),
        "chunked_prefill": Picture(8, 32, tensors={"start": torch.tensor(14).int()}),
        "deepseek_mla_prefill": _CAUSAL,
        "deepseek_mla_absorbed": Picture(4, 32),
    },
}
PICTURES = {name: picture for section in SECTIONS.values() for name, picture in section.items()}

_PER_HEAD = ("random_blocks", "kept")  # tensors without a batch axis


def draw(name: str, folder: Path) -> Path:
    """Draw the mask of `examples/<name>.attn` into `folder`; the file's path."""
    picture = PICTURES[name]
    out = folder / f"{name}.png"
    scale = PIXELS // max(picture.seq_q, picture.seq_k)
    words = ["show", str(EXAMPLES / f"{name}.attn"), "--png", str(out), "--scale", str(scale), "--no-labels"]
    words += ["--seq-q", str(picture.seq_q), "--seq-k", str(picture.seq_k)]
    words += ["--shape", ",".join(("heads=1", *picture.shape))]
    words += [word for value in picture.params for word in ("--param", value)]
    words += [word for value in picture.constants for word in ("--const", value)]
    with tempfile.TemporaryDirectory() as scratch:
        for tensor, value in picture.tensors.items():
            path = Path(scratch) / f"{tensor}.pt"
            torch.save(value if tensor in _PER_HEAD else value[None], path)
            words += ["--tensor", f"{tensor}={path}"]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = attn_dsl_command(words)
    if code != 0:
        raise SystemExit(f"attn-dsl {' '.join(words)}: exit code {code}\n{said.getvalue()}")
    return out


def tables() -> Iterator[str]:
    """The lines of README.md that come from the specs."""
    for title, names in SECTIONS.items():
        yield f"\n## {title}\n\n"
        yield "| spec | mask | what it is | formula | where |\n"
        yield "|---|---|---|---|---|\n"
        for name in names:
            variant, formula, where = (EXAMPLES / f"{name}.attn").read_text(encoding="utf-8").splitlines()[:3]
            cells = (variant.removeprefix("# "), f"`{formula.removeprefix('#').strip()}`", where.removeprefix("# "))
            yield f"| [{name}]({name}.attn) | ![mask of {name}](pictures/{name}.png) | {' | '.join(cells)} |\n"


def readme() -> str:
    """README.md as it should be: its own words up to the mark, and the tables."""
    return README.read_text(encoding="utf-8").partition(MARK)[0] + MARK + "".join(tables())


def main() -> int:
    folder = EXAMPLES / "pictures"
    folder.mkdir(exist_ok=True)
    for name in PICTURES:
        print(draw(name, folder).relative_to(EXAMPLES))
    README.write_text(readme(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
