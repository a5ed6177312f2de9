"""Products, windows, convolution and the functions of neural networks against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

import retarget as rt
from retarget.errors import DTypeError, ShapeError
from retarget.ir import ops
from retarget.ir.uop import toposort

pytestmark = pytest.mark.usefixtures("oracle_runtime")

Values = np.ndarray[Any, Any]


def same(got: rt.Array, expected: Any, *, rtol: float = 0.0) -> None:
    values, wanted = np.asarray(got), np.asarray(expected)
    assert (values.shape, values.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(values, wanted, rtol=rtol, atol=rtol)


def data(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Values:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


MATMULS = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (6, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((3, 0), (0, 4)),
    ((0, 3), (3, 4)), ((1, 1), (1, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), MATMULS)
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64", "float32", "float64", "bool"])
def test_matmul(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    a, b = data(left, dtype, 1), data(right, dtype, 2)
    same(rt.asarray(a) @ rt.asarray(b), a @ b)
    same(rt.matmul(rt.asarray(a), rt.asarray(b)), np.matmul(a, b))


def test_matmul_accumulates_wide() -> None:
    ones = rt.ones((1, 4096), dtype="float16")
    same(ones @ ones.mT, np.float16([[4096]]))
    a = rt.asarray(np.float16([[1], [2], [3]])) @ rt.asarray(np.float16([[1, 2, 3, 4, 5]]))
    same(a, np.float16(np.outer([1, 2, 3], [1, 2, 3, 4, 5])))
    i, k, n = np.ogrid[:17, :33, :5]
    left, right = ((33 * i + k) % 7)[:, :, 0].astype("f2"), ((5 * k + n) % 5)[0].astype("f2")
    product = np.asarray(rt.asarray(left) @ rt.asarray(right))
    assert product[16].tolist() == [0, 102, 204, 306, 408]
    assert product.astype("f4").sum() == 16800
    same(rt.asarray(np.int8([[100, 100]])) @ rt.asarray(np.int8([[2], [1]])), np.int8([[44]]))
    mixed = rt.ones((2, 2), dtype="float16") @ rt.ones((2, 2), dtype="bfloat16")
    assert mixed.dtype is rt.float32


def test_matmul_with_numpy_and_errors() -> None:
    a = data((2, 3))
    same(rt.asarray(a) @ a.T, a @ a.T)
    same(a.T @ rt.asarray(a), a.T @ a)
    with pytest.raises(
        ShapeError, match=r"shapes \(2, 3\) and \(2, 3\): the last axis of the first has length 3"
    ):
        rt.asarray(a) @ rt.asarray(a)
    with pytest.raises(ShapeError, match="scalars"):
        rt.matmul(rt.asarray(a), rt.asarray(1.0))
    with pytest.raises(ShapeError, match="broadcast"):
        rt.ones((2, 1, 1)) @ rt.ones((3, 1, 1))


def test_tensordot() -> None:
    a, b = data((2, 3, 4)), data((4, 3, 5), seed=1)
    for axes in (0, 1, ((2,), (0,)), ((1, 2), (1, 0)), ((-1, 1), (0, 1)), ((), ())):
        same(rt.tensordot(rt.asarray(a), rt.asarray(b), axes=axes), np.tensordot(a, b, axes))
    square = data((3, 4, 5))
    same(rt.tensordot(rt.asarray(a), rt.asarray(square), axes=2), np.tensordot(a, square, 2))
    for axes in (3, ((0,), (0,)), ((1, 1), (1, 1)), ((1,), (1, 0))):
        with pytest.raises(ShapeError, match="tensordot"):
            rt.tensordot(rt.asarray(a), rt.asarray(b), axes=axes)


def test_outer_and_vecdot() -> None:
    a, b = data((3,)), data((4,), seed=1)
    same(rt.outer(rt.asarray(a), rt.asarray(b)), np.outer(a, b))
    x, y = data((2, 3, 4)), data((3, 4), seed=1)
    same(rt.vecdot(rt.asarray(x), rt.asarray(y)), (x * y).sum(-1))
    same(rt.vecdot(rt.asarray(x), rt.asarray(y), axis=-2), (x * y).sum(-2))
    with pytest.raises(ShapeError, match="one axis"):
        rt.outer(rt.asarray(x), rt.asarray(a))
    with pytest.raises(ShapeError, match="from the end"):
        rt.vecdot(rt.asarray(x), rt.asarray(y), axis=0)
    with pytest.raises(ShapeError, match="different lengths"):
        rt.vecdot(rt.asarray(x), rt.asarray(a))


# -- windows -------------------------------------------------------------------------------------------------


def windows(a: Values, size: int, axis: int, stride: int, dilation: int) -> Values:
    span = dilation * (size - 1) + 1
    view = sliding_window_view(a, span, axis)[..., ::dilation]
    index = [slice(None)] * view.ndim
    index[axis] = slice(None, None, stride)
    return view[tuple(index)]


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 6), st.integers(1, 4), st.integers(0, 1))
def test_windows_along_one_axis(n: int, size: int, stride: int, dilation: int, axis: int) -> None:
    a = np.arange(3 * n, dtype="f4").reshape((n, 3) if axis == 0 else (3, n))
    call = {"axes": axis, "strides": stride, "dilation": dilation}
    if dilation * (size - 1) + 1 > n:
        with pytest.raises(ShapeError, match="do not fit"):
            rt.sliding_window(rt.asarray(a), size, **call)
        return
    got = rt.sliding_window(rt.asarray(a), size, **call)
    same(got, windows(a, size, axis, stride, dilation))
    moved = [u for u in toposort([got.node]) if u.op is not ops.BUFFER]
    assert {u.op for u in moved} <= ops.MOVEMENT_OPS - {ops.PAD}


def test_windows_along_several_axes() -> None:
    a = np.arange(2 * 9 * 8, dtype="f4").reshape(2, 9, 8)
    got = rt.sliding_window(rt.asarray(a), (3, 2), axes=(1, 2), strides=(2, 3), dilation=(1, 2))
    same(got, windows(windows(a, 3, 1, 2, 1), 2, 2, 3, 2))
    with pytest.raises(ShapeError, match="twice"):
        rt.sliding_window(rt.asarray(a), (3, 2), axes=(1, 1))
    with pytest.raises(ShapeError, match="strides"):
        rt.sliding_window(rt.asarray(a), 2, axes=(1, 2), strides=0)


def convolve(x: Values, w: Values, stride: Any, padding: Any, dilation: Any, groups: int) -> Values:
    """Convolve by the definition, one output element after the other."""
    (sy, sx), (dy, dx) = stride, dilation
    x = np.pad(x, ((0, 0), (0, 0), *padding)).astype("f8")
    batch, channels, height, width = x.shape
    outs, _, kh, kw = w.shape
    high, wide = (height - dy * (kh - 1) - 1) // sy + 1, (width - dx * (kw - 1) - 1) // sx + 1
    per, per_out = channels // groups, outs // groups
    out = np.zeros((batch, outs, high, wide))
    for o in range(outs):
        g = o // per_out
        part = x[:, g * per : (g + 1) * per]
        for i in range(high):
            for j in range(wide):
                patch = part[:, :, i * sy : i * sy + dy * kh : dy, j * sx : j * sx + dx * kw : dx][
                    :, :, :kh, :kw
                ]
                out[:, o, i, j] = (patch * w[o].astype("f8")).sum((1, 2, 3))
    return out


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [
        ((1, 1), ((0, 0), (0, 0)), (1, 1), 1), ((1, 1), ((1, 1), (1, 1)), (1, 1), 2),
        ((2, 1), ((1, 1), (0, 0)), (1, 2), 1),
        ((3, 2), ((2, 0), (1, 3)), (2, 1), 4), ((1, 1), ((2, 2), (2, 2)), (2, 2), 4),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_conv2d(stride: Any, padding: Any, dilation: Any, groups: int, dtype: str) -> None:
    x, w = data((2, 4, 7, 8), dtype), data((8, 4 // groups, 3, 2), dtype, 1)
    got = rt.conv2d(
        rt.asarray(x), rt.asarray(w), stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    same(
        got,
        convolve(x, w, stride, padding, dilation, groups)
        .astype("i8" if dtype == "int8" else dtype)
        .astype(dtype),
    )


def test_conv2d_forms_and_errors() -> None:
    x, w = rt.asarray(data((1, 2, 5, 5))), rt.asarray(data((3, 2, 3, 3), seed=1))
    same(rt.conv2d(x, w, padding=1), np.asarray(rt.conv2d(x, w, padding=((1, 1), (1, 1)))))
    same(rt.conv2d(x, w, padding=(1, 0)), np.asarray(rt.conv2d(x, w, padding=((1, 1), (0, 0)))))
    with pytest.raises(ShapeError, match="channels"):
        rt.conv2d(x, w, groups=2)
    with pytest.raises(ShapeError, match="channels"):
        rt.conv2d(x, w, groups=0)
    with pytest.raises(ShapeError, match="shapes"):
        rt.conv2d(x[0], w)
    with pytest.raises(ShapeError, match="do not fit"):
        rt.conv2d(x, w, dilation=3)
    with pytest.raises(ShapeError, match="padding"):
        rt.conv2d(x, w, padding=(1, 1, 1))


# -- neural networks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_softmax_and_layer_norm(dtype: str) -> None:
    a = data((3, 4, 5), dtype) * np.array(10, dtype)
    result = "float32" if dtype == "int32" else dtype
    tolerance = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}[result]
    wide = a.astype("f8")
    for axis in (-1, 0, (1, 2)):
        powers = np.exp(wide - wide.max(axis, keepdims=True))
        same(
            rt.softmax(rt.asarray(a), axis=axis),
            (powers / powers.sum(axis, keepdims=True)).astype(result),
            rtol=tolerance,
        )
        expected = (wide - wide.mean(axis, keepdims=True)) / np.sqrt(wide.var(axis, keepdims=True) + 1e-5)
        same(rt.layer_norm(rt.asarray(a), axis=axis), expected.astype(result), rtol=2 * tolerance)
    weight, bias = data((5,), result, 1), data((5,), result, 2)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-3)
    got = rt.layer_norm(rt.asarray(a), rt.asarray(weight), rt.asarray(bias), eps=1e-3)
    same(got, (expected * weight + bias).astype(result), rtol=4 * tolerance)


def test_softmax_of_extremes() -> None:
    same(rt.softmax(rt.asarray([1e30, -1e30, 1e30])), np.float32([0.5, 0, 0.5]))
    same(rt.softmax(rt.asarray(np.float16([60000, 60000]))), np.float16([0.5, 0.5]))
    same(rt.softmax(rt.ones((0, 3))), np.zeros((0, 3), "f4"))
    same(rt.softmax(rt.ones((3, 0))), np.zeros((3, 0), "f4"))
    x = rt.asarray(np.float32([1134139801600, 1]))
    same(rt.exp(x * 0.18033688 - rt.max(x * 0.18033688)), np.float32([1, 0]))
    with pytest.raises(ShapeError, match="axis"):
        rt.softmax(rt.ones(3), axis=1)
    with pytest.raises(ShapeError, match="weight and bias"):
        rt.layer_norm(rt.ones(3), rt.ones((2, 3)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_activations(dtype: str) -> None:
    a = np.array([-np.inf, -100, -11.5, -1, -0.1, 0, 0.1, 1, 11.5, 100, np.inf, np.nan]).astype(dtype)
    x, wide = rt.asarray(a), a.astype("f8")
    tolerance = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    with np.errstate(all="ignore"):
        same(rt.sigmoid(x), (1 / (1 + np.exp(-wide))).astype(dtype), rtol=tolerance)
        same(rt.relu(x), np.maximum(a, 0))
        exact = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in wide])
        same(rt.gelu(x), exact.astype(dtype), rtol=tolerance)
        inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
        same(
            rt.gelu(x, approximate="tanh"), (0.5 * wide * (1 + np.tanh(inner))).astype(dtype), rtol=tolerance
        )
    with pytest.raises(DTypeError, match="'tanh'"):
        rt.gelu(x, approximate="fast")
