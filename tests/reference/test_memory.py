"""The reference holds nothing of size seq_q x seq_k: peak memory of forward and backward, in a process of their own."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource, sys
import torch

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

peaks = [peak()]
import attn_dsl
from attn_dsl.reference import attention
spec = attn_dsl.parse('''
q: f32[batch, seq_q, heads, dim]
k, v: f32[batch, seq_k, heads, dim]
slopes: f32[heads]
mask = kv_idx <= q_pos
score = score + slopes[h] * float(kv_idx - q_pos)
''')
dim = int(sys.argv[1])
for rows in map(int, sys.argv[2:]):
    tensors = {name: torch.randn(1, rows, 1, dim, requires_grad=True) for name in 'qkv'}
    tensors['slopes'] = torch.full((1,), 0.01, requires_grad=True)
    o, lse = attention(spec, tensors, {})
    (o.square().sum() + lse.sum()).backward()
    assert all(tensor.grad.isfinite().all() and tensor.grad.abs().sum() > 0 for tensor in tensors.values())
    peaks.append(peak())
print(json.dumps(peaks))
"""


def _peaks(dim, *rows):
    """Peak bytes after importing torch, then after each problem of so many rows."""
    command = [sys.executable, "-c", SCRIPT, str(dim), *map(str, rows)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_more_rows_add_less_than_two_matrices_of_scores():
    """From 1024 to 3072 rows only O(rows * dim) may be added; two f32 matrices of 3072 x 3072 are 72 MiB."""
    _, small, large = _peaks(64, 1024, 3072)
    assert large - small < 64 * 2**20


@pytest.mark.slow
def test_32768_rows_of_one_head_fit_in_2_gib():
    imported, peak = _peaks(128, 32768)
    assert peak - imported < 2 * 2**30
