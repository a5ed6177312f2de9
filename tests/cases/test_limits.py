"""GEN-02, GEN-03, GEN-04, GEN-05: many arguments, odd matrix shapes, awkward names, deep graphs."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import time
import weakref
from typing import Any

import numpy as np
import pytest

import retarget as rt
from retarget.errors import ScheduleError
from retarget.pipeline import program_of, toolchain

# -- GEN-02 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [31, 32, 40, 600])
def test_sum_of_many_buffers(device: str, n: int) -> None:
    total = rt.asarray(np.zeros(1, "f4"))
    for k in range(n):
        total = total + rt.asarray(np.array([k], "f4"))
    assert total.numpy().tolist() == [n * (n - 1) / 2]
    assert all(len(kernel.inputs) <= 64 for kernel in rt.lower(total))


@pytest.mark.parametrize("n", [35, 200])
def test_concat_of_many_buffers(device: str, n: int) -> None:
    if n > 100 and device == "clang":
        n = 70
    rng = np.random.default_rng(n)
    parts = [rng.integers(0, 99, rng.integers(0, 4)).astype("i4") for _ in range(n)]
    assert rt.concat([rt.asarray(p) for p in parts]).numpy().tolist() == np.concatenate(parts).tolist()


def test_many_outputs(device: str, compute: Any) -> None:
    x = rt.asarray(np.arange(5, dtype="f4"))
    for k, found in enumerate(compute(*[x * (k + 0.5) for k in range(150)])):
        assert found.tolist() == [i * (k + 0.5) for i in range(5)]


def test_accumulators_that_the_stack_cannot_hold(device: str) -> None:
    """The sum's loop outside of both rows and columns: an accumulator for every element of the result."""
    a = rt.asarray(np.ones((1500, 2), "f4"))
    with rt.with_schedule("order=r3,r1,r0"):
        small = rt.asarray(np.ones((3, 2), "f4"))
        assert (small @ small.T).numpy().tolist() == [[2.0] * 3] * 3
        if device != "numpy":  # whose arrays are not on a stack
            with pytest.raises(ScheduleError, match="9000000 bytes"):
                (a @ a.T).realize()


@pytest.mark.parametrize("text", ["r0=r0t:t; r1=r1t:t", "r3=r3g:g", "r9=a,b/2", "order=nowhere"])
def test_schedule_that_is_asked_for_and_impossible(device: str, text: str) -> None:
    """A typed error before anything is launched; afterwards everything works."""
    a = rt.asarray(np.ones((3, 3), "f4"))
    with rt.with_schedule(text), pytest.raises(ScheduleError):
        (a @ a).realize()
    assert (a @ a).numpy().tolist() == [[3] * 3] * 3


# -- GEN-03 ----------------------------------------------------------------------------------------------


def test_thin_products(device: str, compute: Any) -> None:
    nan = np.full((64, 64), np.nan, "f2")
    a, b = nan.copy(), nan.copy()
    a[5:22, 3:36] = [[(33 * i + k) % 7 for k in range(33)] for i in range(17)]
    b[2:35, 7:12] = [[(5 * k + n) % 5 for n in range(5)] for k in range(33)]
    x, y = rt.asarray(a)[5:22, 3:36], rt.asarray(b)[2:35, 7:12]
    column, row = rt.asarray(np.array([[1], [2], [3]], "f2")), rt.asarray(np.array([[1, 2, 3, 4, 5]], "f2"))
    product, outer = compute(x @ y, column @ row)
    assert outer.tolist() == [[1, 2, 3, 4, 5], [2, 4, 6, 8, 10], [3, 6, 9, 12, 15]]
    assert product[16].tolist() == [0, 102, 204, 306, 408] and product.sum(dtype="f8") == 16800
    np.testing.assert_array_equal(product, a[5:22, 3:36].astype("f8") @ b[2:35, 7:12].astype("f8"))


SIZES = [
    (1, 1, 1),
    (1, 7, 1),
    (2, 1, 3),
    (5, 3, 1),
    (1, 16, 17),
    (17, 33, 5),
    (16, 16, 16),
    (15, 17, 31),
    (33, 9, 65),
    (8, 40, 32),
    (3, 100, 2),
    (64, 2, 64),
]


@pytest.mark.parametrize("name", ["float32", "float64", "int32", "int8"])
def test_products_of_every_shape(device: str, compute: Any, name: str) -> None:
    """Whole numbers, so that every order of summation gives the same."""
    rng = np.random.default_rng(3)
    for m, k, n in SIZES if device == "llvm" else SIZES[4:8]:
        a, b = rng.integers(-9, 10, (m, k)).astype(name), rng.integers(-9, 10, (k, n)).astype(name)
        x, y = rt.asarray(a), rt.asarray(b)
        right = a.astype("i8") @ b.astype("i8")
        kind = np.dtype(name)
        for found in compute(x @ y, rt.asarray(a.T.copy()).T @ y, x @ rt.asarray(b.T.copy()).T):
            np.testing.assert_array_equal(found, right.astype(kind) if kind.itemsize < 4 else right)


# -- GEN-04 ----------------------------------------------------------------------------------------------


def test_names_are_legal_bounded_and_unique() -> None:
    names = []
    for shape in ((3,), (1,), (), (2, 3, 4, 5, 6, 7, 8), (10**9, 10**9), (1,) * 30 + (3,)):
        x = rt.broadcast_to(rt.asarray(np.float32(1), device="numpy"), shape)
        for y in (x + 1, x + 2, rt.exp(x)):
            names += [program_of(k, toolchain("numpy")).name for k in rt.lower(y)]
    for name in names:
        assert re.fullmatch(r"[a-z][a-z0-9_]*_[0-9a-f]{8}", name) and len(name) <= 63, name
    assert len(set(names)) == len(names)


AWKWARD = [
    "double",
    "int",
    "main",
    "é",
    "in",
    "new",
    "sin",
    "double_t",
    "acc0",
    "data0",
    "if",
    "float",
    "void",
    "r0",
    "buffers",
    "begin",
    "lane",
    "NULL",
    "asm",
    "x" * 600,
    "a b",
    "1st",
    "",
    "ünïcödé",
    "define",
    "i32",
    "ptr",
    "uint8_t",
    "vector",
    "half",
]


@pytest.mark.parametrize("name", AWKWARD)
def test_functions_and_arguments_with_awkward_names(fast_device: str, name: str) -> None:
    """What users call functions and arguments never reaches a kernel."""

    def function(x: rt.Array, **more: rt.Array) -> rt.Array:
        return x + 1 + sum(more.values())

    function.__name__ = function.__qualname__ = name
    step = rt.jit(function)
    one = rt.asarray(np.ones(3, "f4"))
    for _ in range(2):
        assert step(one, **{name or "_": one}).numpy().tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    "axis",
    [
        "double",
        "int",
        "main",
        "in",
        "new",
        "sin",
        "acc0",
        "data0",
        "in0",
        "out0",
        "buffers",
        "begin",
        "end",
        "i32",
        "for",
        "linux",
        "int64_t",
    ],
)
def test_loops_with_awkward_names(device: str, axis: str) -> None:
    """The names of a schedule's axes are the user's to choose."""
    x = rt.asarray(np.arange(12, dtype="f4").reshape(3, 4))
    with rt.with_schedule(f"r1={axis},q/2; order=r0,{axis},q"):
        assert rt.exp(x - x).sum(axis=1).numpy().tolist() == [4, 4, 4]
        assert (x + 1).numpy().tolist() == (np.arange(12).reshape(3, 4) + 1).tolist()


def test_two_kernels_that_begin_alike(device: str) -> None:
    """Expressions of which only the last of 100 operations differ."""
    x = rt.asarray(np.ones(3, "f4"))
    a = b = x
    for k in range(100):
        a = a + float(k)
        b = b + float(k)
    assert (a + 1).numpy().tolist() == [4952] * 3 and (b - 1).numpy().tolist() == [4950] * 3


# -- GEN-05 ----------------------------------------------------------------------------------------------


def test_deep_chain(device: str) -> None:
    x, y = rt.asarray(np.ones(1, "f4")), rt.asarray(np.ones(1, "f4"))
    for _ in range(20_000 if device == "llvm" else 1_000):
        x = x + y
    assert x.numpy().tolist() == [20_001 if device == "llvm" else 1_001]


def test_deep_chains_of_other_kinds(fast_device: str) -> None:
    n = 300 if fast_device == "llvm" else 40
    start = rt.asarray(np.arange(4, dtype="i4"))
    flips = pads = totals = start
    for k in range(n):
        flips = flips[::-1] + 1
        pads = rt.pad(pads[1:], (0, 1)) + k % 3
        totals = totals + totals.max() % 7
    v, w = np.arange(4, dtype="i4"), np.arange(4, dtype="i4")
    t = np.arange(4, dtype="i4")
    for k in range(n):
        v = v[::-1] + 1
        w = np.pad(w[1:], (0, 1)) + np.int32(k % 3)
        t = t + t.max() % 7
    assert (
        flips.numpy().tolist() == v.tolist()
        and pads.numpy().tolist() == w.tolist()
        and totals.numpy().tolist() == t.tolist()
    )


def test_a_hundred_thousand_operations_that_are_never_computed() -> None:
    code = """
import sys, retarget as rt, numpy as np
sys.setrecursionlimit(200)
x = y = rt.asarray(np.ones(1, "f4"), device="numpy")
for _ in range(100_000):
    x = x + y
repr(x), x.shape
del x
print("deleted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "deleted\n"), done.stderr


def test_memory_of_deep_graphs_is_freed() -> None:
    owner = rt.asarray(np.ones(1, "f4"), device="numpy")
    x = owner * 1
    first = weakref.ref(owner.node.data)
    for k in range(2000):
        x = x + float(k)
    del owner
    assert first() is not None
    del x, k
    gc.collect()
    assert first() is None


def test_stack_of_thousands(fast_device: str) -> None:
    n = 6131 if fast_device == "llvm" else 600
    started = time.monotonic()
    x = rt.stack([rt.asarray(np.array([k], "i4")) for k in range(n)])
    assert x.numpy()[:, 0].tolist() == list(range(n))
    assert time.monotonic() - started < 60
