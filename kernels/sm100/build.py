"""Compiling a plan for Blackwell: from the template to a function that takes tensors."""

from collections.abc import Callable

from attn_dsl.kernels.common.build import compile_template
from attn_dsl.kernels.sm100.forward.kernel import Forward
from attn_dsl.kernels.sm100.mla.kernel import MlaForward
from attn_dsl.lowering.forward.sm100_mla_plan import MlaPlan
from attn_dsl.lowering.forward.sm100_plan import Sm100Plan


def compile_forward(plan: Sm100Plan, options: str = "") -> Callable[..., None]:
    """The compiled kernel of `plan`: a function of (q, k, v, o, lse, arguments) as `Forward.__call__` takes them.

    `options` are further options of `cute.compile`, such as `--keep-ptx --dump-dir DIR`.
    """
    template = MlaForward(plan) if isinstance(plan, MlaPlan) else Forward(plan)
    return compile_template(template, plan, plan.arch, options)
