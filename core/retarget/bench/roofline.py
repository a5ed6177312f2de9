"""What a device can do at most, measured by kernels of ours: multiply-adds, and traffic to memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

_DEPTH = 1024
"""Multiply-adds of one result: with its operand, they stay in the first cache."""

_ACCUMULATORS = 10
"""Vectors of results that are computed at once: multiply-adds take four or five cycles, and two start in
each."""

_ROWS = 4
"""How often each thread does that in one call; short calls are more likely to be undisturbed."""

_STREAM = 1 << 24
"""Elements of the arrays that are read and written: larger than caches."""

_SECONDS = 1.5


def measure_limits(device: str) -> dict[str, float]:
    """Return a device's limits.

    Returns
    -------
    dict
        "operations": float32 operations a second, of independent multiply-adds on values in registers.
        "copy": bytes a second, of a kernel that reads one array and writes another, both counted.
        "read": bytes a second, of a sum.
    """
    from .. import array as rt

    x = rt.asarray(np.ones(_STREAM, np.float32), device=device)
    return {
        "operations": _multiply_adds(device),
        "copy": 8 * _STREAM / _least(device, lambda a: -a, x),
        "read": 4 * _STREAM / _least(device, lambda a: rt.sum(a), x),
    }


def _multiply_adds(device: str) -> float:
    """Return operations a second of y[i] = sum of x[i] * c[k], many i at once."""
    from contextlib import nullcontext

    from .. import array as rt
    from .. import registry
    from ..pipeline import toolchain, with_schedule

    capabilities = toolchain(registry.device(device).target).capabilities
    on_threads = "thread" in capabilities.axis_kinds
    lanes = max(1, (capabilities.vector_bits or 32) // 32)
    threads = capabilities.threads if on_threads else 1
    size = threads * _ROWS * _ACCUMULATORS * lanes if on_threads else 1 << 18
    x = rt.asarray(np.ones(size, np.float32), device=device)
    c = rt.asarray(np.ones(_DEPTH, np.float32), device=device)
    tile = f"u/{_ACCUMULATORS}:u,v/{lanes}:v" if lanes > 1 else f"u/{_ACCUMULATORS}:u"
    inner = "u,v" if lanes > 1 else "u"
    text = f"r0=t/{threads}:t,i,{tile}; order=t,i,r2,{inner}"
    with with_schedule(text) if on_threads else nullcontext():
        seconds = _least(device, lambda x, c: rt.sum(x[:, None] * c[None, :], axis=1), x, c)
    return 2.0 * size * _DEPTH / seconds


def _least(device: str, expression: Callable[..., object], *arrays: object) -> float:
    """Return the shortest time of one call."""
    from ..pipeline import runtime
    from ..runtime.jit import jit

    function, wait = jit(expression), runtime(device).synchronize
    for _ in range(3):
        function(*arrays)
    wait()
    least = float("inf")
    end = time.perf_counter() + _SECONDS
    while (start := time.perf_counter()) < end:
        function(*arrays)
        wait()
        least = min(least, time.perf_counter() - start)
    return least
