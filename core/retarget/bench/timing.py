"""Timing: medians, spreads, and what a figure must be read with (machine, date, versions)."""

from __future__ import annotations

import datetime
import gc
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..runtime import cpu


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one thing, measured several times.

    Attributes
    ----------
    seconds
        The measurements, or the median of each block of them.
    least
        The shortest measurement, where `seconds` are medians.
    """

    seconds: tuple[float, ...]
    least: float | None = None

    @property
    def best(self) -> float:
        """The shortest measurement."""
        return min(self.seconds) if self.least is None else self.least

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, relative to the median."""
        if len(self.seconds) < 4:
            return (max(self.seconds) - min(self.seconds)) / 2 / self.median
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / 2 / self.median


def interleave(
    functions: Sequence[Callable[[], object]], repeat: int, calls: Sequence[int] = ()
) -> list[Timing]:
    """Time functions in turn, so that what disturbs the machine disturbs all of them.

    Parameters
    ----------
    functions
        What to time.
    repeat
        How often each is measured.
    calls
        For each, how many calls one measurement is the mean of (1 if left out).
    """
    counts = list(calls) or [1] * len(functions)
    taken: list[list[float]] = [[] for _ in functions]
    clock = time.perf_counter
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeat):
            for function, count, into in zip(functions, counts, taken, strict=True):
                start = clock()
                for _ in range(count):
                    function()
                into.append((clock() - start) / count)
            gc.collect(0)
    finally:
        if collecting:
            gc.enable()
    return [Timing(tuple(each)) for each in taken]


def calls_for(function: Callable[[], object], seconds: float = 0.005) -> int:
    """Return how many calls take about `seconds`, after a first call to warm up."""
    function()
    start = time.perf_counter()
    function()
    return max(1, int(seconds / max(time.perf_counter() - start, 1e-7)))


#: What the CPU features that decide about speed begin with.
_TELLING = ("avx", "fma", "f16c", "amx", "asimd", "sve", "bf16", "i8mm")


def environment(packages: Sequence[str] = ()) -> dict[str, object]:
    """Return what figures must be read with: machine, date and versions, as JSON values."""
    versions = {"python": platform.python_version()}
    for name in ("retarget", "numpy", "llvmlite", *packages):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "machine": f"{cpu.name()}, {cores} cores",
        "vectors": f"{cpu.host().vector_bits} bits",
        "features": sorted(f for f in cpu.features() if f.startswith(_TELLING)),
        "system": platform.platform(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions,
    }
