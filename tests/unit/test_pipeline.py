"""The stages as functions: lower, render, compile and load, from Python."""

from __future__ import annotations

import numpy as np
import pytest
from devices import require

import retarget as rt
from retarget import pipeline
from retarget.errors import DTypeError, LaunchError, ScheduleError, UnknownNameError
from retarget.optimize.schedule import parse_schedule
from retarget.runtime.buffers import allocate, data_of, from_numpy, host_view


@pytest.fixture
def llvm() -> str:
    return require("llvm")


def ones(*shape: int) -> rt.Array:
    return rt.asarray(np.ones(shape, "f4"), device="numpy")


def test_from_array_to_executable(llvm: str) -> None:
    x = rt.asarray(np.arange(6, dtype="f4"), device=llvm)
    (kernel,) = rt.lower(x * 2 + 1)
    binary = rt.compile(kernel, "llvm")
    assert binary.entry in rt.render(kernel, "llvm").text and binary.target == "llvm/native"
    assert [(a.name, a.dtype, a.shape, a.writable) for a in binary.arguments] == [
        ("out0", "float32", (6,), True),
        ("in0", "float32", (6,), False),
    ]
    run = rt.load(binary, llvm)
    source, result = data_of(x.node), data_of(from_numpy(np.zeros(6, "f4"), llvm))
    run([result.handle, source.handle])
    rt.synchronize(llvm)
    found = from_numpy(np.zeros(6, "f4"), llvm)
    run([data_of(found).handle, source.handle])
    assert host_view(found).tolist() == [1, 3, 5, 7, 9, 11]
    with pytest.raises(LaunchError):
        run([source.handle])


def test_lowering_and_rendering_need_no_device() -> None:
    (kernel,) = rt.lower(rt.softmax(ones(4, 16), axis=1))
    first, second = rt.render(kernel, "llvm"), rt.render(kernel, "llvm", provenance=True)
    assert first.text == second.text
    with pytest.raises(UnknownNameError, match="llvm"):
        rt.render(kernel, "lvm")


def test_what_a_kernel_says_of_itself() -> None:
    (kernel,) = rt.lower(ones(8, 16) @ ones(16, 4))
    assert kernel.flops == 2 * 8 * 16 * 4 and kernel.bytes == 4 * (8 * 16 + 16 * 4 + 8 * 4)
    assert len(kernel.inputs) == 2 and len(kernel.outputs) == 1
    assert "REDUCE" in str(kernel)


def test_kernels_come_in_an_order_in_which_they_can_run() -> None:
    kernels = rt.lower(rt.softmax(ones(4, 16) @ ones(16, 8), axis=1))
    assert len(kernels) == 2 and kernels[0].outputs[0] in kernels[1].inputs


def test_wrong_arguments() -> None:
    with pytest.raises(DTypeError, match="asarray"):
        rt.lower(3)  # type: ignore[arg-type]


def test_memory_is_freed_with_its_owner(llvm: str) -> None:
    from retarget.runtime.allocator import host_allocator

    before = host_allocator().statistics().used
    buffer = allocate(1 << 20, llvm)
    assert host_allocator().statistics().used >= before + (1 << 20)
    del buffer
    assert host_allocator().statistics().used == before


def test_an_illegal_choice_of_the_heuristics_is_no_error(llvm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs in plain loops, and a warning says so; a schedule that was asked for stays an error."""
    illegal = parse_schedule("r0=a:t; r1=b:t")
    monkeypatch.setattr(pipeline, "heuristic_schedule", lambda kernel, tools: illegal)
    monkeypatch.setenv("RETARGET_CACHE", "0")
    x = np.arange(12, dtype="f4").reshape(3, 4)
    with pytest.warns(RuntimeWarning, match="plain loops.*r0=a:t"):
        found = (rt.asarray(x, device=llvm) * 3 + 2).numpy()
    assert found.tolist() == (x * 3 + 2).tolist()
    with rt.with_schedule(illegal), pytest.raises(ScheduleError):
        (rt.asarray(x, device=llvm) * 5 + 4).realize()
