"""Indexing and assignment against NumPy, by random keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import DTypeError, IndexingError, ShapeError
from retarget.ir import ops

pytestmark = pytest.mark.usefixtures("oracle_runtime")


def same(got: rt.Array, expected: Any) -> None:
    values, wanted = np.asarray(got), np.asarray(expected)
    assert (values.shape, values.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(values, wanted)


def data(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.arange(1, np.prod(shape, dtype=int) + 1, dtype="f4").reshape(shape)


bound = st.none() | st.integers(-9, 9)
slices = st.builds(slice, bound, bound, st.none() | st.integers(-4, 4).filter(bool))
shapes = st.lists(st.integers(0, 7), min_size=0, max_size=4).map(tuple)


@st.composite
def basic_keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    items: list[Any] = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        items.append(draw(slices | st.integers(-n, n - 1)) if n else draw(slices))
    if draw(st.booleans()):
        tail = draw(st.integers(0, len(items)))
        # An ellipsis stands before the items for the last axes.
        for i, n in zip(range(len(items) - tail, len(items)), shape[len(shape) - tail :], strict=True):
            items[i] = draw(slices | st.integers(-n, n - 1)) if n else draw(slices)
        items.insert(len(items) - tail, Ellipsis)
    for _ in range(draw(st.integers(0, 2))):
        items.insert(draw(st.integers(0, len(items))), None)
    return tuple(items)


@settings(max_examples=200)
@given(st.data())
def test_basic_indexing(draw: st.DataObject) -> None:
    shape = draw.draw(shapes)
    key = draw.draw(basic_keys(shape))
    same(rt.asarray(data(shape))[key], data(shape)[key])


@settings(max_examples=200)
@given(st.data())
def test_basic_assignment(draw: st.DataObject) -> None:
    shape = draw.draw(shapes)
    key = draw.draw(basic_keys(shape))
    expected = data(shape)
    x = rt.asarray(expected)
    before = x + 0
    region = expected[key].shape
    keep = draw.draw(st.integers(0, len(region)))
    value = -data(tuple(n if draw.draw(st.booleans()) else 1 for n in region[keep:]))
    expected[key] = value
    x[key] = rt.asarray(value)
    same(x, expected)
    same(before, data(shape))


@settings(max_examples=200)
@given(st.data())
def test_integer_arrays_among_other_indices(draw: st.DataObject) -> None:
    shape = draw.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple))
    index_shape = draw.draw(st.lists(st.integers(0, 3), max_size=2))
    items: list[Any] = []
    for n in shape[: draw.draw(st.integers(1, len(shape)))]:
        if draw.draw(st.booleans()):
            dims = tuple(m if draw.draw(st.booleans()) else 1 for m in index_shape)
            rng = np.random.default_rng(draw.draw(st.integers(0, 99)))
            items.append(rng.integers(-n, n, dims).astype(draw.draw(st.sampled_from(["i1", "i4", "i8"]))))
        else:
            items.append(draw.draw(slices | st.integers(-n, n - 1)))
    for extra in draw.draw(st.lists(st.none(), max_size=2)):
        items.insert(draw.draw(st.integers(0, len(items))), extra)
    if draw.draw(st.booleans()):
        items.append(Ellipsis)
    key = tuple(items)
    lazy = tuple(rt.asarray(i) if isinstance(i, np.ndarray) and draw.draw(st.booleans()) else i for i in key)
    same(rt.asarray(data(shape))[lazy], data(shape)[key])


def test_index_arrays_out_of_range_read_zero() -> None:
    x = rt.asarray(data((3,)))
    same(x[rt.asarray([0, 3, -4, -1])], np.float32([1, 0, 0, 3]))
    same(x[rt.asarray(np.uint8([2, 255]))], np.float32([3, 0]))
    same(rt.ones((200,))[rt.asarray(np.int8([-128, 127]))], np.ones(2, "f4"))
    with pytest.raises(IndexingError, match="index 3 is out of range for length 3"):
        x[[0, 3]]
    with pytest.raises(IndexingError, match="-4"):
        x[np.array([-4])]


def test_lists_and_scalars_as_indices() -> None:
    x = data((4, 3))
    same(rt.asarray(x)[[3, 0]], x[[3, 0]])
    same(rt.asarray(x)[[]], x[[]])
    same(rt.asarray(x)[np.int64(2)], x[2])
    same(rt.asarray(x)[rt.asarray(2)], x[2])
    same(rt.asarray(x)[rt.asarray(2), 1:], x[2, 1:])


def test_strides_of_all_kinds() -> None:
    for n in range(1, 14):
        x = data((n,))
        for begin in range(n):
            for step in (1, 2, 3, 5, 7, -1, -2, -3, -5):
                same(rt.asarray(x)[begin::step], x[begin::step])


def test_views_of_the_negative_and_zero_stride_cases() -> None:
    y = rt.asarray(np.arange(1, 9, dtype="f4"))
    same(y[::-1] * 3, np.float32([24, 21, 18, 15, 12, 9, 6, 3]))
    assert float(rt.sum(y[::-1] * 2)) == 72
    same(rt.pad(y[:4][::-1], (2, 1)), np.float32([0, 0, 4, 3, 2, 1, 0]))
    assert float(rt.broadcast_to(rt.asarray([2.5]), (4,)).sum()) == 10


def test_windows_at_any_offset() -> None:
    base = np.arange(1026, dtype="f4")
    same(rt.asarray(base)[1:1025] * 2, base[1:1025] * 2)
    rows = np.arange(3 * 1185, dtype="f4").reshape(3, 1185)
    same(rt.asarray(rows)[1] + 1, rows[1] + 1)
    out = rt.arange(8)
    out[1] = 9
    same(out, [0, 9, 2, 3, 4, 5, 6, 7])


def test_more_elements_than_32_bits_count() -> None:
    """Windows of a lazy array beyond 2**31 elements: built without a value of it, and right where it is
    constant.
    """
    x = rt.ones((2**33,), dtype="uint8")
    same(x[2**32 :: 2**31] + 1, np.uint8([2, 2]))
    y = x + 1
    y[-1] = 7
    assert y[2**31 :: 2**30].shape == (6,)
    assert y.node.src[0].arg == ((2**33 - 1, 0),)


# -- assignment ----------------------------------------------------------------------------------------------


def test_overlapping_assignment() -> None:
    a = rt.arange(9).reshape(3, 3)
    a += a.T
    same(a, [[0, 4, 8], [4, 8, 12], [8, 12, 16]])
    b = rt.arange(6)
    b[1:] = b[:-1]
    same(b, [0, 0, 1, 2, 3, 4])
    b[::-1] = b
    same(b, [4, 3, 2, 1, 0, 0])
    b[::2], b[1::2] = b[1::2], b[::2]
    same(b, [3, 4, 1, 2, 0, 0])
    big = np.arange(1024 * 1024, dtype="f4").reshape(1024, 1024)
    c = rt.asarray(big)
    c += c.T
    same(c, big + big.T)
    c[1:] = c[:-1]
    expected = big + big.T
    expected[1:] = expected[:-1].copy()
    same(c, expected)


def test_in_place_operators_keep_the_object() -> None:
    x = rt.asarray([1.0, 2.0])
    alias, derived = x, x * 1
    x += 1
    x *= 2.0
    assert alias is x
    same(alias, np.float32([4, 6]))
    same(derived, np.float32([1, 2]))
    with pytest.raises(ShapeError, match="in-place"):
        x += rt.ones((2, 2))
    counts = rt.asarray([1, 2])
    with pytest.raises(DTypeError, match="in-place"):
        counts /= 2
    with pytest.raises(DTypeError, match="in-place"):
        counts += 0.5


def test_assigned_values_take_the_dtype() -> None:
    x = rt.zeros((3,), dtype="int32")
    x[0], x[1], x[2] = True, 7, rt.asarray(np.int64(9))
    same(x, np.int32([1, 7, 9]))
    x[:] = 2.9
    same(x, np.int32([2, 2, 2]))
    with pytest.raises(DTypeError, match="nan"):
        x[0] = float("nan")
    with pytest.raises(DTypeError, match="astype"):
        x[0] = rt.asarray(1.0)
    with pytest.raises(ShapeError, match=r"shape \(2,\) does not broadcast to the region's shape \(3,\)"):
        x[:] = rt.asarray([1, 2])
    x[1:] = [5, 6]
    same(x, np.int32([2, 5, 6]))
    x[...] = 0
    assert x.node.op is ops.EXPAND  # all of it is assigned: the old value is not kept


def test_assignment_through_a_mask() -> None:
    values = np.float32([[1, np.nan], [-3, np.inf]])
    x = rt.asarray(values)
    x[x < 0] = 0
    x[rt.isnan(x)] = 9.0
    same(x, np.float32([[1, 9], [0, np.inf]]))
    x[np.array([[True, False], [False, True]])] = rt.asarray([10.0, 20.0])
    same(x, np.float32([[10, 9], [0, 20]]))
    with pytest.raises(IndexingError, match="mask"):
        x[rt.asarray([True, False])] = 1
    with pytest.raises(ShapeError, match="scalar"):
        x[x > 0] = rt.ones(3)


# -- refusals ------------------------------------------------------------------------------------------------


def test_refused_keys() -> None:
    x = rt.ones((2, 3))
    with pytest.raises(IndexingError, match=r"rt.where\(mask, x, other\)"):
        x[x > 0]
    with pytest.raises(IndexingError, match="bool"):
        x[True]
    with pytest.raises(IndexingError, match=r"3 indices for an array of 2 axes \(shape \(2, 3\)\)"):
        x[0, 0, 0]
    with pytest.raises(IndexingError, match="axis 1: index 3 is out of range for length 3"):
        x[0, 3]
    with pytest.raises(IndexError, match="Ellipsis"):
        x[..., ...]
    with pytest.raises(IndexingError, match="no index"):
        x["a"]
    with pytest.raises(IndexingError, match="no index"):
        x[1.0]
    with pytest.raises(IndexingError, match="integer dtype"):
        x[rt.asarray([1.0])]
    with pytest.raises(IndexingError, match="slice"):
        x[::0]
    with pytest.raises(IndexingError, match="mask"):
        x[rt.asarray([0, 1])] = 1
    with pytest.raises(ShapeError, match="0-d"):
        len(rt.ones(()))
    with pytest.raises(IndexingError):
        rt.ones(())[0]


# -- take ----------------------------------------------------------------------------------------------------


def test_take() -> None:
    x = data((3, 4, 2))
    for axis in (0, 1, 2, -1):
        same(rt.take(rt.asarray(x), rt.asarray([1, 0, -1]), axis=axis), np.take(x, [1, 0, -1], axis))
        same(rt.take(rt.asarray(x), [[1], [0]], axis=axis), np.take(x, [[1], [0]], axis))
    same(rt.take(rt.arange(5) * 10, rt.asarray([4, 4])), [40, 40])
    with pytest.raises(ShapeError, match="axis"):
        rt.take(rt.asarray(x), [0])
    for n in (1, 2, 3, 4, 1):
        buffer = rt.asarray([10, 20, 30, 40, 50])
        assert int(rt.sum(rt.take(buffer, rt.arange(n)))) == [10, 30, 60, 100][n - 1]


def test_take_along_axis() -> None:
    rng = np.random.default_rng(0)
    x = data((3, 4, 2))
    for axis, shape in ((0, (5, 4, 2)), (1, (3, 1, 2)), (2, (3, 4, 7)), (-1, (1, 4, 2))):
        indices = rng.integers(-x.shape[axis], x.shape[axis], shape)
        same(
            rt.take_along_axis(rt.asarray(x), rt.asarray(indices), axis=axis),
            np.take_along_axis(x, indices, axis),
        )
    order = np.argsort(-x, axis=1)
    same(rt.take_along_axis(rt.asarray(x), rt.asarray(order), axis=1), np.take_along_axis(x, order, 1))
    with pytest.raises(ShapeError, match="3 axes"):
        rt.take_along_axis(rt.asarray(x), rt.asarray([0]))
