"""CuTe DSL, made to compile for and call the virtual device: everything changed is put back at the end.

What is changed, all of it for the time of one device context: environment variables and settings of the DSL (its
architecture, its runtime library, its caches), the artifacts it keeps (PTX and cubin), and the places where it hands
tensors to a compiled function or asks a driver about the hardware.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch

from .errors import EmulatorError
from .hostcode import rename_runtime
from .runtime import addresses
from .tensors import OnDevice, Presented, convert, is_host_tensor

DISTRIBUTION = "nvidia-cutlass-dsl"
VERSIONS = ("4.8.",)  # the names and layouts of the runtime are private to a release
_MARK = "_attn_dsl_emulator"


class Owner(Protocol):
    """The device, as far as the patches need it."""

    arch: str  # "sm_100a"
    multiprocessors: int
    lines: bool  # whether cubins say which line of the PTX an instruction comes from

    def note(self, tensor: torch.Tensor) -> None: ...
    def note_range(self, base: int, size: int, owner: object) -> None: ...
    def compiled(self, ptx: str, cubin: bytes) -> None: ...
    def calling(self) -> Any: ...  # a context manager around every call of a compiled function


def check_version() -> None:
    """Raise E311 if CuTe DSL is missing or of a release the emulator does not know."""
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise EmulatorError.of(
            "E311", f"{DISTRIBUTION} is not installed", hint="pip install 'attn-dsl[cute]'"
        ) from None
    if not version.startswith(VERSIONS):
        raise EmulatorError.of(
            "E311",
            f"{DISTRIBUTION} {version} is installed",
            hint=f"the emulator knows {VERSIONS[0]}*: pip install {DISTRIBUTION}==4.8.1",
        )


@contextmanager
def patched(owner: Owner, library: str) -> Iterator[None]:
    """The DSL and torch see the device while this is open."""
    import cutlass  # before the environment changes: the DSL reads some of it when it is imported
    import cutlass.cute
    import cutlass.cute.runtime
    import cutlass.utils
    from cutlass._mlir._mlir_libs._cutlass_ir import _execution_engine as execution_engine
    from cutlass.base_dsl import compiler, dsl, jit_executor
    from cutlass.base_dsl.export import external_binary_module
    from cutlass.cutlass_dsl import cuda_jit_executor, tvm_ffi_provider

    with ExitStack() as undo:
        dump = undo.enter_context(tempfile.TemporaryDirectory(prefix="attn_dsl_"))
        _environment(undo, CUTE_DSL_ARCH=owner.arch, CUTE_DSL_LIBS=library)
        for instance in list(dsl.DSLSingletonMeta._instances.values()):
            settings = instance.envar
            for name, value in (("_arch", owner.arch), ("shared_libs", library), ("dump_dir", dump)):
                _replace(undo, settings, name, value)
            _replace(undo, settings, "disable_file_caching", True)
            if owner.lines:
                _replace(undo, settings, "lineinfo", True)
            # What was compiled outside must not be called inside, nor the other way round.
            _replace(undo, instance, "jit_cache", type(instance.jit_cache)(max_elems=settings.jit_cache_max_elems))
        _keep_artifacts(undo, owner, compiler, jit_executor)
        _linking(undo, compiler, execution_engine)
        _replace(undo, external_binary_module.ExternalBinaryModule, "__init__", _refuse_module)
        _calls(undo, owner, jit_executor, tvm_ffi_provider)
        _replace(undo, cuda_jit_executor.CudaDialectJitCompiledFunction, "num_devices", 1)
        _tensors(undo, owner, cutlass.cute.runtime)
        _hardware(undo, owner, cutlass.utils.HardwareInfo)
        _torch(undo, owner)
        undo.enter_context(OnDevice())
        yield


_ABSENT = object()


def _replace(undo: ExitStack, target: Any, name: str, value: object) -> None:
    """Set an attribute of an object or class, and put back what was there itself (inherited values by deletion)."""
    before = vars(target).get(name, _ABSENT)
    if before is _ABSENT:
        undo.callback(delattr, target, name)
    else:
        undo.callback(setattr, target, name, before)
    setattr(target, name, value)


def _environment(undo: ExitStack, **variables: str) -> None:
    for name, value in variables.items():
        before = os.environ.get(name)
        if before is None:
            undo.callback(os.environ.pop, name, None)
        else:
            undo.callback(os.environ.__setitem__, name, before)
        os.environ[name] = value


def _keep_artifacts(undo: ExitStack, owner: Owner, compiler: Any, jit_executor: Any) -> None:
    """Every compilation writes PTX and cubin, and the device learns which PTX a cubin came from."""
    options = compiler.CompileOptions
    apply = options.apply_envar_settings
    finish = jit_executor.JitFunctionArtifacts.__post_init__

    def apply_envar_settings(self: Any, envar: Any, function_name: str) -> None:
        for kind in (compiler.KeepPTX, compiler.KeepCUBIN):
            option = self.options[kind]
            if not option.value:  # these objects may outlive the device
                undo.callback(setattr, option, "value", option.value)
                option.value = True
        apply(self, envar, function_name)
        if self.gpu_arch and self.gpu_arch != owner.arch:
            raise EmulatorError.of(
                "E315",
                f"a kernel is compiled for {self.gpu_arch}, the device is an {owner.arch}",
                hint="leave --gpu-arch out",
            )

    def post_init(self: Any) -> None:
        finish(self)
        if isinstance(self.CUBIN, bytes) and self.PTX:
            owner.compiled(self.PTX, self.CUBIN)

    _replace(undo, options, "apply_envar_settings", apply_envar_settings)
    _replace(undo, jit_executor.JitFunctionArtifacts, "__post_init__", post_init)


def _linking(undo: ExitStack, compiler: Any, execution_engine: Any) -> None:
    """Host code is linked against the stand-in runtime, whatever else the process has loaded."""
    jit = compiler.Compiler.jit
    engine = execution_engine.BinaryExecutionEngine

    def jit_linked(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = jit(self, *args, **kwargs)
        for name, address in addresses().items():
            made.raw_register_runtime(name, ctypes.c_void_p(address))
        return made

    def binary_engine(module: bytes, *args: Any, **kwargs: Any) -> Any:
        return engine(rename_runtime(module), *args, **kwargs)

    _replace(undo, compiler.Compiler, "jit", jit_linked)
    _replace(undo, execution_engine, "BinaryExecutionEngine", binary_engine)


def _calls(undo: ExitStack, owner: Owner, jit_executor: Any, provider: Any) -> None:
    """Calls of compiled functions: only of those made for the device, with their tensors presented on it."""
    made = jit_executor.JitCompiledFunction.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        setattr(self, _MARK, owner.arch)

    _replace(undo, jit_executor.JitCompiledFunction, "__init__", init)

    def present(tensor: torch.Tensor) -> object:
        import tvm_ffi

        owner.note(tensor)
        return tvm_ffi.from_dlpack(Presented(tensor))

    def wrap(original: Callable[..., Any], presenting: bool) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            _check_mark(getattr(self, _MARK, None), owner.arch)
            if presenting:
                args = convert(args, present)
                kwargs = {name: convert(value, present) for name, value in kwargs.items()}
            with owner.calling():
                return original(self, *args, **kwargs)

        return call

    for kind in (provider.TVMFFIJitCompiledFunction, provider.TVMFFIJitCompiledFunctionWithKwargs):
        _replace(undo, kind, "__call__", wrap(kind.__call__, presenting=True))
    _replace(
        undo,
        jit_executor.JitCompiledFunction,
        "__call__",
        wrap(jit_executor.JitCompiledFunction.__call__, presenting=False),
    )
    run = jit_executor.JitExecutor.run_compiled_program

    def run_compiled_program(self: Any, exe_args: list[Any]) -> Any:
        with owner.calling():
            return run(self, exe_args)

    _replace(undo, jit_executor.JitExecutor, "run_compiled_program", run_compiled_program)


def _refuse_module(_self: Any, file_path: str, *_args: Any, **_options: Any) -> None:
    raise EmulatorError.of(
        "E313",
        f"{file_path} holds a compiled function without its PTX",
        hint="compile the function inside the device context, and switch caches of compiled functions off",
    )


def _check_mark(mark: str | None, arch: str) -> None:
    if mark is None:
        raise EmulatorError.of(
            "E313",
            "a function that was compiled outside the emulator is called inside",
            hint="compile it inside the device context",
        )
    if mark != arch:
        raise EmulatorError.of(
            "E315",
            f"a function compiled for {mark} is called on an {arch}",
            hint="a library may remember the first architecture it saw: use run_in_worker for another one",
        )


def _tensors(undo: ExitStack, owner: Owner, runtime: Any) -> None:
    """Tensors become CuTe tensors through DLPack: CPU ones as device tensors."""
    made = runtime._Tensor.__init__

    def init(self: Any, tensor: object, *args: Any, **kwargs: Any) -> None:
        if is_host_tensor(tensor):
            assert isinstance(tensor, torch.Tensor)
            owner.note(tensor)
            tensor = Presented(tensor)
        made(self, tensor, *args, **kwargs)

    pointers = runtime._Tensor.__c_pointers__

    def c_pointers(self: Any) -> Any:
        # Made before the device was opened, or from something else than a torch tensor.
        elements = 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.stride, strict=True))
        if all(self.shape):
            owner.note_range(self.data_ptr, elements * self.element_type.width // 8, self)
        return pointers(self)

    _replace(undo, runtime._Tensor, "__init__", init)
    _replace(undo, runtime._Tensor, "__c_pointers__", c_pointers)


def _hardware(undo: ExitStack, owner: Owner, info: Any) -> None:
    """Answers about the hardware that otherwise come from the driver."""

    def init(self: Any, device_id: int = 0) -> None:
        self.device_id = device_id

    def clusters(_self: Any, cluster_size: int, stream: object = None) -> int:
        del stream
        return owner.multiprocessors // cluster_size

    _replace(undo, info, "__init__", init)
    _replace(undo, info, "get_max_active_clusters", clusters)
    _replace(undo, info, "get_device_multiprocessor_count", lambda _self: owner.multiprocessors)
    _replace(undo, info, "get_l2_cache_size_in_bytes", lambda _self: 126 << 20 if "100" in owner.arch else 50 << 20)


class _Stream:
    """torch.cuda.current_stream() on the device: the default stream."""

    cuda_stream = 0
    device = torch.device("cpu")

    def synchronize(self) -> None:
        """Every launch has finished when it returns."""


class _Properties:
    def __init__(self, owner: Owner) -> None:
        self.major, self.minor = capability(owner.arch)
        self.multi_processor_count = owner.multiprocessors
        self.name = f"attn_dsl emulator, {owner.arch}"
        self.total_memory = 64 << 30
        self.warp_size = 32


def capability(arch: str) -> tuple[int, int]:
    """(10, 0) for "sm_100a"."""
    digits = arch.removeprefix("sm_").rstrip("af")
    return int(digits[:-1]), int(digits[-1])


def _torch(undo: ExitStack, owner: Owner) -> None:
    """Code written for a GPU asks torch whether there is one: CPU tensors answer for the device."""
    address = torch.Tensor.data_ptr

    def data_ptr(self: torch.Tensor) -> int:
        if is_host_tensor(self):
            owner.note(self)
        return address(self)

    _replace(undo, torch.Tensor, "data_ptr", data_ptr)
    _replace(undo, torch.Tensor, "is_cuda", property(lambda self: self.device.type in ("cpu", "cuda")))
    answers: dict[str, Callable[..., object]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: capability(owner.arch),
        "get_device_properties": lambda device=None: _Properties(owner),
        "get_device_name": lambda device=None: _Properties(owner).name,
        "current_stream": lambda device=None: _Stream(),
        "synchronize": lambda device=None: None,
    }
    for name, answer in answers.items():
        _replace(undo, torch.cuda, name, answer)
