"""Measure the error of the elementary functions' expansions, with MULACC rounded once and twice.

References are NumPy's functions in a wider type: float64 for float32, long double (80 bits on x86) for
float64.  Manual use, here on every float32 (an hour or more for each function; a larger stride visits fewer):

    python tests/unit/function_accuracy.py float32 --stride 1 EXP TANH
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from linear_eval import evaluate, ulp_error, variable

from retarget.codegen.functions import EXPANSIONS, FAST_EXPANSIONS, expand
from retarget.ir import ops
from retarget.ir.dtypes import DType, as_dtype, to_numpy
from retarget.ir.ops import Op
from retarget.ir.uop import toposort

Array = Any


def _erf(x: Array) -> Array:
    """Return erf: 2 / sqrt(pi) * e**-x**2 * sum(2**n * x**(2n + 1) / (2n + 1)!!), a series of one sign."""
    if x.dtype == np.float64:
        return np.array([math.erf(v) for v in x.ravel()]).reshape(x.shape)
    cut = np.clip(x, -7.0, 7.0)
    square = cut * cut
    term = total = cut
    for n in range(1, 200):
        term = term * (2 * square / (2 * n + 1))
        total = total + term
    return total * np.exp(-square) * 2 / np.sqrt(4 * np.arctan(np.longdouble(1)))


REFERENCES: dict[Op, Callable[..., Array]] = {
    ops.EXP: np.exp, ops.EXP2: np.exp2, ops.EXPM1: np.expm1,
    ops.LOG: np.log, ops.LOG2: np.log2, ops.LOG10: np.log10, ops.LOG1P: np.log1p,
    ops.SIN: np.sin, ops.COS: np.cos, ops.TAN: np.tan, ops.ASIN: np.arcsin, ops.ACOS: np.arccos,
    ops.ATAN: np.arctan,
    ops.SINH: np.sinh, ops.COSH: np.cosh, ops.TANH: np.tanh,
    ops.ASINH: np.arcsinh, ops.ACOSH: np.arccosh, ops.ATANH: np.arctanh, ops.ERF: _erf,
    ops.POW: np.power, ops.ATAN2: np.arctan2,
}  # fmt: skip

#: Arguments at which the fast formulas are meant to be used: op name -> dtype name -> (smallest, largest)
#: |x|.
FAST_RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "EXP": {"float32": (0.0, 87.33), "float64": (0.0, 708.39)},
    "LOG": {"float32": (2.0**-126, math.inf), "float64": (2.0**-1022, math.inf)},
    **{n: {"float32": (0.0, 4096.0), "float64": (0.0, 2.0**25)} for n in ("SIN", "COS", "TAN")},
}


def special_values(dtype: DType) -> Array:
    """Return zeros, ones, halves, infinities, NaN, the extremes of the format, and what is next to each."""
    numpy = to_numpy(dtype)
    info = np.finfo(numpy)
    wide = [0.0, 0.5, 0.625, 0.9, 1.0, 1.5, 2.0, 2.5, 3.0, 10.0, 88.7, 89.4, 103.9, 709.7, 710.4, 745.1]
    wide += [math.pi / 4, math.pi / 2, math.pi, 39800.0, 1e5, 1e10, 1e30, 2.0**23 + 1, 2.0**24, 2.0**53]
    values = np.array(wide, numpy)
    ends = np.array([info.max, info.tiny, info.smallest_subnormal, info.eps, np.inf, np.nan], numpy)
    values = np.concatenate([values, ends])
    with np.errstate(all="ignore"):
        near = np.concatenate(
            [values, np.nextafter(values, numpy.type(0)), np.nextafter(values, numpy.type(np.inf))]
        )
    return np.concatenate([near, -near])


def unary_samples(dtype: DType, stride: int) -> Iterator[Array]:
    """Yield special values, dense ordinary ones, and float32s at a stride, or as many random float64s."""
    rng = np.random.default_rng(stride)
    numpy = to_numpy(dtype)
    count = min(2**32 // stride, 1 << 21)
    yield special_values(dtype)
    for scale in (1.0, 10.0, 100.0, 800.0):
        yield rng.uniform(-scale, scale, min(count // 8, 250_000)).astype(numpy)
    if dtype.bits == 32:
        for start in range(0, 2**32, stride << 21):
            yield (
                np.arange(start, min(start + (stride << 21), 2**32), stride, dtype=np.int64)
                .astype(np.uint32)
                .view(numpy)
            )
    else:
        for _ in range(max(1, 2**32 // stride >> 21)):
            yield rng.integers(0, 2**64, count, np.uint64).view(numpy)


def binary_samples(op: Op, dtype: DType, stride: int) -> Iterator[tuple[Array, Array]]:
    """Yield special values against each other, random bits, ordinary pairs and, for POW, results of every
    size.
    """
    rng = np.random.default_rng(stride)
    numpy = to_numpy(dtype)
    count = min(2**32 // stride, 1 << 20) // 4
    special = special_values(dtype)
    yield tuple(a.ravel() for a in np.meshgrid(special, special))  # type: ignore[misc]
    yield rng.normal(size=count).astype(numpy), rng.normal(size=count).astype(numpy)
    bits = rng.integers(0, 1 << dtype.bits, (2, count), f"u{dtype.itemsize}").view(numpy)
    yield bits[0], bits[1]
    if op is ops.POW:
        limit = 106.0 if dtype.bits == 32 else 760.0
        digits = np.finfo(numpy).nmant
        near_one = (1 + rng.uniform(-1, 1, count) * 2.0 ** -rng.integers(0, digits, count)).astype(numpy)
        anywhere = np.abs(rng.integers(0, 1 << dtype.bits, count, f"u{dtype.itemsize}").view(numpy))
        for base in (near_one, anywhere):
            with np.errstate(all="ignore"):
                exponent = rng.uniform(-limit, limit, count) / np.log(base.astype(np.longdouble))
                yield base, exponent.astype(numpy)
        yield rng.uniform(-20, 20, count).astype(numpy), rng.integers(-30, 30, count).astype(numpy)


def measure(op: Op, dtype: DType, stride: int, fast: bool = False) -> tuple[float, tuple[float, ...]]:
    """Return the largest error in ULP and the operands that give it."""
    arity = len(op.operands)
    operands = tuple(variable(dtype, f"x{i}") for i in range(arity))
    root = expand((FAST_EXPANSIONS if fast else EXPANSIONS)[op], operands)
    wide = np.float64 if dtype.bits == 32 else np.longdouble
    worst: tuple[float, tuple[float, ...]] = (0.0, ())
    samples: Iterator[Any] = binary_samples(op, dtype, stride) if arity == 2 else unary_samples(dtype, stride)
    for sample in samples:
        values = sample if arity == 2 else (sample,)
        if fast:
            low, high = FAST_RANGES[op.name][dtype.name]
            values = (values[0][(np.abs(values[0]) >= low) & (np.abs(values[0]) <= high)],)
        with np.errstate(all="ignore"):
            exact = REFERENCES[op](*[v.astype(wide) for v in values])
        for fused in (False, True):
            error = ulp_error(evaluate(root, dict(zip(operands, values, strict=True)), fused), exact)
            at = int(np.argmax(error)) if error.size else 0
            if error.size and error[at] > worst[0]:
                worst = float(error[at]), tuple(float(v[at]) for v in values)
    return worst


def expansion_cost(op: Op, dtype: DType, fast: bool = False) -> tuple[int, float]:
    """Return the number of ops of an expansion, without constants, and the microseconds that it takes to
    build.
    """
    formula = (FAST_EXPANSIONS if fast else EXPANSIONS)[op]
    vector = dtype.vector(8)
    best = math.inf
    for i in range(20):
        operands = tuple(variable(vector, f"t{i}_{n}") for n in range(len(op.operands)))
        start = time.perf_counter()
        root = expand(formula, operands)
        best = min(best, time.perf_counter() - start) if i else best
    count = sum(u.op not in (ops.CONST, ops.BROADCAST, ops.VAR) for u in toposort([root]))
    return count, best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dtype", choices=["float32", "float64"])
    parser.add_argument("names", nargs="*", help="op names; all if none")
    parser.add_argument("--stride", type=int, default=4095)
    parser.add_argument("--fast", action="store_true")
    arguments = parser.parse_args()
    dtype = as_dtype(arguments.dtype)
    for op in REFERENCES:
        if (arguments.names and op.name not in arguments.names) or (
            arguments.fast and op not in FAST_EXPANSIONS
        ):
            continue
        error, operands = measure(op, dtype, arguments.stride, arguments.fast)
        count, microseconds = expansion_cost(op, dtype, arguments.fast)
        print(f"{op.name:6} {error:6.3f} ULP at {operands}, {count} ops, {microseconds:.0f} us", flush=True)


if __name__ == "__main__":
    main()
