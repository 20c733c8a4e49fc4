"""Compiling a plan for Hopper: from the template to a function that takes tensors."""

from collections.abc import Callable

from attn_dsl.kernels.common.build import compile_template
from attn_dsl.kernels.sm90.forward import Forward
from attn_dsl.lowering.forward import ForwardPlan


def compile_forward(plan: ForwardPlan, options: str = "") -> Callable[..., None]:
    """The compiled kernel of `plan`: a function of (q, k, v, o, lse, arguments) as `Forward.__call__` takes them.

    `options` are further options of `cute.compile`, such as `--keep-ptx --dump-dir DIR`.
    """
    return compile_template(Forward(plan), plan, "sm_90a", options)
