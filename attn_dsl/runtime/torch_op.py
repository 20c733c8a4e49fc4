"""Calls as an operator of torch, `attn_dsl::attention`: what torch.compile, torch.export, fake tensors, autograd see.

A graph names a compiled object by its key, so a process that loads an exported program compiles the same spec first.
Calls of plain tensors that nobody traces do not come this way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import reference
from ..diagnostics import CallError, UnsupportedError
from ..spec.model import AttentionSpec, Axis
from .dtypes import TORCH_DTYPES, spelling

if TYPE_CHECKING:
    from .compiled import CompiledAttention

# bound here, since every call asks
is_compiling = torch.compiler.is_compiling
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack

_PLAIN = Tensor.__torch_dispatch__

_known: dict[str, CompiledAttention] = {}


def register(compiled: CompiledAttention) -> CompiledAttention:
    """Makes `compiled` findable by graphs."""
    _known.setdefault(compiled.key, compiled)
    return compiled


def has_to_dispatch() -> bool:
    """Whether somebody looks at the operators of this call: a compiler, a mode such as fake tensors, a transform."""
    return is_compiling() or _modes() > 0 or _transforms() is not None or forward_ad._current_level >= 0


def looks_inside(values: Iterable[Any]) -> bool:
    """Whether a value is a tensor of a kind that handles operators itself, such as a fake tensor."""
    return any(isinstance(value, Tensor) and type(value).__torch_dispatch__ is not _PLAIN for value in values)


def dispatch(
    compiled: CompiledAttention,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Tensor | None,
    lse: Tensor | None,
    debug: bool,
) -> tuple[Tensor, Tensor]:
    """o and lse by the operator; buffers get copies."""
    if forward_ad._current_level >= 0:  # torch would take their tangents for zeros
        message = "attention has no forward-mode derivatives, and a dual level (torch.func.jvp) is open"
        raise UnsupportedError.of("E281", message, hint="torch.autograd.grad and backward() give its gradients")
    tensors, forms, ints, floats = _arguments(compiled.spec, args, kwargs)
    found: tuple[Tensor, Tensor] = _attention(compiled.key, forms, tensors, ints, floats, debug)
    buffers = (("out", out, found[0]), ("lse", lse, found[1]))
    for name, buffer, value in buffers:
        if buffer is not None:
            _check_copy(name, buffer, value)
    o_value, lse_value = (value if buffer is None else buffer.copy_(value) for _, buffer, value in buffers)
    return o_value, lse_value


def _check_copy(name: str, buffer: Tensor, value: Tensor) -> None:
    """What `check_buffer` asks of a buffer, where the operator's result is copied there. Raises CallError (E278)."""
    if buffer.dtype != value.dtype:
        raise CallError.of("E278", f"{name} has dtype {spelling(buffer.dtype)}, expected {spelling(value.dtype)}")
    if buffer.shape != value.shape:
        raise CallError.of("E278", f"{name} has shape {list(buffer.shape)}, expected {list(value.shape)}")
    if torch.is_grad_enabled() and (buffer.requires_grad or value.requires_grad):
        hint = f"leave {name}= away, or call under torch.no_grad()"
        raise CallError.of("E278", f"{name} cannot be written while autograd records", hint=hint)


def _arguments(
    spec: AttentionSpec, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Tensor], str, list[int], list[float]]:
    """The operator's arguments. `forms` has a letter for each parameter: t(ensor), i(nt), f(loat), d(efault)."""
    names = [tensor.name for tensor in spec.tensors]
    params = [param.name for param in spec.params]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    wrong = [name for name in names if not isinstance(given.get(name), Tensor)]
    wrong += [name for name in given if name not in names and name not in params]
    if wrong or len(args) > len(names):
        raise CallError.of("E270", f"'{(*wrong, 'a tensor too many')[0]}' does not fit the spec's {', '.join(names)}")
    tensors: list[Tensor] = [given[name] for name in names]
    forms = ""
    ints: list[Any] = []  # of graphs: symbolic ones too
    floats: list[Any] = []
    for name in params:
        value = given.get(name)
        if value is None:
            forms += "d"
        elif isinstance(value, Tensor):
            forms += "t"
            tensors.append(value)
        elif isinstance(value, bool):
            raise CallError.of("E274", f"parameter '{name}' is {value} (bool), expected a number")
        elif isinstance(value, int | torch.SymInt):
            forms += "i"
            ints.append(value)
        else:
            forms += "f"
            floats.append(value)
    return tensors, forms, ints, floats


def _named(
    spec: AttentionSpec, forms: str, tensors: Sequence[Any], ints: Sequence[int], floats: Sequence[float]
) -> dict[str, Any]:
    """What `_arguments` took apart, by name."""
    count = len(spec.tensors)
    named: dict[str, Any] = {tensor.name: value for tensor, value in zip(spec.tensors, tensors[:count], strict=True)}
    rest = {"t": iter(tensors[count:]), "i": iter(ints), "f": iter(floats)}
    for param, form in zip(spec.params, forms, strict=True):
        if form != "d":
            named[param.name] = next(rest[form])
    return named


def _find(key: str) -> CompiledAttention:
    if key not in _known:
        message = f"a graph calls '{key}', and no spec of that key was compiled in this process"
        raise UnsupportedError.of("E282", message, hint="call attn_dsl.compile with its spec and target first")
    return _known[key]


@torch.library.custom_op("attn_dsl::attention", mutates_args=())
def _attention(
    key: str, forms: str, tensors: list[Tensor], ints: list[int], floats: list[float], debug: bool
) -> tuple[Tensor, Tensor]:
    compiled = _find(key)
    with torch.no_grad():
        return compiled.checked((), _named(compiled.spec, forms, tensors, ints, floats), None, None, debug)


@_attention.register_fake
def _(
    key: str,
    forms: str,  # noqa: ARG001 - the schema's
    tensors: list[Tensor],
    ints: list[int],  # noqa: ARG001
    floats: list[float],  # noqa: ARG001
    debug: bool,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    spec = _find(key).spec
    extents = _extents(spec, tensors)
    shapes = [[extents[str(axis.name)] for axis in axes] for axes in (spec.output.axes, reference.lse_axes(spec))]
    q = tensors[0]
    return q.new_empty(shapes[0], dtype=TORCH_DTYPES[spec.output.dtype]), q.new_empty(shapes[1], dtype=torch.float32)


def _extents(spec: AttentionSpec, tensors: Sequence[Tensor]) -> dict[str, Any]:
    """Extents of axes by name, symbolic ones as they are: nothing is compared, so nothing is specialised."""
    found: dict[str, Any] = {}

    def note(axes: Sequence[Axis], shape: Sequence[Any]) -> None:
        for axis, extent in zip(axes, shape, strict=True):
            if axis.name is not None and axis.extent is None:
                found.setdefault(axis.name, extent)

    for tensor, value in zip(spec.tensors, tensors, strict=False):
        if value.dim() != len(tensor.axes):
            axes = ", ".join(map(str, tensor.axes))
            raise CallError.of("E271", f"{tensor.name} has {value.dim()} axes, expected {len(tensor.axes)}: [{axes}]")
        note(tensor.axes, value.shape)
    by_name = {tensor.name: value for tensor, value in zip(spec.tensors, tensors, strict=False)}
    for view in spec.views:
        parts = zip(view.slices, by_name[view.base].shape, strict=True)
        note(view.tensor.axes, [e if p.kind == "keep" else p.stop - p.start for p, e in parts if p.kind != "select"])
    return found | dict(spec.fixed_axes)


@torch.library.custom_op("attn_dsl::attention_backward", mutates_args=())
def _attention_backward(
    key: str,
    forms: str,
    grad_o: Tensor,
    grad_lse: Tensor,
    tensors: list[Tensor],
    ints: list[int],
    floats: list[float],
) -> list[Tensor]:
    """Gradients of the tensors that hold floats, by the reference."""
    spec = _find(key).spec
    # Operators run below autograd, which the reference needs. Another thread would begin above it, and wait for ever
    # where autograd's own thread of a GPU waits for this.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False), torch.enable_grad():
        return _reference_gradients(spec, forms, grad_o, grad_lse, tensors, ints, floats)


def _reference_gradients(
    spec: AttentionSpec,
    forms: str,
    grad_o: Tensor,
    grad_lse: Tensor,
    tensors: list[Tensor],
    ints: list[int],
    floats: list[float],
) -> list[Tensor]:
    leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
    named = _named(spec, forms, leaves, ints, floats)
    params: dict[str, Any] = {param.name: named.get(param.name, param.default) for param in spec.params}
    operands = {tensor.name: named[tensor.name] for tensor in spec.tensors}
    o_value, lse = reference.attention(spec, operands, params, precision="float32")
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    gradients = [grad_o.to(o_value.dtype), grad_lse.to(lse.dtype)]
    found: tuple[Any, ...] = torch.autograd.grad([o_value, lse], wanted, gradients, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g.contiguous() for leaf, g in zip(wanted, found, strict=True)]


@_attention_backward.register_fake
def _(
    key: str,  # noqa: ARG001
    forms: str,  # noqa: ARG001
    grad_o: Tensor,  # noqa: ARG001
    grad_lse: Tensor,  # noqa: ARG001
    tensors: list[Tensor],
    ints: list[int],  # noqa: ARG001
    floats: list[float],  # noqa: ARG001
) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in tensors if t.is_floating_point()]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    key, forms, tensors, ints, floats, _ = inputs
    ctx.key, ctx.forms, ctx.ints, ctx.floats = key, forms, ints, floats
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(True)
    del output


def _backward(ctx: Any, grad_o: Tensor, grad_lse: Tensor) -> tuple[Any, ...]:
    tensors = list(ctx.saved_tensors)
    found = iter(_attention_backward(ctx.key, ctx.forms, grad_o, grad_lse, tensors, ctx.ints, ctx.floats))
    gradients = [next(found) if tensor.is_floating_point() else None for tensor in tensors]
    # torch takes an empty list for a list of tensors
    return None, None, gradients, None if ctx.ints else [], None if ctx.floats else [], None


def _no_second_derivative(ctx: Any, *gradients: Any) -> Any:  # noqa: ARG001
    message = "attention has first derivatives, and a second one is asked for"
    raise UnsupportedError.of("E281", message, hint="leave create_graph=True out")


_attention.register_autograd(_backward, setup_context=_setup)
_attention_backward.register_autograd(_no_second_derivative)
