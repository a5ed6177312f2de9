"""INT-07: constants arrive in kernels as the values that they are.

`x + c` must be exact for x = 0, and `c` itself must survive being stored; in C source each literal has to
have the right type, suffix and spelling, without a warning of a strict compiler.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest

import retarget as rt
from retarget.ir.dtypes import as_dtype

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def integer_constants(name: str) -> list[int]:
    dtype = as_dtype(name)
    found = {0, 1, int(dtype.min), int(dtype.min) + 1, int(dtype.max), int(dtype.max) - 1}
    found |= {
        3_000_000_000,
        65536 * 65536,
        2**31,
        2**31 - 1,
        2**32 - 1,
        2**32,
        2**63 - 1,
        2**63,
        -(2**31),
        -(2**31) - 1,
    }
    return sorted(v for v in found if dtype.min <= v <= dtype.max)


def float_constants(name: str) -> list[float]:
    info = rt.finfo(name)
    smallest = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 5e-324}[name]
    return [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.1,
        1e-3,
        math.pi,
        math.inf,
        -math.inf,
        math.nan,
        smallest,
        -smallest,
        3 * smallest,
        float(info.max),
        float(info.min),
        float(info.smallest_normal),
        float(info.eps),
        16777217.0,
        1e10,
    ]


def bits(values: np.ndarray[Any, Any]) -> list[int]:
    raw = values.view(f"u{values.dtype.itemsize}")
    return [
        -1 if v != v else int(b)
        for v, b in zip(values.reshape(-1).tolist(), raw.reshape(-1).tolist(), strict=True)
    ]


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(device: str, compute: Any, name: str) -> None:
    constants = integer_constants(name)
    zero = rt.asarray(np.zeros(9, name))
    arrays = [zero + rt.full((), c, dtype=name) for c in constants] + [
        rt.full((3,), c, dtype=name) for c in constants
    ]
    for c, found in zip(constants * 2, compute(*arrays), strict=True):
        assert found.dtype == name and found.tolist() == [c] * len(found)


def test_python_scalars(device: str, compute: Any) -> None:
    z = rt.asarray(np.zeros(5, "i8"))
    u = rt.asarray(np.zeros(5, "u8"))
    found = compute(z + 3_000_000_000, z + -(2**63), u + (2**64 - 1), z + 65536 * 65536)
    assert [f[4] for f in found] == [3_000_000_000, -(2**63), 2**64 - 1, 4294967296]
    with pytest.raises((TypeError, ValueError, OverflowError)):
        z + 2**63
    with pytest.raises((TypeError, ValueError, OverflowError)):
        u + -1


@pytest.mark.parametrize("name", FLOATS)
def test_floats(device: str, compute: Any, name: str) -> None:
    kind = rt.full((1,), 0.0, dtype=name).numpy().dtype
    constants = float_constants(name)
    with np.errstate(over="ignore"):
        right = np.array(constants, kind)
    # -0.0 + c is c for every c, also for -0.0
    zero = rt.asarray(np.full(9, -0.0, "f4")).astype(name)
    sums = compute(*[zero + rt.full((), c, dtype=name) for c in constants])
    chosen = compute(*[rt.where(zero == 0, rt.full((), c, dtype=name), zero) for c in constants])
    for n, c in enumerate(constants):
        for found in (sums, chosen):
            assert bits(found[n]) == bits(np.repeat(right[n : n + 1], len(found[n]))), c


def test_float_scalars_round_to_the_arrays_dtype(device: str, compute: Any) -> None:
    x = rt.asarray(np.zeros(3, "f4"))
    h = rt.asarray(np.zeros(3, "f2"))
    a, b, c, d = compute(x + 0.1, x + 1e-45, h + 65504, h + 1e-8)
    assert a[0] == np.float32(0.1) and b[0] == np.float32(1e-45) and c[0] == 65504 and d[0] == 0


@pytest.mark.parametrize("value", [True, False])
def test_bool(device: str, compute: Any, value: bool) -> None:
    x = rt.asarray(np.array([True, False, True]))
    a, b = compute(x ^ rt.full((), value, dtype=rt.bool), rt.full((2,), value, dtype=rt.bool))
    assert a.tolist() == [v ^ value for v in (True, False, True)] and b.tolist() == [value] * 2


def test_sources_compile_without_a_warning() -> None:
    """Every literal as C, under the warnings of a strict compiler."""
    compiler = next((c for c in ("clang", "clang-19", "gcc") if shutil.which(c)), None)
    if compiler is None:
        pytest.skip("no C compiler")
    sources = []
    for name in [*INTEGERS, *FLOATS]:
        start = rt.asarray(np.zeros(9, "f4" if name in FLOATS else name), device="numpy").astype(name)
        constants = float_constants(name) if name in FLOATS else integer_constants(name)
        kernels = rt.lower(*[start + rt.full((), c, dtype=name) for c in constants])
        sources += [rt.render(kernel, "clang").text for kernel in kernels]
    flags = [
        "-std=gnu11",
        "-O0",
        "-Wall",
        "-Wextra",
        "-Woverflow",
        "-Werror",
        "-fsyntax-only",
        "-march=native",
    ]
    flags += ["-Wno-unused-function", "-Wno-unused-parameter", "-Wno-psabi", "-xc", "-"]
    running = [
        subprocess.Popen([compiler, *flags], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in sources
    ]
    for source, process in zip(sources, running, strict=True):
        _, errors = process.communicate(source, timeout=60)
        assert process.returncode == 0, errors[:3000]
