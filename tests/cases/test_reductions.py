"""RED-01, RED-02, RED-03: accumulators are wide enough, identities never leak, axes may be empty or of
length one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import retarget as rt
from retarget.ir.dtypes import as_dtype

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
LENGTHS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 18, 31, 33, 63, 64, 65, 127]


# -- RED-01 ----------------------------------------------------------------------------------------------


def test_half_precision_accumulates_wider(fast_device: str, compute: Any) -> None:
    half, short = rt.asarray(np.ones(100_000, "f2")), rt.asarray(np.ones(4096, "f2"))
    brain = rt.asarray(np.ones(70_000, "f4")).astype("bfloat16")
    mean, total, wide, product, squares = compute(
        half.mean(), short.sum(), brain.sum(), short.prod(), rt.sum(short * 2 * short)
    )
    assert (float(mean), float(total), float(wide), float(product), float(squares)) == (
        1,
        4096,
        70144,
        1,
        8192,
    )
    assert [mean.dtype.name, total.dtype.name, wide.dtype.name] == ["float16", "float16", "bfloat16"]
    rows, var, norm = compute(
        rt.reshape(half, (50, 2000)).sum(axis=0), rt.var(half * 200), rt.matmul(short, short)
    )
    assert (rows == 50).all() and float(var) == 0 and float(norm) == 4096


def test_half_precision_on_every_device(device: str, compute: Any) -> None:
    x = rt.asarray(np.full(3000, 30, "f2"))
    total, mean, narrow = compute(x.sum(), x.mean(), rt.sum(x, dtype="float32"))
    assert float(total) == np.inf and float(mean) == 30 and float(narrow) == 90_000
    assert float(compute(rt.asarray(np.ones(4096, "f4")).astype("bfloat16").sum())[0]) == 4096


def test_float32_column_sums_do_not_get_stuck(fast_device: str, compute: Any) -> None:
    """20 million ones in each of two columns; nothing but the result takes memory."""
    x = rt.broadcast_to(rt.asarray(np.ones((1, 2), "f4")), (20_000_000, 2))
    (found,) = compute(x.sum(axis=0))
    np.testing.assert_allclose(found, [2e7, 2e7], rtol=1e-6)
    (total,) = compute(x.sum())
    np.testing.assert_allclose(total, 4e7, rtol=1e-6)
    for shape, axis in (
        ((70_003, 3), 0),
        ((3, 1_500_007), 1),
        ((2, 40_000, 2), (0, 1)),
    ):  # lengths that no chunk divides
        values = np.linspace(0.5, 1.5, shape[0] * shape[1], dtype="f4")
        values = np.resize(values, shape)
        y = rt.asarray(values)
        found, high, share = compute(
            y.sum(axis=axis), y.max(axis=axis), y / rt.sum(y, axis=axis, keepdims=True)
        )
        np.testing.assert_allclose(found, values.astype("f8").sum(axis=axis), rtol=1e-6)
        np.testing.assert_array_equal(high, values.max(axis=axis))
        np.testing.assert_allclose(share.astype("f8").sum(axis=axis), 1, rtol=1e-6)


def test_long_products_of_matrices(fast_device: str, compute: Any) -> None:
    """So many products for each element that a panel cannot hold them."""
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((9, 40_001)).astype("f4"), rng.standard_normal((40_001, 33)).astype("f4")
    (found,) = compute(rt.asarray(a) @ rt.asarray(b))
    np.testing.assert_allclose(found, a.astype("f8") @ b, rtol=1e-5, atol=2e-3)


@pytest.mark.parametrize("name", ["bool", *INTEGERS])
def test_sums_of_integers_are_64_bits_wide(device: str, compute: Any, name: str) -> None:
    dtype = as_dtype(name)
    high = 1 if name == "bool" else int(dtype.max)
    low = 0 if name == "bool" else int(dtype.min)
    values = [high] * 299 + [low]
    x = rt.asarray(np.array(values, name))
    total, count, running, product = compute(x.sum(), rt.count_nonzero(x), rt.cumulative_sum(x), x[:3].prod())
    unsigned = dtype.kind == "uint"
    assert total.dtype == running.dtype == product.dtype == ("uint64" if unsigned else "int64")

    def wrap(v: int) -> int:
        v &= 2**64 - 1
        return v if unsigned or v < 2**63 else v - 2**64

    sums = np.cumsum(np.array(values, object)).tolist()
    assert int(total) == wrap(sums[-1]) and int(product) == wrap(high**3)
    assert running.tolist() == [wrap(s) for s in sums]
    assert int(count) == sum(v != 0 for v in values)


def test_sums_that_were_seen_to_fail(device: str, compute: Any) -> None:
    truth, small, steps = (
        rt.asarray(np.ones(300, bool)),
        rt.asarray(np.array([200, 200], "u1")),
        rt.asarray(np.array([100, 100], "i1")),
    )
    a, b, c, d = compute(truth.sum(), small.sum(), rt.cumulative_sum(steps), small.mean())
    assert (int(a), int(b), c.tolist(), float(d)) == (300, 400, [100, 200], 200)


# -- RED-02 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bool", *INTEGERS, "float32"])
def test_the_extreme_is_never_the_start_value(device: str, compute: Any, name: str) -> None:
    """All elements lie on one side of 0 and of the dtype's limits, in every length around vector widths."""
    rng = np.random.default_rng(7)
    lengths = LENGTHS if device == "llvm" else [1, 15, 16, 17, 18]
    for n in lengths:
        if name == "bool":
            low = high = np.zeros(n, bool)
            low = ~low
        elif name.startswith("uint"):
            low, high = rng.integers(1, 100, n).astype(name), rng.integers(0, 50, n).astype(name)
        else:
            low, high = rng.integers(3, 100, n).astype(name), rng.integers(-100, -3, n).astype(name)
        x, y = rt.asarray(low), rt.asarray(high)
        found = compute(x.min(), y.max(), x.max(), y.min(), rt.argmin(x), rt.argmax(y), y.sum())
        right = [low.min(), high.max(), low.max(), high.min(), low.argmin(), high.argmax()]
        assert [f.item() for f in found[:6]] == [r.item() for r in right], n
        assert found[6].item() == sum(high.tolist())
        both = np.stack([low, high, low]).T.copy()  # along the outer axis: another vector axis
        z = rt.asarray(both)
        found = compute(z.min(axis=0), z.max(axis=0))
        assert (
            found[0].tolist() == both.min(axis=0).tolist() and found[1].tolist() == both.max(axis=0).tolist()
        )


@pytest.mark.parametrize("name", INTEGERS)
def test_limits_of_the_dtype(device: str, compute: Any, name: str) -> None:
    low, high = int(as_dtype(name).min), int(as_dtype(name).max)
    x = rt.asarray(np.array([low, 0, 7], name))
    y = rt.asarray(np.array([0, high], name))
    z = rt.asarray(np.array([low] * 17, name))
    w = rt.asarray(np.array([high] * 17, name))
    found = compute(x.min(), y.min(), y.max(), z.max(), w.min(), rt.argmin(w), rt.argmax(z))
    assert [f.item() for f in found] == [low, 0, high, low, high, 0, 0]


def test_any_and_all(device: str, compute: Any) -> None:
    for n in (1, 15, 16, 17, 18, 33):
        one = np.zeros(n, bool)
        one[n - 1] = True
        x, z = rt.asarray(one), rt.asarray(np.zeros(n, bool))
        f = rt.asarray(np.where(one, np.float32("nan"), np.float32(0)))
        found = compute(x.any(), z.any(), rt.all(~z), rt.all(~x), z.max(), rt.min(~z), f.any(), rt.all(f))
        assert [v.item() for v in found] == [True, False, True, False, False, True, True, n == 1]


# -- RED-03 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bool", "int8", "uint64", *FLOATS])
def test_no_rows(device: str, compute: Any, name: str) -> None:
    e = rt.zeros((0, 2), dtype=name)
    b = rt.asarray(np.zeros((0, 2), "f4")).astype(name)  # a buffer, not a constant
    for x in (e, b):
        found = compute(
            x.sum(axis=0), x.prod(axis=0), x.any(axis=0), rt.all(x, axis=0), x.sum(axis=1), rt.max(x, axis=1)
        )
        assert [f.tolist() for f in found] == [[0, 0], [1, 1], [False] * 2, [True] * 2, [], []]
        for shape, y in {
            (0,): x.argmax(axis=1),
            (0, 2): rt.cumulative_sum(x, axis=0),
            (2, 0): x.T,
            (0, 1): x[:, :1],
            (3, 2): rt.pad(x, ((1, 2), (0, 0))),
        }.items():
            assert y.shape == shape and compute(y)[0].shape == shape
        (total,) = compute(x.sum())
        assert total == 0


@pytest.mark.parametrize("function", ["max", "min", "argmax", "argmin"])
def test_no_extreme_of_nothing(function: str) -> None:
    f = getattr(rt, function)
    for x, axis in ((rt.zeros((0, 2)), 0), (rt.zeros((0,)), None), (rt.zeros((3, 0)), 1)):
        with pytest.raises(ValueError, match=r"no elements|without elements"):
            f(x, axis=axis)


def test_means_of_nothing_are_nan(device: str, compute: Any) -> None:
    x = rt.asarray(np.zeros((0, 3), "f4"))
    mean, var, std = compute(x.mean(axis=0), rt.var(x, axis=0), rt.std(x))
    assert np.isnan(mean).all() and np.isnan(var).all() and np.isnan(std)


def test_elementwise_and_products(device: str, compute: Any) -> None:
    e = rt.asarray(np.zeros((0, 2), "f4"))
    a, b = rt.asarray(np.zeros((3, 0), "f4")), rt.asarray(np.zeros((0, 4), "f4"))
    found = compute(e + 1, rt.exp(e), a @ b, b.T @ a.T, rt.tensordot(a, b, axes=1) + 1, rt.sum(a @ b))
    assert [f.shape for f in found] == [(0, 2), (0, 2), (3, 4), (4, 3), (3, 4), ()]
    assert all((f == 0).all() for f in (found[2], found[3], found[5])) and (found[4] == 1).all()
    c = rt.concat([e, rt.asarray(np.ones((2, 2), "f4")), e])
    s = rt.stack([e, e])
    where = rt.where(e > 0, e, 1)
    found = compute(
        c,
        s,
        where,
        e[::-1],
        rt.reshape(e, (2, 0)),
        rt.flip(e),
        rt.repeat(e, 3),
        rt.take(c, rt.asarray(np.zeros(0, "i8")), axis=0),
    )
    assert [f.shape for f in found] == [(2, 2), (2, 0, 2), (0, 2), (0, 2), (2, 0), (0, 2), (0,), (0, 2)]
    assert (found[0] == 1).all()


def test_axes_of_length_one(device: str, compute: Any) -> None:
    x = rt.asarray(np.array([[5], [7]], "f4"))
    z = rt.full((40, 900, 1), 0.0)
    found = compute(
        x.sum(axis=1),
        x.argmax(axis=1),
        x.max(axis=1),
        rt.var(x, axis=1),
        rt.softmax(x, axis=1),
        rt.cumulative_sum(x, axis=1),
    )
    assert [f.reshape(-1).tolist() for f in found] == [[5, 7], [0, 0], [5, 7], [0, 0], [1, 1], [5, 7]]
    if device != "numpy":
        (found,) = compute(rt.argmax(z, axis=2))
        assert found.shape == (40, 900) and (found == 0).all()


def test_nothing_is_launched_for_nothing() -> None:
    e = rt.asarray(np.zeros((0, 2), "f4"), device="numpy")
    assert rt.lower(e + 1) == [] and rt.lower(rt.exp(e), e.T * 2) == []
    assert all(0 not in k.outputs[0].shape for k in rt.lower(e.sum(axis=0)))


def test_scalars(device: str, compute: Any) -> None:
    """0-d arrays through every kind of operation."""
    x = rt.asarray(np.float32(3))
    found = compute(
        x + 1,
        x.sum(),
        x.max(),
        rt.reshape(x, (1, 1)),
        rt.broadcast_to(x, (2, 3)),
        rt.stack([x, x]),
        rt.exp(x * 0),
    )
    assert [f.tolist() for f in found] == [4, 3, 3, [[3]], [[3] * 3] * 2, [3, 3], 1]
