"""Run the demo's kernels on a device: compare with NumPy in float64, and time both."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

import retarget as rt

from ..errors import RetargetError
from .kernels import CASES, Case, Operand, normal, softmax

#: Largest error that is right, relative to the largest value of the result.
TOLERANCE = 1e-5
#: A kernel is timed for about this long, in seconds, and at most this often.
DURATION, REPEATS = 0.2, 50
#: A device that takes longer than this, in seconds, for a softmax of a few hundred elements interprets.
SLOW = 0.002


@dataclass(frozen=True, slots=True)
class Result:
    """How a kernel did on a device.

    Attributes
    ----------
    small
        Whether the size is the small one.
    error
        Largest difference from NumPy in float64, relative to the largest value.
    seconds, numpy_seconds
        Medians of our time and NumPy's.
    problem
        What went wrong, if anything.
    """

    device: str
    case: Case
    small: bool
    error: float = math.nan
    seconds: float = math.nan
    numpy_seconds: float = math.nan
    problem: str = ""

    @property
    def size(self) -> tuple[int, ...]:
        return self.case.small_size if self.small else self.case.size

    @property
    def rate(self) -> float:
        """Work per second, in the case's unit."""
        return self.case.work(*self.size) / self.seconds / 1e9


def measure(device: str) -> Iterator[Result]:
    """Yield the result of each kernel on a device, in the order of `CASES`."""
    small = _is_slow(device)
    for case in CASES:
        yield _measure(case, device, small)


def _is_slow(device: str) -> bool:
    """Whether a device interprets rather than compiles, judged by its time."""
    try:
        (x,) = [rt.asarray(a, device=device) for a in normal((12, 40))]
        return _median_time(rt.jit(lambda x: softmax(rt, x)), x) > SLOW
    except RetargetError:
        return False  # each kernel will say what is wrong


def _measure(case: Case, device: str, small: bool) -> Result:
    operands = case.operands(*(case.small_size if small else case.size))
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in operands]
    expected = case.compute(np, *wide)
    try:
        arrays = [rt.asarray(a, device=device) for a in operands]
        function = rt.jit(lambda *arrays: case.compute(rt, *arrays))
        got = function(*arrays).numpy()
        seconds = _median_time(function, *arrays)
    except RetargetError as failure:
        return Result(device, case, small, problem=str(failure))
    error, problem = compare(got, expected)
    numpy_seconds = _median_time(lambda *arrays: case.compute(np, *arrays), *operands)
    return Result(device, case, small, error, seconds, numpy_seconds, problem)


def compare(got: Operand, expected: Operand) -> tuple[float, str]:
    """Return the largest error relative to the largest expected value, and what is wrong ("" if nothing)."""
    if got.shape != expected.shape:
        return math.nan, f"the result has shape {got.shape}, NumPy's {expected.shape}"
    difference = np.abs(got.astype(np.float64) - expected)
    error = float(difference.max() / np.abs(expected).max())
    if error <= TOLERANCE:
        return error, ""
    where = tuple(int(i) for i in np.unravel_index(difference.argmax(), difference.shape))
    return error, f"element {where} is {got[where]}, by NumPy {expected[where]}"


def _median_time(function: Callable[..., object], *arrays: object) -> float:
    """Return the median of several calls after a first one; a call returns when its result is there."""
    taken: list[float] = []
    device = arrays[0].device if isinstance(arrays[0], rt.Array) else None
    function(*arrays)
    begin = time.perf_counter()
    while len(taken) < 3 or (len(taken) < REPEATS and time.perf_counter() - begin < DURATION):
        start = time.perf_counter()
        function(*arrays)
        if device is not None:
            rt.synchronize(device)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
