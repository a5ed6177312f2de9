"""Shape manipulation against NumPy, and the smart constructors of movement nodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retarget as rt
from retarget.array import movement
from retarget.errors import ShapeError
from retarget.ir import ops
from retarget.ir.uop import UOp, toposort

pytestmark = pytest.mark.usefixtures("oracle_runtime")

SHAPES = [(), (1,), (6,), (2, 3), (3, 1, 4), (0,), (2, 0, 3)]


def same(got: rt.Array, expected: Any) -> None:
    values, wanted = np.asarray(got), np.asarray(expected)
    assert (values.shape, values.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(values, wanted)
    np.testing.assert_array_equal(np.signbit(values), np.signbit(wanted))


def data(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return distinct values, with NaN, infinities and -0.0 at the front."""
    out = np.arange(math.prod(shape), dtype="f4")
    special = np.float32([np.nan, np.inf, -0.0, -np.inf])[: out.size]
    out[: special.size] = special
    return out.reshape(shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_movement(shape: tuple[int, ...]) -> None:
    a = data(shape)
    x = rt.asarray(a)
    same(rt.reshape(x, (-1,) if a.size else (a.size,)), a.reshape(-1))
    same(x.reshape(*shape), a)
    same(x.flatten() if a.size else rt.reshape(x, 0), a.reshape(-1))
    same(rt.permute_dims(x, tuple(range(x.ndim))[::-1]), a.transpose())
    same(rt.flip(x), np.flip(a))
    same(rt.expand_dims(x, axis=0), a[None])
    same(rt.expand_dims(x, axis=(0, -1)), a[None, ..., None])
    same(rt.broadcast_to(x, (2, *shape)), np.broadcast_to(a, (2, *shape)))
    same(rt.roll(x, 2), np.roll(a, 2))
    same(rt.tile(x, (2,)), np.tile(a, 2))
    same(rt.tile(x, (2, 1, 3, 1)), np.tile(a, (2, 1, 3, 1)))
    same(rt.repeat(x, 3), np.repeat(a, 3))
    same(rt.concat([x, x], axis=None), np.concatenate([a, a], axis=None))
    same(rt.stack([x, x, x]), np.stack([a, a, a]))
    same(rt.stack([x, x], axis=-1), np.stack([a, a], -1))
    same(rt.pad(x, 1), np.pad(a, 1))
    for axis in range(-x.ndim, x.ndim):
        same(rt.flip(x, axis=axis), np.flip(a, axis))
        same(rt.roll(x, -1, axis=axis), np.roll(a, -1, axis))
        same(rt.repeat(x, 2, axis=axis), np.repeat(a, 2, axis))
        same(rt.repeat(x, list(range(shape[axis])), axis=axis), np.repeat(a, list(range(shape[axis])), axis))
        same(rt.concat([x, -x, x], axis=axis), np.concatenate([a, -a, a], axis))
        same(rt.moveaxis(x, axis, 0), np.moveaxis(a, axis, 0))
        for got, expected in zip(rt.unstack(x, axis=axis), np.moveaxis(a, axis, 0), strict=True):
            same(got, expected)


def test_transposes() -> None:
    a = data((2, 3, 4))
    same(rt.asarray(a).mT, a.swapaxes(-1, -2))
    same(rt.matrix_transpose(rt.asarray(a[0])), a[0].T)
    same(rt.asarray(a[0]).T, a[0].T)
    same(rt.moveaxis(rt.asarray(a), (0, 1), (-1, 0)), np.moveaxis(a, (0, 1), (-1, 0)))
    with pytest.raises(ShapeError, match=r"use \.mT"):
        _ = rt.asarray(a).T
    with pytest.raises(ShapeError, match="two axes"):
        _ = rt.ones(3).mT


def test_squeeze() -> None:
    a = data((1, 3, 1))
    same(rt.squeeze(rt.asarray(a), 0), a[0])
    same(rt.squeeze(rt.asarray(a), (0, -1)), a[0, :, 0])
    with pytest.raises(ShapeError, match="axis 1 of shape"):
        rt.squeeze(rt.asarray(a), 1)


def test_roll_of_several_axes() -> None:
    a = data((3, 4))
    same(rt.roll(rt.asarray(a), (1, -2), axis=(0, 1)), np.roll(a, (1, -2), (0, 1)))
    same(rt.roll(rt.asarray(a), 1, axis=(0, 1)), np.roll(a, 1, (0, 1)))
    same(rt.roll(rt.asarray(a), 401), np.roll(a, 401))


def test_joining_is_exact_for_special_values() -> None:
    a = np.float32([np.nan, -0.0, np.inf])
    b = np.float32([-np.inf, -0.0])
    same(rt.concat([rt.asarray(a), rt.asarray(b)]), np.concatenate([a, b]))


def test_joining_promotes() -> None:
    got = rt.concat([rt.asarray(np.int8([1])), rt.asarray(np.float32([0.5])), rt.asarray([True])])
    same(got, np.float32([1, 0.5, 1]))
    assert rt.stack([rt.asarray(1), rt.asarray(True)]).dtype is rt.int64


def test_joining_parts_of_length_zero() -> None:
    a = data((2, 3))
    x = rt.asarray(a)
    same(rt.concat([x[:0], x, x[:0], x[:1]]), np.concatenate([a, a[:1]]))
    same(rt.concat([x[:0], x[:0]]), a[:0])


def test_many_arrays_join_in_a_shallow_tree() -> None:
    parts = [rt.asarray([i]) for i in range(6131)]
    joined = rt.stack(parts)
    depth: dict[UOp, int] = {}
    for node in toposort([joined.node]):
        depth[node] = 1 + max((depth[s] for s in node.src), default=0)
    assert depth[joined.node] < 100
    few = rt.stack(parts[:300])
    same(few, np.arange(300)[:, None])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=2),
    st.sampled_from([0, -0.0, 7.5]),
)
def test_pad(widths: list[tuple[int, int]], value: float) -> None:
    a = data((2, 3))
    same(rt.pad(rt.asarray(a), widths, constant_values=value), np.pad(a, widths, constant_values=value))
    same(rt.pad(rt.asarray(a), widths[0], constant_values=value), np.pad(a, widths[0], constant_values=value))


def test_broadcasting_functions() -> None:
    a, b = data((2, 1)), data((3,))
    for got, expected in zip(
        rt.broadcast_arrays(rt.asarray(a), rt.asarray(b)), np.broadcast_arrays(a, b), strict=True
    ):
        same(got, expected)
    assert rt.broadcast_shapes((2, 1), (3,), ()) == (2, 3)
    assert rt.broadcast_shapes((0,), (1,)) == (0,)
    with pytest.raises(ShapeError, match="broadcast"):
        rt.broadcast_to(rt.ones(3), (2,))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_transposed_iota(n: int) -> None:
    got = (rt.arange(3 * n).reshape(3, n) + 1).T.flatten()
    assert got.shape == (3 * n,)
    same(got, (np.arange(3 * n).reshape(3, n) + 1).T.flatten())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: x.reshape(4, 2), r"shape \(2, 3\) has 6 elements, \(4, 2\) would have 8"),
        (lambda x: x.reshape(-1, 4), "cannot be reshaped"),
        (lambda x: x.reshape(-1, -1), "-1"),
        (lambda x: x.reshape(1.5), "tuple of ints"),
        (lambda x: rt.permute_dims(x, (0, 0)), "each of 2 axes once"),
        (lambda x: rt.flip(x, axis=2), r"flip: axis 2 is out of range for 2 axes; allowed: \[-2, 1\]"),
        (lambda x: rt.flip(x, axis=(0, 0)), "twice"),
        (lambda x: rt.concat([x, rt.ones((2, 4))]), "differ in another axis"),
        (lambda x: rt.concat([]), "at least one"),
        (lambda x: rt.stack([x, x[0]]), "one shape"),
        (lambda x: rt.repeat(x, -1), "not negative"),
        (lambda x: rt.repeat(x, [1, 2, 3], axis=0), "2 elements, got 3"),
        (lambda x: rt.repeat(x, rt.asarray([1, 2]), axis=0), "tolist"),
        (lambda x: rt.pad(x, ((1, 1),) * 3), "got 3 pairs"),
        (lambda x: rt.pad(x, -1), "not negative"),
        (lambda x: rt.pad(x, 1, mode="edge"), "constant"),
        (lambda x: rt.moveaxis(x, (0, 1), 0), "distinct"),
        (lambda x: rt.roll(x, (1, 2), axis=(0, 1, 0)), "one shift"),
    ],
)
def test_errors(call: Any, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        call(rt.ones((2, 3)))


# -- smart constructors --------------------------------------------------------------------------------------


def test_movement_nodes_merge() -> None:
    node = rt.asarray(data((2, 3, 4))).node
    assert movement.reshape(movement.reshape(node, (6, 4)), (2, 3, 4)) is node
    assert movement.reshape(movement.reshape(node, (6, 4)), (24,)).src == (node,)
    assert movement.permute(movement.permute(node, (2, 0, 1)), (1, 2, 0)) is node
    assert movement.flip(movement.flip(node, (0, 1)), (1, 0)) is node
    assert movement.flip(node, ()) is node
    assert movement.pad(movement.pad(node, ((1, 0),) * 3), ((0, 2),) * 3).arg == ((1, 2),) * 3
    inner = movement.shrink(movement.shrink(node, ((0, 2), (1, 3), (0, 4))), ((1, 2), (0, 1), (2, 3)))
    assert inner.arg == ((1, 2), (1, 2), (2, 3))
    assert inner.src == (node,)
    assert movement.shrink(node, ((0, 2), (0, 3), (0, 4))) is node
    narrow = movement.reshape(node, (1, 24, 1))
    assert movement.expand(movement.expand(narrow, (2, 24, 1)), (2, 24, 5)).src == (narrow,)


def test_moved_constants_are_constants() -> None:
    node = movement.full(3, rt.int32, (2, 6))
    assert movement.reshape(node, (3, 4)) is movement.full(3, rt.int32, (3, 4))
    assert movement.reshape(movement.full(3, rt.int32, (1,)), ()) is movement.full(3, rt.int32, ())
    assert movement.permute(node, (1, 0)) is movement.full(3, rt.int32, (6, 2))
    assert movement.expand(movement.full(3, rt.int32, (1, 6)), (2, 6)) is node
    assert movement.shrink(node, ((0, 1), (2, 4))) is movement.full(3, rt.int32, (1, 2))
    assert movement.flip(node, (0,)) is node
    zeros = movement.full(0.0, rt.float32, (2,))
    assert movement.pad(zeros, ((1, 1),)) is movement.full(0.0, rt.float32, (4,))
    assert movement.pad(movement.full(-0.0, rt.float32, (2,)), ((1, 1),)).op is ops.PAD


@st.composite
def movements(draw: st.DrawFn) -> list[tuple[str, Any]]:
    return draw(st.lists(st.tuples(st.sampled_from("rpespf"), st.integers(0, 10**6)), max_size=6))


@settings(max_examples=200)
@given(movements(), st.sampled_from([(2, 3), (1, 4), (3, 1, 2), (5,), ()]))
def test_chains_of_movement(chain: list[tuple[str, int]], shape: tuple[int, ...]) -> None:
    """Any chain of smart constructors means what the same NumPy calls mean."""
    a = data(shape)
    node = rt.asarray(a).node
    for kind, seed in chain:
        rng = np.random.default_rng(seed)
        old = a.shape
        if kind == "r":
            new = tuple(rng.permutation([*old, 1])) if seed % 2 else (math.prod(old),)
            new = tuple(int(n) for n in new)
            a, node = a.reshape(new), movement.reshape(node, new)
        elif kind == "p":
            axes = [int(i) for i in rng.permutation(a.ndim)]
            a, node = a.transpose(axes), movement.permute(node, axes)
        elif kind == "e":
            new = tuple(int(rng.integers(1, 4)) if n == 1 else n for n in old)
            a, node = np.broadcast_to(a, new), movement.expand(node, new)
        elif kind == "s":
            window = tuple(sorted(int(i) for i in rng.integers(0, n + 1, 2)) for n in old)
            a = a[tuple(slice(b, e) for b, e in window)]
            node = movement.shrink(node, tuple((b, e) for b, e in window))
        elif kind == "f":
            axes = [i for i in range(a.ndim) if rng.integers(2)]
            a, node = np.flip(a, axes), movement.flip(node, axes)
    same(rt.Array(node), a)
