"""Reductions, searches and cumulative functions against NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import retarget as rt
from retarget.errors import DTypeError, ShapeError
from retarget.ir import ops
from retarget.ir.uop import toposort

pytestmark = pytest.mark.usefixtures("oracle_runtime")

INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def same(got: rt.Array, expected: Any, *, rtol: float = 0.0) -> None:
    values, wanted = np.asarray(got), np.asarray(expected)
    assert (values.shape, values.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(values, wanted, rtol=rtol, atol=rtol)


def axes_of(rank: int) -> list[Any]:
    singles = [*range(-rank, rank)]
    return [
        None,
        (),
        *singles,
        *[c for r in range(2, rank + 1) for c in itertools.combinations(range(rank), r)],
    ]


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 4), (1, 4), (3, 0), (0, 2)])
@pytest.mark.parametrize("dtype", ["bool", *INTS, "float32", "float64"])
def test_sum_and_prod(shape: tuple[int, ...], dtype: str) -> None:
    a = np.random.default_rng(0).integers(0, 3, shape).astype(dtype)
    x = rt.asarray(a)
    wide = a.dtype if a.dtype.kind == "f" else np.uint64 if a.dtype.kind == "u" else np.int64
    for axis in axes_of(a.ndim):
        for keepdims in (False, True):
            same(rt.sum(x, axis=axis, keepdims=keepdims), a.sum(axis, wide, keepdims=keepdims))
            same(rt.prod(x, axis=axis, keepdims=keepdims), a.prod(axis, wide, keepdims=keepdims))
            same(rt.any(x, axis=axis, keepdims=keepdims), a.any(axis, keepdims=keepdims))
            same(rt.all(x, axis=axis, keepdims=keepdims), a.all(axis, keepdims=keepdims))
            same(rt.count_nonzero(x, axis=axis, keepdims=keepdims), (a != 0).sum(axis, keepdims=keepdims))


@pytest.mark.parametrize("dtype", ["bool", *INTS, "float16", "float32", "float64"])
def test_extremes(dtype: str) -> None:
    a = np.random.default_rng(1).integers(0, 100, (3, 4, 2)).astype(dtype)
    if dtype.startswith("int"):
        a -= 100
    x = rt.asarray(a)
    for axis in axes_of(3):
        same(rt.max(x, axis=axis), a.max(axis))
        same(rt.min(x, axis=axis, keepdims=True), a.min(axis, keepdims=True))
    for axis in (None, 0, 1, -1):
        for keepdims in (False, True):
            same(rt.argmax(x, axis=axis, keepdims=keepdims), a.argmax(axis, keepdims=keepdims))
            same(rt.argmin(x, axis=axis, keepdims=keepdims), a.argmin(axis, keepdims=keepdims))


@pytest.mark.parametrize("n", [1, 15, 16, 17, 18])
def test_extremes_start_from_no_value_of_their_own(n: int) -> None:
    same(rt.max(rt.asarray(np.resize(np.int8([-5, -9, -7]), n))), np.int8(-5))
    same(rt.min(rt.asarray(np.arange(1, n + 1, dtype="u1"))), np.uint8(1))
    same(rt.min(rt.asarray(np.resize(np.int32([-(2**31), 0, 7]), n))), np.int32(-(2**31)))
    same(rt.min(rt.asarray(np.resize(np.uint32([4294967295]), n))), np.uint32(4294967295))
    same(rt.max(rt.asarray(np.zeros(n, bool))), np.bool_(False))


@pytest.mark.parametrize("place", [0, 499, 999])
def test_nan_wins(place: int) -> None:
    a = np.arange(1000, dtype="f4")
    a[place] = np.nan
    x = rt.asarray(a)
    for function in (rt.max, rt.min, rt.sum, rt.mean, rt.var):
        assert np.isnan(float(function(x)))
    assert int(rt.argmax(x)) == int(rt.argmin(x)) == place
    a[998] = np.nan
    assert int(rt.argmax(rt.asarray(a))) == min(place, 998)
    assert np.isnan(float(rt.asarray([3.0, np.nan, 7.0]).max()))
    assert np.isnan(float(rt.asarray([np.nan, np.nan]).min()))
    assert float(rt.asarray([-np.inf, -np.inf]).max()) == -np.inf
    assert int(rt.argmax(rt.asarray([-np.inf, -np.inf]))) == 0


def test_accumulators() -> None:
    import ml_dtypes

    assert float(rt.mean(rt.ones(100000, dtype="float16"))) == 1.0
    assert float(rt.sum(rt.ones(4096, dtype="float16"))) == 4096
    assert float(rt.sum(rt.ones(70000, dtype="bfloat16"))) == 70144
    assert int(rt.sum(rt.ones(300, dtype="bool"))) == 300
    assert int(rt.sum(rt.asarray([200, 200], dtype="uint8"))) == 400
    same(rt.cumulative_sum(rt.asarray([100, 100], dtype="int8")), [100, 200])
    same(rt.sum(rt.ones((2,), dtype="uint8")), np.uint64(2))
    same(rt.sum(rt.ones((2,), dtype="uint8"), dtype="float16"), np.float16(2))
    same(rt.sum(rt.full((2,), 60000, dtype="float16")), np.float16(np.inf))
    same(rt.mean(rt.full((2,), 60000, dtype="float16")), np.float16(60000))
    same(rt.sum(rt.ones((2,), dtype="float8_e4m3")), np.array(2, ml_dtypes.float8_e4m3fn))
    with pytest.raises(DTypeError, match=r"rt\.any"):
        rt.sum(rt.ones(2), dtype="bool")


def test_narrow_floats_are_rounded_once() -> None:
    """The graph accumulates in float32: no node between the operand's cast and the result's has a narrow
    dtype.
    """
    node = rt.sum(rt.asarray(np.ones((4, 4), "f2")), axis=0).node
    reductions = [n for n in toposort([node]) if n.op is ops.REDUCE_AXIS]
    assert [n.dtype for n in reductions] == [rt.float32]


def test_broadcast_sum_beyond_32_bits() -> None:
    total = rt.sum(rt.broadcast_to(rt.asarray(np.int64(1)), (65536, 65537)))
    assert total.node.op is ops.RESHAPE
    assert total.node.src[0].src[0].shape == (65536, 65537)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("correction", [0, 1, 0.5])
def test_mean_var_std(dtype: str, correction: float) -> None:
    a = np.random.default_rng(2).integers(0, 50, (3, 4)).astype(dtype)
    result = a.dtype if a.dtype.kind == "f" else np.dtype("f4")
    tolerance = {"float16": 2e-3, "float64": 1e-14}.get(result.name, 2e-6)
    x, wide = rt.asarray(a), a.astype("f8")
    for axis in axes_of(2):
        with np.errstate(all="ignore"):
            same(rt.mean(x, axis=axis), wide.mean(axis).astype(result), rtol=tolerance)
            if axis == ():
                continue  # NumPy divides by 0 - correction there
            same(
                rt.var(x, axis=axis, correction=correction),
                wide.var(axis, ddof=correction).astype(result),
                rtol=tolerance,
            )
            expected = wide.std(axis, ddof=correction, keepdims=True).astype(result)
            same(rt.std(x, axis=axis, correction=correction, keepdims=True), expected, rtol=tolerance)


def test_mean_of_large_integers() -> None:
    same(rt.mean(rt.asarray(np.full(5, 2**31 - 1, "i4"))), np.float32(2**31 - 1))
    same(rt.mean(rt.asarray([2**62, 2**62])), np.float32(2.0**62))
    x = rt.asarray(np.full(3, 2**24 + 1, "i4"))
    same(rt.mean(x), np.float32(2**24 + 1), rtol=1.2e-7)


def test_sums_of_squares_in_one_graph() -> None:
    x = rt.arange(64, dtype="float32")
    assert float(rt.sum((x - rt.mean(x)) ** 2)) == 21840


def test_zero_size_and_size_one_axes() -> None:
    e = rt.zeros((0, 2))
    same(rt.sum(e, axis=0), np.zeros(2, "f4"))
    same(rt.prod(e, axis=0), np.ones(2, "f4"))
    same(rt.min(e, axis=1), np.zeros(0, "f4"))
    same(rt.argmax(e, axis=1), np.zeros(0, "i8"))
    same(rt.cumulative_sum(e, axis=0), np.zeros((0, 2), "f4"))
    same(rt.any(e), np.bool_(False))
    same(rt.all(e), np.bool_(True))
    same(e + 1, np.zeros((0, 2), "f4"))
    for broken in (
        lambda: rt.min(e, axis=0),
        lambda: rt.max(e),
        lambda: rt.argmax(e, axis=0),
        lambda: rt.argmin(e),
    ):
        with pytest.raises(ShapeError, match="no "):
            broken()
    with np.errstate(all="ignore"):
        same(rt.mean(e, axis=0), np.float32([np.nan, np.nan]))
    column = rt.asarray(np.float32([[5], [7]]))
    same(rt.sum(column, axis=1), np.float32([5, 7]))
    same(rt.argmax(column, axis=1), [0, 0])
    same(rt.argmax(rt.full((40, 900, 1), 0), axis=2), np.zeros((40, 900), "i8"))


@given(
    hnp.arrays(
        "f4",
        hnp.array_shapes(min_dims=1, max_dims=3, max_side=5),
        elements=st.sampled_from([0.0, 1, 2, np.nan]),
    ),
    st.data(),
)
def test_searches_find_the_first(a: np.ndarray[Any, Any], draw: st.DataObject) -> None:
    axis = draw.draw(st.integers(-a.ndim, a.ndim - 1) | st.none())
    same(rt.argmax(rt.asarray(a), axis=axis), a.argmax(axis))
    same(rt.argmin(rt.asarray(a), axis=axis), a.argmin(axis))


# -- cumulative ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 63, 64, 65, 128, 129, 4096, 4097, 5000])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "float32"])
def test_cumulative_sum(n: int, dtype: str) -> None:
    a = np.random.default_rng(n).integers(0, 3, n).astype(dtype)
    wide = {"i": np.int64, "u": np.uint64}.get(a.dtype.kind, a.dtype)
    expected = a.astype("f8").cumsum().astype(wide)
    same(rt.cumulative_sum(rt.asarray(a)), expected)
    got = rt.cumulative_sum(rt.asarray(a), include_initial=True)
    same(got, np.concatenate([np.zeros(1, wide), expected]))


def test_cumulative_functions_along_axes() -> None:
    a = np.random.default_rng(0).integers(1, 3, (2, 70, 3))
    x = rt.asarray(a)
    for axis in (0, 1, 2, -1):
        same(rt.cumulative_sum(x, axis=axis), a.cumsum(axis))
        same(rt.cumulative_prod(x, axis=axis), a.cumprod(axis))
    same(rt.cumulative_prod(rt.asarray([2.0, 3.0]), include_initial=True), np.float32([1, 2, 6]))
    same(rt.cumulative_sum(rt.asarray([True, True]), dtype="float32"), np.float32([1, 2]))
    with pytest.raises(ShapeError, match="needs an axis"):
        rt.cumulative_sum(x)


def test_cumulative_sum_does_not_look_ahead() -> None:
    a = np.ones(200, "f4")
    a[100], a[150] = np.inf, np.nan
    got = np.asarray(rt.cumulative_sum(rt.asarray(a)))
    np.testing.assert_array_equal(got, np.cumsum(a))


def test_cumulative_sum_does_constant_work_per_element() -> None:
    n = 1 << 20
    node = rt.cumulative_sum(rt.zeros(n) + rt.arange(n)).node
    work = sum(int(np.prod(u.src[0].shape)) for u in toposort([node]) if u.op is ops.REDUCE_AXIS)
    assert work < 70 * n


def test_diff() -> None:
    a = np.random.default_rng(0).integers(-9, 9, (3, 5))
    for n in range(7):
        same(rt.diff(rt.asarray(a), n=n), np.diff(a, n))
    same(rt.diff(rt.asarray(a), axis=0), np.diff(a, axis=0))
    same(rt.diff(rt.asarray([True, False])), [True])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: rt.sum(x, axis=2),
        lambda x: rt.max(x, axis=(0, -2)),
        lambda x: rt.mean(x, axis=1.5),
        lambda x: rt.argmax(x, axis=-3),
        lambda x: rt.cumulative_sum(x, axis=5),
    ],
)
def test_axis_errors(call: Any) -> None:
    with pytest.raises(ShapeError, match="axis"):
        call(rt.ones((2, 3)))
