"""The virtual device: CuTe DSL code on CPU tensors, every way it can be called, and everything put back at the end."""

import os
import threading
from pathlib import Path

import pytest
import torch

cutlass = pytest.importorskip("cutlass")  # CuTe DSL is an extra

import cuda.bindings.driver as cuda  # noqa: E402
import cute_kernels as kernels  # noqa: E402
import cutlass.cute as cute  # noqa: E402
from cutlass.base_dsl import compiler, dsl, jit_executor  # noqa: E402
from cutlass.cute.runtime import from_dlpack, make_ptr  # noqa: E402
from cutlass.cutlass_dsl import cuda_jit_executor, tvm_ffi_provider  # noqa: E402

from attn_dsl import emulator  # noqa: E402
from attn_dsl.emulator import EmulatorError, KernelFinding, execute  # noqa: E402
from attn_dsl.emulator.allocations import Allocations  # noqa: E402

ARCHITECTURES = ("sm_100a", "sm_90a")
N = 1000


def vectors(count: int = N) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(count)
    return torch.randn(count, generator=make), torch.randn(count, generator=make), torch.full((count,), torch.nan)


def code_of(caught: "pytest.ExceptionInfo[EmulatorError]") -> str:
    return caught.value.code


# calls


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_jit_function_runs_when_called(arch: str):
    a, b, c = vectors()
    with emulator.device(arch) as gpu:
        kernels.add(from_dlpack(a), from_dlpack(b), from_dlpack(c), N)
    assert torch.equal(c, a + b)
    [report] = gpu.reports
    assert report.config.grid == (8, 1, 1)
    assert report.config.block == (128, 1, 1)
    assert report.classes["f32"] == 32
    assert "add" in gpu.report()


def test_a_compiled_function_runs_on_tensors_of_any_length():
    a, b, c = vectors()
    with emulator.device("sm_100a"):
        tensors = [from_dlpack(t).mark_layout_dynamic() for t in (a, b, c)]
        compiled = cute.compile(kernels.add, *tensors, N)
        compiled(*tensors, N)
        assert torch.equal(c, a + b)
        a, b, c = vectors(77)
        compiled(*(from_dlpack(t).mark_layout_dynamic() for t in (a, b, c)), 77)
    assert torch.equal(c, a + b)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_function_compiled_with_tvm_ffi_takes_torch_tensors(arch: str):
    a, b, c = vectors()
    with emulator.device(arch) as gpu:
        fakes = [from_dlpack(t, enable_tvm_ffi=True).mark_layout_dynamic() for t in (a, b, c)]
        compiled = cute.compile(kernels.add, *fakes, N, options="--enable-tvm-ffi")
        compiled(a, b, c, N)
        assert torch.equal(c, a + b)
        a, b, c = vectors(130)
        compiled(a, b, c, 130)
    assert torch.equal(c, a + b)
    assert len(gpu.reports) == 2


def test_tensors_wrapped_before_the_device_was_opened_and_numpy_arrays():
    a, b, c = vectors()
    x, y = from_dlpack(a[2:]), from_dlpack(b.numpy())
    with emulator.device("sm_100a") as gpu:
        kernels.add(x, y, from_dlpack(c), N - 2)
        assert torch.equal(c[: N - 2], a[2:] + b[:-2])
        with pytest.raises(KernelFinding, match="oob"):
            kernels.add(x, y, from_dlpack(c), N)
    assert len(gpu.reports) == 2


def test_streams_are_taken():
    a, b, c = vectors()
    with emulator.device("sm_100a"):
        kernels.add_on_stream(from_dlpack(a), from_dlpack(b), from_dlpack(c), N, cuda.CUstream(7))
    assert torch.equal(c, a + b)


def test_the_stream_of_the_environment_is_found_by_the_device_of_the_tensors():
    a, b, c = vectors()
    with emulator.device("sm_100a"):
        tensors = [from_dlpack(t, enable_tvm_ffi=True).mark_layout_dynamic() for t in (a, b, c)]
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
        compiled = cute.compile(kernels.add_on_stream, *tensors, N, stream, options="--enable-tvm-ffi")
        compiled(a, b, c, N)
    assert torch.equal(c, a + b)


def test_several_kernels_of_one_call_run_in_order():
    a, b, c = vectors()
    with emulator.device("sm_100a", record=True) as gpu:
        kernels.add_twice(from_dlpack(a), from_dlpack(b), from_dlpack(c), N)
    assert torch.equal(c, a + b + b)
    assert [launch.programmatic for launch in gpu.launches] == [False, True]


def test_clusters():
    out = torch.full((8,), -1, dtype=torch.int32)
    with emulator.device("sm_100a") as gpu:
        kernels.ranks(from_dlpack(out))
    assert out.tolist() == [0, 1] * 4
    assert gpu.reports[0].config.cluster == (2, 1, 1)


def test_dynamic_shared_memory_and_its_limit():
    a, _, out = vectors(128)
    with emulator.device("sm_90a") as gpu:
        kernels.reverse(from_dlpack(a), from_dlpack(out), 1024)
        with pytest.raises(Exception, match=r"shared memory|smem|cudaError"):
            kernels.reverse(from_dlpack(a), from_dlpack(out), 300_000)
    assert torch.equal(out, a.flip(0))
    assert gpu.reports[0].config.dyn_smem == 1024
    assert len(gpu.reports) == 1


def test_printf():
    with emulator.device("sm_100a") as gpu:
        kernels.say(42)
    assert gpu.reports[0].printed.strip() == "thread 3 has 42"


# findings


@pytest.mark.parametrize("tvm_ffi", [False, True])
def test_a_finding_is_raised_as_what_it_is(tvm_ffi: bool):
    out = torch.zeros(16)
    with emulator.device("sm_100a") as gpu:
        tensor = from_dlpack(out, enable_tvm_ffi=tvm_ffi)
        compiled = cute.compile(kernels.store_far, tensor, 0, options="--enable-tvm-ffi" if tvm_ffi else "")
        compiled(out if tvm_ffi else tensor, 3)
        with pytest.raises(KernelFinding, match="oob") as caught:
            compiled(out if tvm_ffi else tensor, 1 << 20)
        compiled(out if tvm_ffi else tensor, 5)
    assert code_of(caught) == "E319"
    [finding] = caught.value.findings
    assert finding.kind == "oob"
    assert "st.global" in finding.source
    assert out.nonzero().flatten().tolist() == [3, 5]
    assert [len(report.findings) for report in gpu.reports] == [0, 1, 0]


def test_findings_can_be_collected():
    out = torch.zeros(16)
    with emulator.device("sm_100a", findings="collect") as gpu:
        kernels.store_far(from_dlpack(out), 1 << 20)
    assert [finding.kind for finding in gpu.findings] == ["oob"]
    assert "oob" in gpu.report()


def test_memory_of_a_tensor_that_is_gone_is_named():
    with emulator.device("sm_100a") as gpu:
        lost = torch.zeros(1024)
        address = lost.data_ptr()
        pointer = make_ptr(cutlass.Float32, address, cute.AddressSpace.gmem, assumed_align=16)
        compiled = cute.compile(kernels.store_at, pointer, 0)
        compiled(pointer, 1)
        assert lost[1] == 1.0
        del lost
        with pytest.raises(EmulatorError, match="freed") as caught:
            compiled(pointer, 2)
    assert code_of(caught) == "E314"
    assert len(gpu.reports) == 1


def test_memory_that_changes_during_a_launch_is_named():
    known, tensor = Allocations(), torch.zeros(64)
    known.note(tensor)
    before = known.live()
    known.check_unchanged("k", before)
    tensor.untyped_storage().resize_(16)
    with pytest.raises(EmulatorError, match="resized") as caught:
        known.check_unchanged("k", before)
    assert code_of(caught) == "E314"


def test_a_tensor_resized_while_its_kernel_runs_is_named(monkeypatch: pytest.MonkeyPatch):
    a, b, c = vectors()
    run = execute.Loaded.run

    def resizing(self, *arguments):
        report = run(self, *arguments)
        c.untyped_storage().resize_(16)  # as another thread might
        return report

    monkeypatch.setattr(execute.Loaded, "run", resizing)
    with emulator.device("sm_100a"), pytest.raises(EmulatorError, match="freed or resized during the launch") as caught:
        kernels.add(from_dlpack(a), from_dlpack(b), from_dlpack(c), N)
    assert code_of(caught) == "E314"


def test_a_launch_can_be_replayed():
    a, b, c = vectors()
    with emulator.device("sm_100a", record=True) as gpu:
        kernels.add(from_dlpack(a), from_dlpack(b), from_dlpack(c), N)
    [launch] = gpu.launches
    assert launch.image[:4] == b"\x7fELF"
    c.zero_()
    launch.replay(seed=5)
    assert torch.equal(c, a + b)
    launch.replay(launch.ptx.replace("add.f32", "sub.f32"))
    assert torch.equal(c, a - b)


# the context


def settings() -> dict[str, object]:
    """Everything a device context may touch."""
    found: dict[str, object] = {f"os.{name}": os.environ.get(name) for name in ("CUTE_DSL_ARCH", "CUTE_DSL_LIBS")}
    owners = {
        "Tensor": torch.Tensor,
        "torch.cuda": torch.cuda,
        "CompileOptions": compiler.CompileOptions,
        "Compiler": compiler.Compiler,
        "JitFunctionArtifacts": jit_executor.JitFunctionArtifacts,
        "JitCompiledFunction": jit_executor.JitCompiledFunction,
        "JitExecutor": jit_executor.JitExecutor,
        "CudaDialectJitCompiledFunction": cuda_jit_executor.CudaDialectJitCompiledFunction,
        "TVMFFIJitCompiledFunction": tvm_ffi_provider.TVMFFIJitCompiledFunction,
        "TVMFFIJitCompiledFunctionWithKwargs": tvm_ffi_provider.TVMFFIJitCompiledFunctionWithKwargs,
        "HardwareInfo": cutlass.utils.HardwareInfo,
        "_Tensor": cute.runtime._Tensor,
    }
    for instance in dsl.DSLSingletonMeta._instances.values():
        owners[f"{instance.name}.envar"] = instance.envar
        found[f"{instance.name}.jit_cache"] = instance.jit_cache
        found[f"{instance.name}.jit_cache: functions"] = len(instance.jit_cache._dict)
        options = instance.compile_options.options
        found |= {f"{instance.name}.{kind.__name__}": option.value for kind, option in options.items()}
    for owner, target in owners.items():
        found |= {f"{owner}.{name}": value for name, value in vars(target).items()}
    return found


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    absent = object()
    return [name for name in {**before, **after} if before.get(name, absent) is not after.get(name, absent)]


def test_nothing_stays_changed():
    a, b, c = vectors()
    before = settings()
    with emulator.device("sm_100a"):
        assert len(changed(before, settings())) > 20
        assert a.is_cuda
        assert torch.cuda.get_device_capability() == (10, 0)
        kernels.add(from_dlpack(a), from_dlpack(b), from_dlpack(c), N)
    assert changed(before, settings()) == []
    assert not a.is_cuda
    with pytest.raises(ValueError, match="inside"), emulator.device("sm_90a"):
        raise ValueError("inside")
    assert changed(before, settings()) == []


def test_code_that_says_cuda_gets_cpu_tensors_inside_only():
    with emulator.device("sm_100a"):
        a = torch.ones(4, device="cuda")
        b = torch.zeros(4).to("cuda:0", torch.float64)
        c = torch.empty_like(b, device=torch.device("cuda", 0)).cuda()
        assert {t.device.type for t in (a, b, c)} == {"cpu"}
        assert b.dtype == torch.float64
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(4, device="cuda")


def test_a_kernel_for_another_architecture_is_refused():
    a, b, c = vectors()
    with emulator.device("sm_90a"):
        tensors = [from_dlpack(t) for t in (a, b, c)]
        with pytest.raises(Exception, match="sm_100a"):
            cute.compile(kernels.add, *tensors, N, options="--gpu-arch sm_100a")


def test_a_compiled_module_from_a_file_is_refused(tmp_path: Path):
    with emulator.device("sm_100a"), pytest.raises(EmulatorError, match=r"func\.o") as caught:
        cute.runtime.load_module(str(tmp_path / "func.o"), enable_tvm_ffi=True)
    assert code_of(caught) == "E313"


def test_a_kernel_that_never_ends_is_given_up():
    with emulator.device("sm_100a", budget=10_000), pytest.raises(KernelFinding, match="10000") as caught:
        kernels.forever(1)
    assert caught.value.findings[0].kind == "budget"


def test_devices_do_not_nest():
    with (
        emulator.device("sm_100a"),
        pytest.raises(EmulatorError, match="open already") as caught,
        emulator.device("sm_90a"),
    ):
        pass
    assert code_of(caught) == "E313"
    with emulator.device("sm_90a"):
        pass


def test_another_thread_cannot_open_a_second_device():
    caught: list[BaseException] = []

    def open_it() -> None:
        try:
            with emulator.device("sm_90a"):
                pass
        except BaseException as error:
            caught.append(error)

    with emulator.device("sm_100a"):
        thread = threading.Thread(target=open_it)
        thread.start()
        thread.join()
        assert torch.cuda.get_device_capability() == (10, 0)  # the first one is as it was
    [error] = caught
    assert isinstance(error, EmulatorError)
    assert error.code == "E313"


def test_a_device_belongs_to_its_thread():
    a, b, c = vectors()
    caught: list[BaseException] = []
    with emulator.device("sm_100a"):
        tensors = [from_dlpack(t) for t in (a, b, c)]
        compiled = cute.compile(kernels.add, *tensors, N)

        def call() -> None:
            try:
                compiled(*tensors, N)
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    [error] = caught
    assert isinstance(error, EmulatorError)
    assert error.code == "E313"
    assert c.isnan().all()


def test_a_function_compiled_outside_is_refused_inside(monkeypatch: pytest.MonkeyPatch):
    a, b, c = vectors()
    for instance in dsl.DSLSingletonMeta._instances.values():
        monkeypatch.setattr(instance.envar, "_arch", "sm_100a")
    tensors = [from_dlpack(t) for t in (a, b, c)]
    compiled = cute.compile(kernels.add, *tensors, N)
    with emulator.device("sm_100a"), pytest.raises(EmulatorError, match="outside") as caught:
        compiled(*tensors, N)
    assert code_of(caught) == "E313"


@pytest.mark.parametrize("tvm_ffi", [False, True])
def test_a_function_compiled_inside_outlives_the_device_but_needs_one(tvm_ffi: bool):
    a, b, c = vectors()
    with emulator.device("sm_100a"):
        tensors = [from_dlpack(t, enable_tvm_ffi=tvm_ffi) for t in (a, b, c)]
        compiled = cute.compile(kernels.add, *tensors, N, options="--enable-tvm-ffi" if tvm_ffi else "")
        compiled(*((a, b, c) if tvm_ffi else tensors), N)
    c.fill_(torch.nan)
    with pytest.raises(Exception, match=r"device|NoDevice"):  # a TVM-FFI function refuses CPU tensors
        compiled(*((a, b, c) if tvm_ffi else tensors), N)
    assert c.isnan().all()
    with emulator.device("sm_100a"):
        compiled(*((a, b, c) if tvm_ffi else tensors), N)
    assert torch.equal(c, a + b)
    with emulator.device("sm_90a"), pytest.raises(EmulatorError, match="sm_100a is called on an sm_90a") as caught:
        compiled(*((a, b, c) if tvm_ffi else tensors), N)
    assert code_of(caught) == "E315"


def test_bad_arguments_of_device():
    for options in ({"arch": "sm_80"}, {"findings": "loud"}):
        with pytest.raises(EmulatorError) as caught, emulator.device(**options):
            pass
        assert code_of(caught) in ("E315", "E312")


def test_an_unknown_release_of_the_dsl_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9.9")
    with pytest.raises(EmulatorError, match=r"9\.9\.9") as caught, emulator.device("sm_100a"):
        pass
    assert code_of(caught) == "E311"
