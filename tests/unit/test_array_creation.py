"""Creation functions against NumPy: values, dtypes, the copy rule, and errors that say where."""

from __future__ import annotations

import array
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import CopyError, DTypeError, ShapeError
from retarget.ir import ops
from retarget.ir.uop import toposort

pytestmark = pytest.mark.usefixtures("oracle_runtime")


def same(got: rt.Array, expected: Any) -> None:
    values, wanted = np.asarray(got), np.asarray(expected)
    assert (values.shape, values.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(values, wanted)


def has_buffer(x: rt.Array) -> bool:
    return any(node.op is ops.BUFFER for node in toposort([x.node]))


# -- asarray -------------------------------------------------------------------------------------------------


def test_default_dtypes() -> None:
    assert rt.asarray(True).dtype is rt.bool
    assert rt.asarray(3).dtype is rt.int64
    assert rt.asarray(3.0).dtype is rt.float32
    assert rt.asarray([True, False]).dtype is rt.bool
    assert rt.asarray([1, True]).dtype is rt.int64
    assert rt.asarray([[1, 2.5]]).dtype is rt.float32
    assert rt.asarray([]).dtype is rt.float32
    assert rt.asarray([np.int8(1), np.int8(2)]).dtype is rt.int8
    assert rt.asarray(np.float64(1.5)).dtype is rt.float64
    same(rt.asarray([[1, 2], [3, 4]]), [[1, 2], [3, 4]])
    same(rt.asarray(((), ())), np.zeros((2, 0), "f4"))
    same(rt.asarray([1, 2], dtype="float64"), [1.0, 2.0])
    same(rt.asarray([2**63 + 5], dtype="uint64"), np.uint64([2**63 + 5]))
    same(rt.asarray([2**53 + 1]), [2**53 + 1])


def test_numpy_arrays_of_any_strides_and_byte_order() -> None:
    base = np.arange(24, dtype="f4").reshape(4, 6)
    for view in (
        base[::-1],
        base[:, ::-2],
        base.T,
        np.broadcast_to(base[0], (3, 6)),
        base[1:1],
        base[2, 3, None],
    ):
        same(rt.asarray(view), view)
    same(rt.asarray(np.arange(4)[::-1]), [3, 2, 1, 0])
    same(rt.asarray(np.arange(4).reshape(2, 2).T), [[0, 2], [1, 3]])
    same(rt.asarray(base.astype(">f4")), base)
    same(rt.asarray(np.array(7, ">i2")), np.int16(7))
    same(rt.asarray(np.array([True, False])), [True, False])


def test_other_buffers() -> None:
    same(rt.asarray(array.array("h", [1, -2])), np.int16([1, -2]))
    same(rt.asarray(b"\x01\xff"), np.uint8([1, 255]))

    class Foreign:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
            return np.ones(2)

    same(rt.asarray(Foreign()), np.ones(2))
    same(rt.from_dlpack(np.arange(3)), np.arange(3))
    same(rt.from_dlpack(np.arange(3), copy=True), np.arange(3))
    same(rt.from_dlpack(rt.arange(3)), np.arange(3))


def test_asarray_copies() -> None:
    source = np.zeros(3)
    x = rt.asarray(source)
    source[:] = 9
    same(x, np.zeros(3))
    for data in (source, [1.0], 2.0):
        with pytest.raises(CopyError, match="from_dlpack"):
            rt.asarray(data, copy=False)
    assert rt.asarray(x) is x
    assert rt.asarray(x, copy=False) is x
    copied = rt.asarray(x, copy=True)
    assert copied is not x
    copied[0] = 5
    same(x, np.zeros(3))
    with pytest.raises(ValueError, match="copy"):
        rt.asarray(x, dtype="int8", copy=False)


def test_asarray_of_arrays_casts_and_moves() -> None:
    x = rt.asarray([1.5, -2.5])
    same(rt.asarray(x, dtype="int8"), np.int8([1, -2]))
    assert rt.asarray(x, device="other").device == "other:0"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([[1, 2], [3]], r"ragged nested list: item \[1\] is a list of length 1, expected a list of length 2"),
        ([1, [2]], r"item \[1\] is a list of length 1, expected a number"),
        ([[1], 2], r"item \[1\] is a number, expected a list of length 1"),
    ],
)
def test_ragged_lists(data: Any, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        rt.asarray(data)


@pytest.mark.parametrize("data", [[1, "a"], [None], [[1j]], "text", object(), {1: 2}, 1j])
def test_what_is_no_number(data: Any) -> None:
    with pytest.raises(DTypeError):
        rt.asarray(data)


def test_lists_of_arrays_are_refused_with_advice() -> None:
    with pytest.raises(DTypeError, match=r"item \[0\] of the list is an Array; use rt.stack"):
        rt.asarray([rt.asarray(1)])


@pytest.mark.parametrize(
    "data", [math.nan, [0.0, math.nan], [math.inf], np.array([1.0, np.nan]), [300], 300, -129]
)
def test_values_without_an_integer(data: Any) -> None:
    with pytest.raises(DTypeError, match="int8"):
        rt.asarray(data, dtype="int8")


def test_integers_beyond_64_bits() -> None:
    for data in (2**63, [2**63], [1, -(2**63) - 1]):
        with pytest.raises(DTypeError, match="int64"):
            rt.asarray(data)
    with pytest.raises(DTypeError):
        rt.asarray(10**400, dtype="float32")


def test_unsupported_numpy_dtypes() -> None:
    for data in (np.array(["a"]), np.array([1j]), np.array([None]), np.array(["2020"], "M8[D]")):
        with pytest.raises(DTypeError, match="not supported"):
            rt.asarray(data)


# -- by rule -------------------------------------------------------------------------------------------------


def test_constants() -> None:
    same(rt.zeros((2, 3)), np.zeros((2, 3), "f4"))
    same(rt.ones(4, dtype="int8"), np.ones(4, "i1"))
    same(rt.zeros((0, 2), dtype=bool), np.zeros((0, 2), bool))
    same(rt.full((2,), 7), [7, 7])
    same(rt.full((), True), np.bool_(True))
    same(rt.full((2,), -0.0), np.float32([-0.0, -0.0]))
    assert np.signbit(np.asarray(rt.full((2,), -0.0))).all()
    assert not np.signbit(np.asarray(rt.full((2,), 0.0))).any()
    same(rt.full((2,), rt.asarray([1, 2])[1]), [2, 2])
    same(rt.full_like(rt.ones((2, 2), dtype="int8"), 3), np.full((2, 2), 3, "i1"))
    same(rt.zeros_like(rt.ones(2)), np.zeros(2, "f4"))
    same(rt.ones_like(rt.ones(2), dtype="int64"), np.ones(2, "i8"))
    assert rt.empty((3, 0)).shape == rt.empty_like(rt.ones((3, 0))).shape == (3, 0)
    assert not has_buffer(rt.ones((1000, 1000)) + rt.arange(1000))


def test_constants_of_any_size() -> None:
    x = rt.zeros((2**20, 2**20, 2**20), dtype="uint8")
    assert x.size == (x + 1).size == 2**60
    assert (x + 1)[0, 0, :3].shape == (3,)
    same(x[-1, -1, -2:] + 1, np.uint8([1, 1]))


@pytest.mark.parametrize("value", [3000000000, -(2**63), 65536 * 65536])
def test_wide_integer_constants(value: int) -> None:
    same(rt.zeros(1, dtype="int64") + value, [value])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1.0, 1e-45, "max"])
def test_float_constants(dtype: str, value: Any) -> None:
    number = float(np.finfo(dtype).max) if value == "max" else value
    same(rt.zeros(1, dtype=dtype) + number, np.zeros(1, dtype) + np.array(number).astype(dtype))


@pytest.mark.parametrize("shape", [-1, (2, -1), 1.5, "ab", None])
def test_bad_shapes(shape: Any) -> None:
    with pytest.raises(ShapeError):
        rt.zeros(shape)


def test_values_that_do_not_fit() -> None:
    for value, dtype in (
        (300, "int8"),
        (-1, "uint8"),
        (math.nan, "int32"),
        (math.inf, "uint64"),
        (2**63, None),
    ):
        with pytest.raises(DTypeError):
            rt.full(3, value, dtype=dtype)


@given(
    st.integers(-1000, 1000),
    st.integers(-1000, 1000),
    st.integers(-7, 7).filter(bool),
    st.sampled_from(["int16", "int32", "int64", "float16", "float32", "float64"]),
)
def test_arange_of_ints(start: int, stop: int, step: int, dtype: str) -> None:
    same(rt.arange(start, stop, step, dtype=dtype), np.arange(start, stop, step, dtype=dtype))
    same(rt.arange(start, stop, step), np.arange(start, stop, step))


@given(
    st.floats(-100, 100),
    st.floats(-100, 100),
    st.floats(0.05, 10),
    st.sampled_from(["float16", "float32", "float64"]),
)
def test_arange_of_floats_is_exact(start: float, stop: float, step: float, dtype: str) -> None:
    same(rt.arange(start, stop, step, dtype=dtype), np.arange(start, stop, step, dtype=dtype))


def test_arange_forms() -> None:
    same(rt.arange(3), [0, 1, 2])
    same(rt.arange(2.5), np.float32([0, 1, 2]))
    same(rt.arange(5, 1), np.zeros(0, "i8"))
    same(rt.arange(10, 0, -3), [10, 7, 4, 1])
    assert not has_buffer(rt.arange(5, dtype="float16"))
    with pytest.raises(ShapeError, match="step"):
        rt.arange(1, 2, 0)
    with pytest.raises(DTypeError, match="300"):
        rt.arange(301, dtype="int8")
    with pytest.raises(ShapeError, match="finite"):
        rt.arange(math.inf)


@given(
    st.floats(-1e6, 1e6),
    st.floats(-1e6, 1e6),
    st.integers(0, 50),
    st.booleans(),
    st.sampled_from(["float32", "float64", "int32"]),
)
def test_linspace_is_exact(start: float, stop: float, num: int, endpoint: bool, dtype: str) -> None:
    assume(abs(stop - start) > 1e-300 or stop == start)
    got = rt.linspace(start, stop, num, endpoint=endpoint, dtype=dtype)
    assert not has_buffer(got)
    same(got, np.linspace(start, stop, num, endpoint=endpoint, dtype=dtype))


def test_eye_and_triangles() -> None:
    for rows, columns, k in ((3, None, 0), (3, 4, 1), (4, 2, -1), (0, 3, 0), (2, 2, 5)):
        same(rt.eye(rows, columns, k=k), np.eye(rows, columns, k=k, dtype="f4"))
    x = np.full((2, 3, 4), np.nan, "f4")
    for k in (-3, -1, 0, 2, 9):
        same(rt.tril(rt.asarray(x), k=k), np.tril(x, k))
        same(rt.triu(rt.asarray(x), k=k), np.triu(x, k))
    with pytest.raises(ShapeError, match="two axes"):
        rt.tril(rt.ones(3))


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_meshgrid(indexing: Any) -> None:
    vectors = [np.arange(2), np.arange(3.0), np.arange(4, dtype="i1")]
    for count in (1, 2, 3):
        got = rt.meshgrid(*[rt.asarray(v) for v in vectors[:count]], indexing=indexing)
        for a, b in zip(got, np.meshgrid(*vectors[:count], indexing=indexing), strict=True):
            same(a, b)
    with pytest.raises(ShapeError, match="indexing"):
        rt.meshgrid(rt.arange(2), indexing="yx")


# -- dtypes --------------------------------------------------------------------------------------------------


def test_finfo_and_iinfo() -> None:
    for name in ("float16", "float32", "float64"):
        got, wanted = rt.finfo(name), np.finfo(name)
        for field in ("bits", "eps", "max", "min", "smallest_normal", "smallest_subnormal"):
            assert getattr(got, field) == getattr(wanted, field)
        assert got.dtype is getattr(rt, name)
    import ml_dtypes

    for name, theirs in (
        ("bfloat16", "bfloat16"),
        ("float8_e4m3", "float8_e4m3fn"),
        ("float8_e5m2", "float8_e5m2"),
    ):
        info = ml_dtypes.finfo(getattr(ml_dtypes, theirs))
        assert rt.finfo(name).max == float(info.max)
        assert rt.finfo(name).eps == float(info.eps)
        assert rt.finfo(name).smallest_normal == float(info.smallest_normal)
    for name in ("int8", "uint64", "int32"):
        assert (rt.iinfo(name).min, rt.iinfo(name).max) == (np.iinfo(name).min, np.iinfo(name).max)
    assert rt.iinfo(rt.ones(1, dtype="int8")).bits == 8
    with pytest.raises(DTypeError, match="iinfo"):
        rt.finfo("int8")
    with pytest.raises(DTypeError, match="finfo"):
        rt.iinfo("float32")


def test_isdtype_and_can_cast() -> None:
    assert rt.isdtype(rt.int8, "signed integer")
    assert rt.isdtype(rt.uint8, ("bool", "integral"))
    assert rt.isdtype(rt.bfloat16, "real floating")
    assert not rt.isdtype(rt.bool, "numeric")
    assert not rt.isdtype(rt.float32, "complex floating")
    assert rt.isdtype(rt.float32, rt.float32)
    with pytest.raises(DTypeError, match="signed integer"):
        rt.isdtype(rt.int8, "float")
    assert rt.can_cast(rt.int8, rt.int16)
    assert not rt.can_cast(rt.int16, rt.int8)
    assert not rt.can_cast(rt.uint8, rt.int8)
    assert rt.can_cast(rt.ones(1), rt.float64)
    assert rt.result_type(rt.int8, rt.ones(2, dtype="uint8"), 1) is rt.int16
    assert rt.result_type(1, 2.0) is rt.float32
    with pytest.raises(DTypeError):
        rt.result_type()
