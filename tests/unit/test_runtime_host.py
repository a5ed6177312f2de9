"""The runtime of CPU devices: launches, bound launches, copies, and what is said about wrong arguments."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from retarget.errors import CompileError, DeviceError, LaunchError
from retarget.registry.backend import Argument, Binary, Executable, Launch, Runtime
from retarget.runtime.allocator import Allocator
from retarget.runtime.host import HostExecutable, HostRuntime

# scale: out[i] = a[i] * scale, one int64 per chunk.
KERNEL = """
define void @scale(ptr %buffers, ptr %variables, i64 %begin, i64 %end) {
entry:
  %out = load ptr, ptr %buffers
  %a.at = getelementptr ptr, ptr %buffers, i64 1
  %a = load ptr, ptr %a.at
  %scale = load i64, ptr %variables
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %from = getelementptr i64, ptr %a, i64 %i
  %x = load i64, ptr %from
  %y = mul i64 %x, %scale
  %to = getelementptr i64, ptr %out, i64 %i
  store i64 %y, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
define void @nothing(ptr %buffers, ptr %variables, i64 %begin, i64 %end) {
  ret void
}
"""


@pytest.fixture(scope="module")
def data() -> bytes:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
    code: bytes = machine.emit_object(binding.parse_assembly(KERNEL))
    return code


ARGUMENTS = (
    Argument("out", "buffer", "int64", writable=True),
    Argument("a", "buffer", "int64"),
    Argument("scale", "variable", "int64"),
)


def binary(data: bytes, chunks: int, entry: str = "scale") -> Binary:
    arguments = ARGUMENTS if entry == "scale" else ()
    return Binary(data, entry, "llvm/native", arguments, Launch(chunks=chunks))


@pytest.fixture
def runtime() -> HostRuntime:
    return HostRuntime(Allocator())


def upload(runtime: HostRuntime, values: np.ndarray) -> int:
    handle = runtime.allocate(values.nbytes)
    runtime.copy_in(handle, memoryview(values))
    return handle


def download(runtime: HostRuntime, handle: int, count: int) -> list[int]:
    values = np.empty(count, np.int64)
    runtime.copy_out(memoryview(values), handle)
    result: list[int] = values.tolist()
    return result


@pytest.mark.parametrize("chunks", [1, 2, 1000])
def test_launch(data: bytes, runtime: HostRuntime, chunks: int) -> None:
    run = runtime.load(binary(data, chunks))
    a, out = upload(runtime, np.arange(chunks)), runtime.allocate(8 * chunks)
    run([out, a], [3])
    assert download(runtime, out, chunks) == [3 * i for i in range(chunks)]
    run((out, a), (-1,))
    assert download(runtime, out, chunks) == [-i for i in range(chunks)]
    launch = run.bind([out, a], [7])
    for _ in range(3):
        launch()
    assert download(runtime, out, chunks) == [7 * i for i in range(chunks)]
    assert 0 < run.time([out, a], [9]) < 10
    assert download(runtime, out, chunks) == [9 * i for i in range(chunks)]


def test_without_arguments(data: bytes, runtime: HostRuntime) -> None:
    run = runtime.load(binary(data, 1, "nothing"))
    run([])
    run.bind([])()
    with pytest.raises(LaunchError, match="0 buffers and 0 variables"):
        run([], [1])


@pytest.mark.parametrize(
    ("buffers", "variables"),
    [
        ([1], [1]), ([1, 2, 3], [1]), ([1, 2], []), ([1, 2], [1, 2]), ([1, 2], [1 << 63]), ([1, -2], [1]),
        ([1, "x"], [1]), ([1, 2], [1.5]), ([1, None], [1]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("bound", [False, True])
def test_wrong_arguments(
    data: bytes, runtime: HostRuntime, buffers: list[int], variables: list[int], bound: bool
) -> None:
    run = runtime.load(binary(data, 1))
    with pytest.raises(LaunchError, match=r"'scale' takes 2 buffers and 1 variables .*out: int64 buffer"):
        run.bind(buffers, variables) if bound else run(buffers, variables)


@pytest.mark.parametrize("chunks", [0, -1, 2**31])
def test_wrong_chunks(data: bytes, runtime: HostRuntime, chunks: int) -> None:
    with pytest.raises(LaunchError, match="chunks"):
        runtime.load(binary(data, chunks))


def test_wrong_binary(data: bytes, runtime: HostRuntime) -> None:
    with pytest.raises(CompileError, match="no symbol 'other'"):
        runtime.load(binary(data, 1, "other"))
    with pytest.raises(CompileError):
        runtime.load(binary(data[:100], 1))


@pytest.mark.parametrize("chunks", [1, 3])
def test_threads_do_not_share_arguments(data: bytes, runtime: HostRuntime, chunks: int) -> None:
    run = runtime.load(binary(data, chunks))
    wrong: list[int] = []

    def work(scale: int) -> None:
        a, out = upload(runtime, np.arange(1, chunks + 1)), runtime.allocate(8 * chunks)
        for _ in range(500):
            run([out, a], [scale])
            if download(runtime, out, chunks) != [scale * (i + 1) for i in range(chunks)]:
                wrong.append(scale)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_bound_launch_keeps_the_kernel(data: bytes, runtime: HostRuntime) -> None:
    run = runtime.load(binary(data, 1))
    a, out = upload(runtime, np.array([5])), runtime.allocate(8)
    launch, gone = run.bind([out, a], [2]), weakref.ref(run._object)
    del run
    gc.collect()
    launch()
    assert download(runtime, out, 1) == [10]
    del launch
    gc.collect()
    assert gone() is None


def test_copies(runtime: HostRuntime) -> None:
    handle = runtime.allocate(16)
    assert runtime.host_address(handle) == handle
    runtime.copy_in(handle, memoryview(b"0123456789abcdef"))
    part = bytearray(10)
    runtime.copy_out(memoryview(part), handle)
    assert bytes(part) == b"0123456789"
    runtime.copy_in(handle, memoryview(b""))
    runtime.copy_out(memoryview(bytearray()), handle)
    scalar = np.array(7, np.int64)
    runtime.copy_in(handle, memoryview(scalar))
    assert download(runtime, handle, 1) == [7]
    runtime.synchronize()
    runtime.free(handle)
    with pytest.raises(DeviceError):
        runtime.free(handle)


def test_wrong_copies(runtime: HostRuntime) -> None:
    handle = runtime.allocate(64)
    with pytest.raises(DeviceError, match="block of 64 bytes"):
        runtime.copy_in(handle, memoryview(bytes(65)))
    with pytest.raises(DeviceError, match="block of 64 bytes"):
        runtime.copy_out(memoryview(bytearray(65)), handle)
    with pytest.raises(DeviceError, match="not contiguous"):
        runtime.copy_in(handle, memoryview(np.zeros(16, np.int8)[::2]))
    with pytest.raises(DeviceError, match="read-only"):
        runtime.copy_out(memoryview(bytes(8)), handle)


def test_contract(data: bytes, runtime: HostRuntime) -> None:
    """The classes fit the protocols; type checkers see it here, and the members exist."""
    contract: Runtime = runtime
    executable: Executable = contract.load(binary(data, 1))
    assert isinstance(executable, HostExecutable)
