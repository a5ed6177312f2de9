"""Sizes that are bound at launch: one capture and one kernel for all of them, on every CPU device."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import require

import retarget as rt
from retarget.errors import RetargetError, ShapeError, UnknownNameError
from retarget.ir import dtypes, ops
from retarget.ir.index import TRUE, in_bounds, irange
from retarget.ir.sizes import evaluate, size_text, upper_numel
from retarget.ir.text import dump, format_arg, parse, parse_arg
from retarget.ir.uop import UOp
from retarget.pipeline import with_schedule
from retarget.runtime import realize

LENGTHS = (1, 2, 3, 4, 17, 1000, 1)
ROWS = ("n", 1, 4096)
N = UOp(ops.VAR, dtypes.index, (), ("n", 1, 64))


@pytest.fixture(params=["llvm", "clang", "numpy"])
def device(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return str(request.param)


def lengths(device: str) -> tuple[int, ...]:
    return LENGTHS if device != "numpy" else (1, 2, 3, 4, 17, 1)  # the interpreter runs loops in Python


# -- arithmetic --------------------------------------------------------------------------------------------


def test_arithmetic_is_canonical_and_constants_are_ints() -> None:
    assert N + N is 2 * N
    assert 3 * N // N == 3 and type(3 * N // N) is int
    assert (3 * N + 3) // 3 is N + 1
    assert 6 * N * N // (2 * N) is 3 * N
    assert N - N == 0
    assert (3 * N) % N == 0
    assert size_text(3 * N + 1) == "3*n+1"
    assert evaluate((N * N + 7) // 8, {"n": 5}) == 4
    assert upper_numel((N, 3)) == 192


def test_comparisons_are_decided_by_bounds_or_refused() -> None:
    assert N < 65 and N <= 64 and N >= 1 and 2 * N > 1 and N <= 2 * N
    for undecided in (lambda: N < 3, lambda: N > 1, lambda: N >= 2):
        with pytest.raises(ShapeError, match="depends on n"):
            undecided()
    with pytest.raises(ShapeError):
        N // (N + 1)


def test_a_size_in_an_argument_has_a_text() -> None:
    size = (N * N + 3 * N) // 4 + 1
    assert parse_arg(format_arg((size, 2))) == (size, 2)
    node = UOp(ops.BUFFER, dtypes.float32, (), (1, (size, 4), "llvm:0"))
    assert parse(dump(node)) is node


def test_a_range_of_symbolic_size_needs_no_mask() -> None:
    assert in_bounds(irange(N, "r0"), N) is TRUE
    assert in_bounds(irange(N, "r0"), N - 1) is not TRUE


# -- values ------------------------------------------------------------------------------------------------


def test_a_sum_of_the_first_elements(device: str) -> None:
    values = rt.asarray(np.array([10, 20, 30, 40, 50]), device=device)
    f = rt.jit(lambda x, n: rt.sum(rt.take(x, rt.arange(n))), symbolic={"n": ("n", 1, 5)})
    assert [f(values, n).item() for n in (1, 2, 3, 4, 1)] == [10, 30, 60, 100, 10]


def test_a_sum_of_the_first_elements_of_an_outer_array() -> None:
    values = rt.asarray(np.array([10, 20, 30, 40, 50]))
    f = rt.jit(lambda n: rt.sum(rt.take(values, rt.arange(n))), symbolic={"n": ("n", 1, 5)})
    assert [f(n).item() for n in (1, 2, 3, 4, 1)] == [10, 30, 60, 100, 10]


def test_a_symbolic_axis_that_is_not_the_first(device: str) -> None:
    def g(zero: Any, n: Any) -> Any:
        return (rt.arange(3 * n).reshape(3, n) + 1 + zero).T.flatten()

    zero = rt.asarray(np.zeros((1, 1), np.int64), device=device)
    f = rt.jit(g, symbolic={"n": ("n", 1, 4)})
    for n in (1, 2, 3, 4, 1):
        found = np.asarray(f(zero, n))
        np.testing.assert_array_equal(found, (np.arange(3 * n).reshape(3, n) + 1).T.flatten())
        assert found.shape == (3 * n,) and found[1] == n + 1


def softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    powers = np.exp(x - x.max(-1, keepdims=True))
    result: np.ndarray[Any, Any] = powers / powers.sum(-1, keepdims=True)
    return result


WEIGHTS = np.random.default_rng(1).standard_normal((8, 5)).astype(np.float32)

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "elementwise": (lambda x, w: x * 2 + 1, lambda x, w: x * 2 + 1),
    "softmax": (lambda x, w: rt.softmax(x, axis=-1), lambda x, w: softmax(x)),
    "softmax over the symbolic axis": (lambda x, w: rt.softmax(x, axis=0), lambda x, w: softmax(x.T).T),
    "matmul": (lambda x, w: x @ w, lambda x, w: x @ w),
    "transposed product": (lambda x, w: x.T @ x, lambda x, w: x.T @ x),
    "sum": (lambda x, w: rt.sum(x, axis=0), lambda x, w: x.sum(0)),
    "sum of everything": (lambda x, w: rt.sum(x), lambda x, w: x.sum()),
    "mean": (lambda x, w: rt.mean(x, axis=0), lambda x, w: x.mean(0)),
    "mean of everything": (lambda x, w: rt.mean(x), lambda x, w: x.mean()),
    "variance": (lambda x, w: rt.var(x, axis=0), lambda x, w: x.var(0)),
    "max": (lambda x, w: rt.max(x, axis=0), lambda x, w: x.max(0)),
    "argmax": (lambda x, w: rt.argmax(x, axis=0), lambda x, w: x.argmax(0)),
    "pad": (lambda x, w: rt.pad(x, ((1, 2), (0, 1))), lambda x, w: np.pad(x, ((1, 2), (0, 1)))),
    "merge": (
        lambda x, w: rt.reshape(rt.reshape(x, (x.shape[0], 2, 4)) + 1, (x.shape[0] * 2, 4)) * 2,
        lambda x, w: (x.reshape(-1, 2, 4) + 1).reshape(-1, 4) * 2,
    ),
    "flatten": (lambda x, w: rt.reshape(x + 1, -1) * 2, lambda x, w: (x + 1).reshape(-1) * 2),
    "flip": (lambda x, w: rt.flip(x, axis=0), lambda x, w: x[::-1]),
    "slice": (lambda x, w: x[:-1] + 1, lambda x, w: x[:-1] + 1),
    "first and last": (lambda x, w: x[0] + x[-1], lambda x, w: x[0] + x[-1]),
    "gather": (
        lambda x, w: rt.take(x, rt.asarray([0, -1], device=x.device), axis=0),
        lambda x, w: x[[0, -1]],
    ),
    "two kernels": (lambda x, w: (x + rt.sum(x)) @ w, lambda x, w: (x + x.sum()) @ w),
    "twice": (lambda x, w: rt.sum(x - rt.mean(x, axis=0), axis=1), lambda x, w: (x - x.mean(0)).sum(1)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_capture_serves_all_lengths(name: str, device: str) -> None:
    function, expected = FUNCTIONS[name]
    f = rt.jit(function, symbolic={"x": ROWS})
    weights = rt.asarray(WEIGHTS, device=device)
    rng = np.random.default_rng(0)
    kernels = 0
    for n in lengths(device):
        x = rng.standard_normal((n, 8)).astype(np.float32)
        found = np.asarray(f(rt.asarray(x, device=device), weights))
        wanted = expected(x, WEIGHTS)
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * math.sqrt(n))
        compiled = len(realize._kernels._values)
        assert kernels in (0, compiled), f"n = {n} compiled a kernel of its own"
        kernels = compiled
    assert len(f._captures) == 1


@pytest.mark.parametrize("schedule", ["r0=r0t:t,r0/8", "r0=r0o,r0v/8:v", "r0=r0o,r0u/4:u", "r0=r0t/4096:t"])
def test_a_split_of_a_symbolic_range_is_masked(schedule: str) -> None:
    with with_schedule(schedule):
        f = rt.jit(lambda x: x * x + 1, symbolic={"x": ROWS})
        for n in LENGTHS:
            x = np.arange(n, dtype=np.float32)
            np.testing.assert_array_equal(np.asarray(f(rt.asarray(x, device="llvm"))), x * x + 1)


@pytest.mark.parametrize("schedule", ["r0=r0o,r0v/8:v", "r0=r0o,r0a/2:a,r0v/8:v", "r0=r0c:c,r0/64"])
@pytest.mark.parametrize("fold", ["sum", "max"])
def test_a_split_of_a_symbolic_reduction_is_masked(schedule: str, fold: str) -> None:
    with with_schedule(schedule):
        f = rt.jit(getattr(rt, fold), symbolic={"x": ROWS})
        for n in LENGTHS:
            x = -1 - np.arange(n, dtype=np.float32)
            assert f(rt.asarray(x, device="llvm")).item() == getattr(np, fold)(x)


def test_a_plan_comes_from_the_disk_for_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETARGET_CACHE_DIR", str(tmp_path))
    f = rt.jit(lambda x: rt.sum(x * 3, axis=1), symbolic={"x": ROWS})
    assert f(rt.asarray(np.ones((3, 4)))).tolist() == [12.0] * 3
    realize.clear_memory_cache()

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("lowered again")

    monkeypatch.setattr(realize, "lower_graph", refuse)
    again = rt.jit(lambda x: rt.sum(x * 3, axis=1), symbolic={"x": ROWS})
    assert again(rt.asarray(np.ones((5, 4)))).tolist() == [12.0] * 5


def test_arguments_that_share_a_variable_and_ones_that_do_not() -> None:
    f = rt.jit(lambda x, y, n: x + y * rt.arange(n), symbolic={"x": ROWS, "y": ROWS, "n": ROWS})
    for n in (2, 5):
        x = np.arange(n)
        assert f(rt.asarray(x), y=rt.asarray(x + 1), n=n).tolist() == (x + (x + 1) * x).tolist()
    with pytest.raises(ShapeError, match="'n' 3, another argument 2"):
        f(rt.ones(2), rt.ones(3), 2)
    outer = rt.jit(lambda x, y: x[:, None] * y, symbolic={"x": ("n", 1, 99), "y": ("m", 1, 99)})
    for n, m in ((1, 1), (3, 5), (5, 3)):
        a, b = np.arange(n), np.arange(m)
        assert outer(rt.asarray(a), rt.asarray(b)).tolist() == np.outer(a, b).tolist()


# -- errors ------------------------------------------------------------------------------------------------


def test_what_is_refused() -> None:
    f = rt.jit(lambda x: x + 1, symbolic={"x": ("n", 2, 4)})
    for n in (1, 5):
        with pytest.raises(ShapeError, match=r"outside its bounds 2 \.\.\. 4"):
            f(rt.ones(n))
    with pytest.raises(ShapeError, match="array with axes"):
        f(rt.asarray(1.0))
    with pytest.raises(UnknownNameError):
        rt.jit(lambda x: x, symbolic={"y": ROWS})
    with pytest.raises(ShapeError, match="1 <= lowest"):
        rt.jit(lambda x: x, symbolic={"x": ("n", 0, 4)})
    with pytest.raises(ShapeError, match="two pairs of bounds"):
        rt.jit(lambda x, y: x, symbolic={"x": ("n", 1, 4), "y": ("n", 1, 5)})


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:3],
        lambda x: rt.ones(len(x)),
        lambda x: x + rt.ones(5),
        lambda x: rt.asarray(np.asarray(x)),
        lambda x: rt.cumulative_sum(x),
        lambda x: x[::2],
        lambda x: (x[:, None] * rt.ones(2)).T.flatten() + rt.arange(2 * x.shape[0]),
    ],
)
def test_what_depends_on_the_length_is_refused_at_the_first_call(function: Callable[..., Any]) -> None:
    with pytest.raises(RetargetError):
        rt.jit(function, symbolic={"x": ROWS})(rt.ones(7))


def test_a_size_has_no_value_outside_its_function() -> None:
    kept = []

    def f(x: Any) -> Any:
        kept.append(rt.arange(x.shape[0]))
        return x + kept[0]

    rt.jit(f, symbolic={"x": ROWS})(rt.ones(3))
    assert "size_n" in repr(kept[0])
    with pytest.raises(ShapeError, match=r"outside rt\.jit"):
        kept[0].numpy()
