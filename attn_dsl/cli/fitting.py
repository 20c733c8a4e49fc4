"""Whether a target can run a spec, as far as that is known before any tensor."""

from __future__ import annotations

from ..diagnostics import Diagnostic, PlanError, UnsupportedError
from ..spec import AttentionSpec


def target_problems(spec: AttentionSpec, target: str) -> tuple[Diagnostic, ...]:
    """Why `target` cannot run the spec. Raises UnsupportedError for a target that does not exist (E280).

    Head dimensions that calls decide are the smallest: what no plan has room for then, none has.
    """
    from ..lowering.forward.rules import dim_step
    from ..runtime import compile_for
    from ..runtime.kernels import KERNEL_TARGETS
    from ..runtime.precompile import jobs_of

    try:
        compile_for(spec, target)
        if target in KERNEL_TARGETS:
            jobs_of(spec, (target,), {axis: dim_step(spec) for axis in ("dim", "dim_v") if spec.fixed(axis) is None})
    except (UnsupportedError, PlanError) as error:
        if error.code == "E280":
            raise
        return error.diagnostics
    return ()
