"""Targets with kernels: from a bound call to a compiled kernel and its launch.

A kernel serves every value outside of its shape class: head dimensions, how many query heads share a tile, and whether
a parameter comes as a number or as a tensor. Everything else that it has built in is the spec's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from attn_dsl.lowering.forward import ForwardPlan, ParamArgument, ShapeClass, sm90, sm100

from ..diagnostics import CallError, Diagnostic, UnsupportedError
from ..expr import INT
from ..spec.model import AttentionSpec, Param
from .artifact import Artifact
from .binding import Call, Value
from .builder import About, Template, build, compile_plan
from .cache import kernel_cache, key_of
from .dtypes import spelling
from .family import Family, Running, make_family
from .kernel import Kernel
from .recipe import Layout, Recipe, layout_of, make_recipe
from .shortcut import RECENT, Filler, Shortcut, make_filler, make_shortcut
from .signature import Signature
from .splitting import JoinOf, Splitting, cached_join, splits_of, traced_join

MAX_FAMILIES = 16  # that a layout which was not seen before is compared with
MAX_RECIPES = 4096  # of one compiled object; the next layout then starts a new collection
_REFERENCE = "target='reference' runs everywhere"
Way = TypeVar("Way")  # Shortcut or Filler
_PARAM_DTYPES = {torch.int32: "i32", torch.int64: "i64", torch.float64: "f64"}


@dataclass(frozen=True, eq=False)
class KernelTarget:
    """What one architecture has of its own."""

    name: str
    capability: tuple[int, int]  # compute capability
    hardware: str  # as messages name it
    arch: str  # that its kernels are compiled for
    refusals: Callable[[AttentionSpec], tuple[Diagnostic, ...]]
    select: Callable[[AttentionSpec, ShapeClass], ForwardPlan]
    pack_of: Callable[[AttentionSpec, int], int]
    template: Callable[[], Template]  # needs CuTe DSL
    page_size_of: Callable[[AttentionSpec, ShapeClass, int], int] | None = None  # None: no spec with pages gets here
    siblings: tuple[KernelTarget, ...] = ()  # of other compute capabilities, under the same name


def _sm90_template() -> Template:
    from attn_dsl.kernels.sm90.build import compile_forward

    return compile_forward


def _sm100_template() -> Template:
    from attn_dsl.kernels.sm100.build import compile_forward

    return compile_forward


SM90 = KernelTarget(
    "sm90",
    (9, 0),
    "a Hopper GPU",
    "sm_90a",
    sm90.refusals,
    sm90.select,
    sm90.pack_of,
    _sm90_template,
    sm90.page_size_of,
)
_B200 = KernelTarget(
    "sm100",
    (10, 0),
    "a Blackwell GPU",
    "sm_100a",
    sm100.refusals,
    sm100.select,
    sm100.pack_of,
    _sm100_template,
    sm100.page_size_of,
)
SM103 = replace(_B200, capability=(10, 3), arch="sm_103a", select=partial(sm100.select, arch="sm_103a"))  # B300
SM100 = replace(_B200, siblings=(SM103,))
KERNEL_TARGETS = {target.name: target for target in (SM90, SM100)}


def compiled_kernel(plan: ForwardPlan, target: KernelTarget) -> Kernel:
    """The kernel of a plan, from the cache of compiled kernels or compiled now.

    Raises UnsupportedError (E282) if it has to be compiled and CuTe DSL is missing or of another release.
    """
    artifact, function = _from_cache(plan, target)
    return Kernel(artifact.info.signature, function, artifact)


def artifact_of(plan: ForwardPlan, target: KernelTarget) -> Artifact:
    """As `compiled_kernel`, the artifact alone."""
    return _from_cache(plan, target)[0]


def _from_cache(plan: ForwardPlan, target: KernelTarget) -> tuple[Artifact, Callable[..., Any]]:
    key = key_of(plan, target.arch)

    def make(folder: Path) -> Artifact:
        about = About(plan.name, plan.dim, plan.dim_v, Signature.of(plan, target.arch))
        return build(plan, about, target.template, folder, key)

    return kernel_cache().load(key, make)


@dataclass(frozen=True, eq=False)
class Kernels:
    """The kernels of one spec on one target, compiled when a call first needs them, or those of a bundle."""

    spec: AttentionSpec
    target: KernelTarget
    bundled: Callable[[ShapeClass], Kernel] | None = None  # finds a kernel of a bundle; None: kernels are compiled
    loaded: dict[ShapeClass, Kernel] = field(default_factory=dict, repr=False)  # a cache: changes no result
    compiled: dict[ShapeClass, Kernel] = field(default_factory=dict, repr=False)  # likewise, of `launch`
    signatures: dict[ShapeClass, Signature] = field(default_factory=dict, repr=False)  # likewise
    recipes: dict[Layout, Recipe] = field(default_factory=dict, repr=False)  # likewise
    shortcuts: dict[Layout, Shortcut] = field(default_factory=dict, repr=False)  # likewise, of some of the recipes
    fillers: dict[Layout, Filler] = field(default_factory=dict, repr=False)  # likewise, of others
    recent: list[Shortcut] = field(default_factory=list, repr=False)  # likewise, those used last
    recent_into: list[Filler] = field(default_factory=list, repr=False)  # likewise
    families: list[Family] = field(default_factory=list, repr=False)  # likewise, the newest first
    siblings: dict[str, Kernels] = field(default_factory=dict, repr=False)  # likewise, by architecture
    packs: dict[int, int] = field(default_factory=dict, repr=False)  # likewise: group -> heads that share a tile
    _compiling: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def differentiable(self) -> bool:
        return False

    def quick(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor | None, lse: Tensor | None, wants_lse: bool
    ) -> tuple[Tensor, Tensor] | None:
        """o and lse of a call whose layout, or one of its family, was seen before; None for others, and if something is
        wrong with it."""
        layout = layout_of(args, kwargs, out, lse)
        if layout is None:
            return None
        known = self.recipes.get(layout)
        recipe = self._derived(layout, out, lse) if known is None else known
        if recipe is None:
            return None
        found = recipe((*args, *kwargs.values()) if kwargs else args, out, lse, wants_lse)
        if found is None:
            return None
        if known is None:
            self._remember(layout, recipe)
        elif out is None and lse is None:
            _note(layout, self.shortcuts, self.recent, lambda: make_shortcut(recipe, args, kwargs))
        else:
            _note(layout, self.fillers, self.recent_into, lambda: make_filler(recipe, args, kwargs, out, lse))
        return found

    def _derived(self, layout: Layout, out: Tensor | None, lse: Tensor | None) -> Recipe | None:
        """The recipe of a new layout of a known family."""
        for family in self.families:
            recipe = family.recipe(layout, out, lse)
            if recipe is not None:
                return recipe
        return None

    def _remember(self, layout: Layout, recipe: Recipe) -> None:
        if len(self.recipes) >= MAX_RECIPES:
            self.recipes.clear()
            self.shortcuts.clear()
            self.fillers.clear()
        self.recipes[layout] = recipe

    def __call__(
        self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor | None, lse: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """o and lse of a bound call, written into the buffers that are given.

        Raises UnsupportedError (E282) for what is not here, CallError (E279) for a memory layout that TMA cannot read.
        """
        target = check_here(self.target, call.device)
        if target is not self.target:
            return self._sibling(target)(call, args, kwargs, out, lse)
        names = [tensor.name for tensor in self.spec.tensors][: len(args)]
        places = {name: place for place, name in enumerate((*names, *kwargs))}
        kernel = self._running(call, self.kernel, cached_join)
        recipe = _recipe(call, kernel, places, out, lse)
        values = (*args, *kwargs.values())
        result = recipe.run(values, out, lse)
        layout = layout_of(args, kwargs, out, lse)
        if layout is not None:
            self._remember(layout, recipe)
            if kernel is not None and self._derived(layout, out, lse) is None:
                family = make_family(call, layout, values, places, out, lse, recipe, self._all_like(call, kernel))
                if family is not None:
                    self.families[:] = [family, *self.families[: MAX_FAMILIES - 1]]
        return result

    def _all_like(self, call: Call, kernel: Kernel) -> Running:
        """What runs calls that differ from `call` in sizes, as `kernel` runs it."""
        shape = self._shape_class(call)
        whole = None if self.bundled is not None else self._signature(shape)
        if not isinstance(kernel.function, Splitting):
            return Running(kernel, whole, None)
        partial = self.kernel(replace(shape, partial=True))
        return Running(partial, whole, lambda count: Splitting.of(self.spec, shape.dim_v, partial, count, cached_join))

    def _sibling(self, target: KernelTarget) -> Kernels:
        """The kernels of a sibling of this target; recipes name their device, so both have them in one place."""
        found = self.siblings.get(target.arch)
        if found is None:
            found = Kernels(self.spec, target, self.bundled, recipes=self.recipes, families=self.families)
            found = self.siblings.setdefault(target.arch, found)
        return found

    def launch(self, call: Call, out: Tensor | None, lse: Tensor | None) -> tuple[Tensor, Tensor]:
        """o and lse on whatever device CuTe DSL launches to, by kernels compiled in this process."""
        values = {**call.tensors, **call.params}
        with torch.no_grad():
            places = {name: place for place, name in enumerate(values)}
            return _recipe(call, self._running(call, self.traced, traced_join), places, out, lse).run(
                list(values.values()), out, lse
            )

    def kernel(self, shape: ShapeClass) -> Kernel:
        """The kernel of a shape class. Raises PlanError and UnsupportedError as `select` does, E322 for a bundle."""
        found = self.loaded.get(shape)
        if found is None:
            with self._compiling:  # threads that want the same kernel wait for the first
                found = self.loaded.get(shape)
                if found is None:
                    found = self.loaded[shape] = self._made(shape)
        return found

    def _running(self, call: Call, kernel_of: Callable[[ShapeClass], Kernel], join_of: JoinOf) -> Kernel | None:
        """The kernel a call runs, by `kernel_of`; None if its outputs have no elements."""
        if not _has_elements(call):
            return None
        shape = self._shape_class(call)
        count = 1 if self.bundled is not None else splits_of(call, self._signature(shape))
        if count == 1:
            return kernel_of(shape)
        partial = kernel_of(replace(shape, partial=True))
        return replace(partial, function=Splitting.of(self.spec, shape.dim_v, partial, count, join_of))

    def kernel_for(self, call: Call) -> Kernel | None:
        """The kernel that a call runs, compiled if it has to be; None if its outputs have no elements."""
        return self._running(call, self.kernel, cached_join)

    def _shape_class(self, call: Call) -> ShapeClass:
        group = call.extents["heads"] // call.extents[self.spec.kv_heads_axis]
        if group not in self.packs:  # asking the mask takes a while
            self.packs[group] = self.target.pack_of(self.spec, group)
        return shape_class(call, self.target, self.packs[group])

    def _signature(self, shape: ShapeClass) -> Signature:
        """That of the kernel of a shape class, which need not be compiled."""
        if shape not in self.signatures:
            self.signatures[shape] = Signature.of(self.target.select(self.spec, shape), self.target.arch)
        return self.signatures[shape]

    def _made(self, shape: ShapeClass) -> Kernel:
        if self.bundled is not None:
            return self.bundled(shape)
        return compiled_kernel(self.target.select(self.spec, shape), self.target)

    def traced(self, shape: ShapeClass) -> Kernel:
        """As `kernel`, compiled anew in this process and kept in this object alone."""
        if shape not in self.compiled:
            plan = self.target.select(self.spec, shape)
            function = compile_plan(plan, self.target.template)
            self.compiled[shape] = Kernel(Signature.of(plan, self.target.arch), function, None)
        return self.compiled[shape]


def _recipe(
    call: Call, kernel: Kernel | None, places: Mapping[str, int], out: Tensor | None, lse: Tensor | None
) -> Recipe:
    if kernel is None:
        return make_recipe(call, None, None, places, out, lse)
    return make_recipe(call, kernel.signature, kernel.function, places, out, lse)


def _note(layout: Layout, known: dict[Layout, Way], recent: list[Way], make: Callable[[], Way | None]) -> None:
    """Lets the next call like this one take a shortcut."""
    found = known.get(layout)
    if found is None or found in recent:  # which were tried: they do not fit, though the layout does
        found = make()
        if found is None:
            return
        known[layout] = found
    recent[:] = [found, *recent[: RECENT - 1]]


def _has_elements(call: Call) -> bool:
    """Whether o and lse have elements: both have those of q's rows."""
    axes = ("batch", "heads", "seq_q", "total_q")
    names = {str(axis.name) for axis in call.spec.output.axes}
    return all(call.extents[axis] for axis in axes if axis in names)


def shape_class(call: Call, target: KernelTarget, pack: int | None = None) -> ShapeClass:
    """What a call decides at compile time; `pack` as the target says for its group of heads, if that is known."""
    spec = call.spec
    params = tuple(param_argument(param, call.params[param.name]) for param in spec.params if param.name in call.params)
    if pack is None:
        pack = target.pack_of(spec, call.extents["heads"] // call.extents[spec.kv_heads_axis])
    shape = ShapeClass(call.extents["dim"], call.extents[spec.dim_v_axis], params, pack)
    if spec.paging is None or target.page_size_of is None:
        return shape
    return replace(shape, page_size=target.page_size_of(spec, shape, call.extents["page_size"]))


def param_argument(param: Param, value: Value) -> ParamArgument:
    """The form in which a parameter comes."""
    is_int = param.type is INT
    form, dtype = "number", "i32" if is_int else "f32"
    if isinstance(value, Tensor):
        form = "axis_tensor" if value.dim() else "scalar_tensor"
        dtype = _PARAM_DTYPES.get(value.dtype) or spelling(value.dtype)
    return ParamArgument(param.name, is_int, param.per, form, dtype, param.low, param.high)


def tensor_argument(param: Param, axis: str | None = None, dtype: str | None = None) -> ParamArgument:
    """As `param_argument`, of a tensor: of one element, or one along `axis`; of i32 or f32 unless `dtype` is given.

    Raises CallError (E274) for an axis or a dtype that the parameter cannot have.
    """
    is_int = param.type is INT
    known = ("i32", "i64") if is_int else ("f32", "f64", "f16", "bf16")
    if axis is not None and axis != param.per:
        has = "one value" if param.per is None else f"a value for each element of '{param.per}'"
        raise CallError.of("E274", f"parameter '{param.name}' along '{axis}': it has {has}")
    if dtype is not None and dtype not in known:
        raise CallError.of("E274", f"parameter '{param.name}' in {dtype}: a tensor of it is {', '.join(known)}")
    form = "scalar_tensor" if axis is None else "axis_tensor"
    return ParamArgument(param.name, is_int, param.per, form, dtype or known[0], param.low, param.high)


def check_here(target: KernelTarget, device: torch.device) -> KernelTarget:
    """`target`, or the sibling of it that `device` needs. Raises UnsupportedError (E282) if neither runs there."""
    if device.type != "cuda":
        message = f"target '{target.name}' runs on CUDA tensors of {target.hardware}, not on {device}"
        raise UnsupportedError.of("E282", message, hint=_REFERENCE)
    found = _capability(device)
    fitting = next((each for each in (target, *target.siblings) if each.capability == found), None)
    if fitting is None:
        needed = ".".join(map(str, target.capability))
        name, here = torch.cuda.get_device_name(device), ".".join(map(str, found))
        message = f"target '{target.name}' needs compute capability {needed}; {device} is {name} with {here}"
        other = next((t.name for t in KERNEL_TARGETS.values() if t.capability == found), None)
        raise UnsupportedError.of("E282", message, hint=f"target='{other}' has kernels for it" if other else _REFERENCE)
    return fitting


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
