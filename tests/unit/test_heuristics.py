"""What the heuristics choose for kernels that are no products, and that it is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retarget as rt
from retarget import pipeline
from retarget.optimize.heuristics import choose_schedule
from retarget.optimize.schedule import Schedule
from retarget.registry.capabilities import Capabilities, Limits

RNG = np.random.default_rng(0)


def capabilities(threads: int = 2, bits: int = 256) -> Capabilities:
    """Return a CPU's, whatever this machine is."""
    return pipeline.toolchain("llvm").capabilities._replace(
        vector_bits=bits, threads=threads, caches=(32 << 10, 512 << 10)
    )


def chosen(y: Any, threads: int = 2) -> Schedule:
    (kernel,) = rt.lower(*(y if isinstance(y, tuple) else (y,)))
    return choose_schedule(kernel, capabilities(threads))


def ones(*shape: int, dtype: str = "f4") -> Any:
    return rt.asarray(np.ones(shape, dtype), device="llvm")


def axes_of(s: Schedule, kind: str) -> list[tuple[str, int | None]]:
    return [(a.name, a.size) for _, axes in s.splits for a in axes if a.kind == kind]


def test_a_full_sum_is_cut_by_its_size_alone() -> None:
    y = rt.sum(ones(1 << 20))
    assert str(chosen(y)) == str(chosen(y, threads=1)) == str(chosen(y, threads=64))
    assert axes_of(chosen(y), "thread") == [("r1t", None)]
    assert axes_of(chosen(y), "own") == [("r1f", 4), ("r1a", 2)]  # far streams, and two vectors of each


def test_a_short_sum_stays_on_one_thread() -> None:
    assert axes_of(chosen(rt.sum(ones(1000))), "thread") == []


def test_few_long_rows_are_cut_along_the_reduction() -> None:
    s = chosen(rt.sum(ones(3, 1 << 20), axis=1))
    assert axes_of(s, "thread") == [("r2t", None)]


def test_many_rows_are_shared_out_and_read_several_at_a_time() -> None:
    s = chosen(rt.sum(ones(1024, 1024), axis=1))
    assert axes_of(s, "thread") == [("r0t", None)]
    assert axes_of(s, "unroll") == [("r0u", 4)]


@pytest.mark.parametrize("function", [lambda x: rt.sum(x, axis=1), lambda x: rt.softmax(x, axis=1)])
def test_one_thread_gets_the_schedule_of_two(function: Callable[[Any], Any]) -> None:
    y = function(ones(1024, 1024))
    assert str(chosen(y, threads=1)) == str(chosen(y, threads=2))


def test_columns_are_added_row_by_row() -> None:
    s = chosen(rt.sum(ones(4096, 1024), axis=0))
    assert axes_of(s, "thread") == [("r2t", None)]
    assert axes_of(s, "unroll") == [("r2u", 4)]
    assert s.order[-1] == "r1v"
    assert s.order.index("r2") < s.order.index("r1o")


def test_wide_columns_are_taken_in_blocks_that_fit_the_first_cache() -> None:
    s = chosen(rt.sum(ones(4096, 8192), axis=0))
    assert ("r1o", 128) in axes_of(s, "loop")


def test_a_kernel_that_writes_rows_and_sums_follows_the_rows() -> None:
    x = ones(2048, 512)
    s = chosen((rt.sum(x, axis=1), rt.max(x, axis=1)))
    assert axes_of(s, "vector") == [("r2v", 8)]


def test_the_exponentials_of_a_softmax_are_kept_in_the_output() -> None:
    assert [str(t) for t in chosen(rt.softmax(ones(256, 512), axis=1)).stages] == ["stage=EXP@r0:out"]
    assert chosen(rt.softmax(ones(16, 1 << 20), axis=1)).stages == ()  # a row does not stay in the cache


def test_lanes_are_those_of_what_is_computed() -> None:
    """Bytes are computed in float32: 8 lanes, not 32."""
    x = ones(64, 256, dtype="u1")
    assert axes_of(chosen(rt.astype(rt.astype(x, rt.float32) * 0.5, rt.uint8)), "vector") == [("r0v", 8)]
    assert axes_of(chosen(rt.bitwise_xor(x, x + 1)), "vector") == [("r0v", 32)]


def test_what_the_caches_cannot_hold_is_stored_past_them() -> None:
    x = ones(1024, 1024)
    assert chosen(x + 1).streams == ("out0",)  # 4 MiB; the caches have 1
    assert chosen(ones(256, 256) + 1).streams == ()
    assert chosen(rt.softmax(ones(256, 256), axis=1)).streams == ()


def test_the_exponentials_of_a_softmax_past_the_caches_have_a_row_of_their_own() -> None:
    s = chosen(rt.softmax(ones(1024, 1024), axis=1))
    assert [str(t) for t in s.stages] == ["stage=EXP@r0"]
    assert s.streams == ("out0",)
    without_room = capabilities()._replace(limits=Limits(local_bytes=4096))
    (kernel,) = rt.lower(rt.softmax(ones(1024, 1024), axis=1))
    s = choose_schedule(kernel, without_room)
    assert [str(t) for t in s.stages] == ["stage=EXP@r0:out"]
    assert s.streams == ()  # it reads what it keeps there


def test_vectors_of_costly_functions_stand_side_by_side() -> None:
    x = ones(64, 256)
    assert axes_of(chosen(rt.tanh(x) + 1), "vector") == [("r0v", 16)]
    assert axes_of(chosen(rt.sqrt(x) + 1), "vector") == [("r0v", 8)]
    assert axes_of(chosen(rt.softmax(x, axis=1)), "vector") == [("r1v", 32)]
    assert axes_of(chosen(rt.softmax(ones(64, 48), axis=1)), "vector") == [("r1v", 16)]  # 32 do not divide
    assert axes_of(chosen(rt.sum(rt.exp(x), axis=1)), "vector") == [("r2v", 8)]  # has accumulators of its own


def test_a_transpose_goes_by_square_blocks() -> None:
    s = chosen(rt.permute_dims(ones(1024, 1024), (1, 0)))
    (stage,) = s.stages
    assert (stage.what, stage.at, stage.space) == ("in0", "r0k", "register")
    assert dict(axes_of(s, "vector")) == {"r1v": stage.turned}
    assert dict(axes_of(s, "unroll"))["r0u"] == stage.turned
    x = ones(1024, 1024)
    assert chosen(rt.permute_dims(x, (1, 0)) + x).stages == ()  # read at two places: no tile serves both


CASES: dict[str, tuple[tuple[int, ...], Callable[[Any], Any], Callable[[np.ndarray], Any]]] = {
    "sum": ((300_001,), lambda x: rt.sum(x), lambda a: a.sum()),
    "sum of a matrix": ((640, 513), lambda x: rt.sum(x), lambda a: a.sum()),
    "max": ((700, 700), lambda x: rt.max(x), lambda a: a.max()),
    "few rows": ((3, 200_000), lambda x: rt.sum(x, axis=1), lambda a: a.sum(1)),
    "rows": ((1000, 515), lambda x: rt.sum(x, axis=1), lambda a: a.sum(1)),
    "columns": ((1000, 515), lambda x: rt.sum(x, axis=0), lambda a: a.sum(0)),
    "wide columns": ((70, 9000), lambda x: rt.sum(x, axis=0), lambda a: a.sum(0)),
    "narrow columns": ((100_003, 3), lambda x: rt.sum(x, axis=0), lambda a: a.sum(0)),
    "middle axis": ((7, 300, 520), lambda x: rt.sum(x, axis=1), lambda a: a.sum(1)),
    "outer and inner axes": ((30, 100, 130), lambda x: rt.sum(x, axis=(0, 2)), lambda a: a.sum((0, 2))),
    "variance": ((2000, 300), lambda x: rt.var(x, axis=0), lambda a: a.var(0)),
    "transpose": ((300, 520), lambda x: rt.permute_dims(x, (1, 0)) * 2, lambda a: a.T * 2),
    "ragged transpose": ((301, 517), lambda x: rt.permute_dims(x, (1, 0)) * 2, lambda a: a.T * 2),
    "channels last": ((3, 20, 30, 41), lambda x: rt.permute_dims(x, (0, 2, 3, 1)) * 2,
                      lambda a: a.transpose(0, 2, 3, 1) * 2),
    "softmax": ((500, 700), lambda x: rt.softmax(x, axis=1), lambda a: _softmax(a)),
}


def _softmax(a: np.ndarray) -> np.ndarray:
    e = np.exp(a - a.max(1, keepdims=True))
    values: np.ndarray = e / e.sum(1, keepdims=True)
    return values


@pytest.mark.parametrize("device", ["llvm", "clang"])
@pytest.mark.parametrize("size", [(70, 512), (65, 700), (99, 49)])
def test_a_softmax_past_the_caches_is_right(
    device: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of its own, and stores past the caches, on a target whose caches are small."""
    values = RNG.standard_normal(size).astype("f4")
    y = rt.softmax(rt.asarray(values, device=device), axis=1)
    (kernel,) = rt.lower(y)
    tools = pipeline.toolchain(device)
    s = choose_schedule(kernel, tools.capabilities._replace(caches=(4096, 16384), threads=1))
    assert s.stages[0].space == "local"
    with rt.with_schedule(s):
        np.testing.assert_allclose(y.numpy(), _softmax(values.astype("f8")), rtol=1e-5)


@pytest.mark.parametrize("device", ["llvm", "clang"])
@pytest.mark.parametrize("name", CASES)
def test_values(device: str, name: str) -> None:
    shape, compute, right = CASES[name]
    values = RNG.standard_normal(shape).astype("f4")
    got = compute(rt.asarray(values, device=device)).numpy()
    np.testing.assert_allclose(got, right(values.astype("f8")), rtol=2e-5, atol=2e-3)


def test_axes_that_every_access_walks_together_are_one_loop() -> None:
    x = ones(30, 20, 77)
    assert str(chosen(x * x)).startswith("r0*r1*r2=")
    assert str(chosen(x * ones(77))).startswith("r0*r1=")
    assert "*" not in str(chosen(x * ones(20, 1)))
    (kernel,) = rt.lower(x * x)
    assert "for (int r0o = 0; r0o < 5775; r0o++) {" in rt.render(kernel, "clang").text.replace("r0t*", "")


def test_two_outputs_share_one_pass() -> None:
    """Independent reductions of two outputs read the input once."""
    x = ones(64, 256)
    (kernel,) = rt.lower(rt.sum(x, axis=1), rt.max(x, axis=1))
    assert rt.render(kernel, "clang").text.count("in0[") == 1
    values = RNG.standard_normal((64, 256)).astype("f4")
    y = rt.asarray(values, device="llvm")
    total, largest = rt.sum(y, axis=1), rt.max(y, axis=1)
    np.testing.assert_allclose(total.numpy(), values.sum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(largest.numpy(), values.max(1))


@pytest.mark.parametrize("device", ["llvm", "numpy"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: rt.reshape(x, (4, 128))[:, :70].T,
        lambda x: rt.permute_dims(rt.pad(rt.reshape(x, -1, copy=False)[:3, None], ((0, 1), (2, 3))), (1, 0)),
    ],
    ids=["not affine in an axis", "both along memory"],
)
def test_transposes_of_what_no_tile_can_be_cut_from(device: str, function: Callable[[Any], Any]) -> None:
    x = np.arange(512, dtype="f4").reshape(4, 2, 64)
    wanted = np.asarray(function(rt.asarray(x, device="numpy")))
    np.testing.assert_array_equal(np.asarray(function(rt.asarray(x, device=device))), wanted)


@pytest.mark.parametrize("device", ["numpy", "llvm"])
@pytest.mark.parametrize("rows", [3, 5, 40])
def test_rows_of_a_line_are_no_windows(device: str, rows: int) -> None:
    """Rows of any length: what lanes reach beyond the end of one is in the next."""
    for length in (4, 7, 9, 31):
        x = RNG.standard_normal(rows * length).astype("f4")
        found = rt.sum(rt.reshape(rt.asarray(x, device=device), (rows, length)), axis=0).numpy()
        np.testing.assert_allclose(found, x.reshape(rows, length).sum(axis=0), atol=1e-4)
