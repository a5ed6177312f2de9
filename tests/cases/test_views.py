"""VIEW-02, VIEW-04, VIEW-05, VIEW-06: strides of every sign, overlapping assignment, misaligned rows,
wide indices.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
from typing import Any

import numpy as np
import pytest

import retarget as rt
from retarget.ir import dtypes
from retarget.pipeline import program_of, toolchain
from retarget.runtime.buffers import Buffer, buffer_node

# -- VIEW-02 ---------------------------------------------------------------------------------------------


def test_reversed_and_broadcast(device: str, compute: Any) -> None:
    y = rt.asarray(np.arange(1, 9, dtype="f4"))
    one = rt.asarray(np.array([2.5], "f4"))
    found = compute(
        y[::-1] * 3,
        rt.sum(y[::-1] * 2),
        rt.pad(y[:4][::-1], (2, 1)),
        rt.sum(rt.broadcast_to(one, (4,))),
        y[::-1][::-1],
        rt.broadcast_to(one, (3, 4))[::-1, ::-1] + 1,
        y[6:1:-2],
        y[-1:-9:-1],
        y[::-3],
        rt.flip(y) - y,
        rt.roll(y, 3),
        rt.roll(y, -11),
        y[2:2],
        y[5:2],
    )
    v = np.arange(1, 9, dtype="f4")
    right = [
        v[::-1] * 3,
        72,
        [0, 0, 4, 3, 2, 1, 0],
        10,
        v,
        np.full((3, 4), 3.5),
        v[6:1:-2],
        v[::-1],
        v[::-3],
        v[::-1] - v,
        np.roll(v, 3),
        np.roll(v, -11),
        [],
        [],
    ]
    for f, e in zip(found, right, strict=True):
        np.testing.assert_array_equal(f, e)


def test_every_basic_slice_of_a_short_axis(device: str, compute: Any) -> None:
    """All start, stop and step of a length of 5, within and beyond it."""
    v = np.arange(5, dtype="i4")
    x = rt.asarray(v)
    ends = [None, 0, 1, 4, 5, 9, -1, -2, -5, -6, -9]
    slices = [slice(a, b, s) for a, b in itertools.product(ends, ends) for s in (None, 1, 2, -1, -2, -7)]
    if device != "llvm":
        slices = slices[::7]
    arrays = [rt.pad(x[s], (0, 5 - len(v[s]))) for s in slices]
    (found,) = compute(rt.stack(arrays))
    for s, row in zip(slices, found, strict=True):
        assert row[: len(v[s])].tolist() == v[s].tolist(), s


def test_chains_of_movement(device: str, compute: Any) -> None:
    v = np.arange(60, dtype="i4").reshape(3, 4, 5)
    x = rt.asarray(v)
    pairs = [
        (rt.permute_dims(x, (2, 0, 1))[::-1, 1:, ::2], v.transpose(2, 0, 1)[::-1, 1:, ::2]),
        (
            rt.reshape(rt.permute_dims(x, (1, 0, 2)), (4, 15))[:, ::-2],
            v.transpose(1, 0, 2).reshape(4, 15)[:, ::-2],
        ),
        (rt.reshape(x[:, ::-1], (12, 5)).T.reshape(6, 10), v[:, ::-1].reshape(12, 5).T.reshape(6, 10)),
        (
            rt.reshape(rt.pad(x, ((0, 1), (1, 0), (0, 1))), (10, 12))[1:, 3:-1],
            np.pad(v, ((0, 1), (1, 0), (0, 1))).reshape(10, 12)[1:, 3:-1],
        ),
        (x[:, None, ::-1, 0][:, 0].T, v[:, None, ::-1, 0][:, 0].T),
        (rt.permute_dims(x[..., ::-1], (2, 1, 0))[::2], v[..., ::-1].T[::2]),
        (rt.tile(x[0], (2, 1))[3:6], np.tile(v[0], (2, 1))[3:6]),
        (rt.repeat(x[0, 0], 3)[1::4], v[0, 0].repeat(3)[1::4]),
        (
            rt.broadcast_to(x[0, :, :1], (4, 6))[::-1].reshape(24)[5:20],
            np.broadcast_to(v[0, :, :1], (4, 6))[::-1].reshape(24)[5:20],
        ),
    ]
    for found, (_, right) in zip(compute(*[a for a, _ in pairs]), pairs, strict=True):
        np.testing.assert_array_equal(found, right, strict=True)


FOREIGN = {
    "reversed": lambda: np.arange(4)[::-1],
    "transposed": lambda: np.arange(4).reshape(2, 2).T,
    "strided": lambda: np.arange(20)[::3],
    "broadcast": lambda: np.broadcast_to(np.arange(3), (4, 3)),
    "Fortran": lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "offset": lambda: np.arange(12)[5:].reshape(7),
    "both": lambda: np.arange(24).reshape(2, 3, 4)[:, ::-1, ::2].transpose(2, 0, 1),
    "scalar": lambda: np.array(7),
    "empty": lambda: np.zeros((0, 3))[:, ::-1],
    "big-endian": lambda: np.arange(5, dtype=">i4"),
    "read-only": lambda: np.frombuffer(b"abcdefgh", "u1"),
    "misaligned": lambda: np.frombuffer(bytes(33), "u1")[1:].view("i4"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_strides(device: str, compute: Any, kind: str) -> None:
    values = FOREIGN[kind]()
    x = rt.asarray(values)
    (same, more) = compute(x, x + 1)
    assert x.shape == values.shape
    np.testing.assert_array_equal(same, values)
    np.testing.assert_array_equal(more, values + 1)
    if kind in ("big-endian", "read-only", "misaligned"):
        return
    y = rt.from_dlpack(values, device=device)
    np.testing.assert_array_equal(compute(y * 1)[0], values)


# -- VIEW-04 ---------------------------------------------------------------------------------------------


def test_assignment_under_overlap(device: str, compute: Any) -> None:
    a = rt.reshape(rt.arange(9), (3, 3))
    a += a.T
    b = rt.arange(6)
    b[1:] = b[:-1]
    c = rt.arange(6)
    c[:-1] = c[1:]
    d = rt.arange(8)
    d[::2] = d[1::2]
    d[1::2] += d[::2]
    e = rt.reshape(rt.arange(12), (3, 4))
    e[:, 1:] = e[:, :-1] * 10
    e[::-1] = e
    f = rt.arange(5)
    g = f  # the same object
    g[0] = 9
    h = f[:]  # another array with the values of now
    f[1] = 8
    found = compute(a, b, c, d, e, f, g, h)
    u = np.arange(12).reshape(3, 4)
    u[:, 1:] = u[:, :-1].copy() * 10
    u = u[::-1].copy()
    right = [
        [[0, 4, 8], [4, 8, 12], [8, 12, 16]],
        [0, 0, 1, 2, 3, 4],
        [1, 2, 3, 4, 5, 5],
        [1, 2, 3, 6, 5, 10, 7, 14],
        u,
        [9, 8, 2, 3, 4],
        [9, 8, 2, 3, 4],
        [9, 1, 2, 3, 4],
    ]
    for p, q in zip(found, right, strict=True):
        np.testing.assert_array_equal(p, q)


def test_large_transposed_addition_in_place(fast_device: str) -> None:
    values = np.random.default_rng(1).standard_normal((1024, 1024)).astype("f4")
    a = rt.asarray(values)
    for _ in range(3):  # also when the buffer's block is reused
        a += a.T
        a.realize()
        values = values + values.T
    np.testing.assert_array_equal(a.numpy(), values)
    b = rt.asarray(values)
    b[1:] = b[:-1]
    np.testing.assert_array_equal(b.numpy(), np.concatenate([values[:1], values[:-1]]))


def test_inputs_are_never_changed(device: str) -> None:
    values = np.arange(6.0)
    x = rt.asarray(values)
    y = x + 0
    x += 1
    x[2] = 100
    assert y.numpy().tolist() == [0, 1, 2, 3, 4, 5] and values.tolist() == [0, 1, 2, 3, 4, 5]
    assert x.numpy().tolist() == [1, 2, 100, 4, 5, 6]


# -- VIEW-05 ---------------------------------------------------------------------------------------------


def test_every_offset(device: str, compute: Any) -> None:
    values = np.arange(1026, dtype="f4")
    base = rt.asarray(values)
    rows = rt.asarray(np.arange(3 * 1185, dtype="f4").reshape(3, 1185))
    starts = list(range(9)) if device != "numpy" else [1]
    found = compute(
        *[base[s : s + 1024 - 7] * 2 for s in starts],
        rows * 2,
        rows[:, 1:] - rows[:, :-1],
        rows[1:, 3:].sum(axis=1),
    )
    for s, f in zip(starts, found[: len(starts)], strict=True):
        np.testing.assert_array_equal(f, values[s : s + 1017] * 2)
    v = np.arange(3 * 1185, dtype="f4").reshape(3, 1185)
    np.testing.assert_array_equal(found[-3], v * 2)
    assert (found[-2] == 1).all()
    np.testing.assert_allclose(found[-1], v[1:, 3:].sum(axis=1, dtype="f8"), rtol=1e-6)


def test_stores_touch_nothing_beside_them(device: str, compute: Any) -> None:
    for n in (8, 33) if device != "clang" else (13,):
        for at in {0, 1, 7, n - 1}:
            out = rt.arange(n)
            out[at] = 9
            mid = rt.asarray(np.arange(n))
            mid[1 : n - 1] = 0
            one, two = compute(out, mid)
            right = np.arange(n)
            right[at] = 9
            assert one.tolist() == right.tolist() and two.tolist() == [0, *[0] * (n - 2), n - 1]


@pytest.mark.skipif(os.name != "posix", reason="needs mprotect")
@pytest.mark.parametrize("side", ["before", "behind"])
def test_nothing_is_read_or_written_beyond_a_buffer(fast_device: str, side: str) -> None:
    """Inputs and outputs that end (or start) at a page that must not be touched."""
    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    name = rt.device(fast_device).name

    def guarded(nbytes: int) -> int:
        room = -(-nbytes // page) * page
        start = libc.mmap(None, room + 2 * page, 3, 0x22, -1, 0)
        assert start not in (None, ctypes.c_void_p(-1).value)
        assert libc.mprotect(start, page, 0) == 0 and libc.mprotect(start + page + room, page, 0) == 0
        return start + page if side == "before" else start + page + room - nbytes

    lengths = (
        (5, 17, 33) if fast_device == "clang" else (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65, 1001)
    )
    for n in lengths:
        for kind in ("f4", "i1", "f8"):
            values = np.arange(n).astype(kind)
            address = guarded(values.nbytes)
            ctypes.memmove(address, values.ctypes.data, values.nbytes)
            x = rt.Array(
                buffer_node(Buffer(address, values.nbytes, name), dtypes.as_dtype(values.dtype), (n,)), name
            )
            (kernel,) = rt.lower(x + 1)
            out = guarded(values.nbytes)
            rt.load(rt.compile(kernel, fast_device), fast_device)([out, address])
            np.testing.assert_array_equal(
                np.frombuffer(ctypes.string_at(out, values.nbytes), kind), values + 1
            )
            results = (
                [x.sum(), x.max(), x[::-1] * 2, rt.pad(x, (3, 2)), rt.concat([x, x])] if n in (5, 17) else []
            )
            right = [
                values.sum(),
                values.max(),
                values[::-1] * 2,
                np.pad(values, (3, 2)),
                np.concatenate([values] * 2),
            ]
            for f, e in zip(results, right, strict=False):
                np.testing.assert_array_equal(f.numpy(), e)


# -- VIEW-06 ---------------------------------------------------------------------------------------------


def test_more_elements_than_int32_without_memory(fast_device: str) -> None:
    x = rt.broadcast_to(rt.asarray(np.ones((1, 1), "i8")), (65536, 65537))
    assert x.sum().item() == 4295032832
    flat = rt.arange(2**33)
    assert flat[2**33 - 5 :].numpy().tolist() == list(range(2**33 - 5, 2**33))
    assert (flat[2**32 :: 2**31] // 2).numpy().tolist() == [2**31, 2**31 + 2**30]


def index_dtypes(array: rt.Array) -> set[str]:
    (kernel,) = rt.lower(array)
    uops = program_of(kernel, toolchain("numpy")).uops
    return {u.dtype.name for u in uops if u.op.name == "RANGE"}


def test_64_bit_indices_exactly_when_needed() -> None:
    small = rt.asarray(np.zeros((1, 8), "u1"), device="numpy")
    assert index_dtypes(rt.broadcast_to(small, (1000, 8)) + 1) == {"int32"}
    assert index_dtypes(rt.broadcast_to(small, (2**28 - 1, 8)) + 1) == {"int32"}
    assert index_dtypes(rt.broadcast_to(small, (2**28 + 1, 8)) + 1) == {"int64"}
    assert index_dtypes(rt.reshape(rt.broadcast_to(small, (2**29, 8)), (2**32,))[5:9].sum()) == {"int32"}


@pytest.mark.skipif("RETARGET_TEST_LARGE" not in os.environ, reason="set RETARGET_TEST_LARGE=1: takes 4 GiB")
def test_more_bytes_than_int32(fast_device: str) -> None:
    values = np.zeros(2**31 + 16, "u1")
    values[-1] = 7
    x = rt.asarray(values)
    assert (x + 1)[-1].item() == 8
    assert rt.sum(x, dtype="int64").item() == 7
    y = (x + 1).realize()
    assert y[-1].item() == 8 and y[-2].item() == 1 and y[2**31].item() == 1
