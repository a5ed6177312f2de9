"""`Task`: a kernel to schedule and what is known of it; bounds that all heuristics share."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.uop import UOp
from ..registry.capabilities import Capabilities
from ..schedule.kernel import Kernel
from .accesses import Access

#: Scalar operations below which a kernel is not cut for threads: about 20 microseconds of vector work.
PARALLEL_WORK = 1 << 16
#: Pieces per thread: enough to even out, few enough to claim cheaply.
PIECES = 4
#: Bytes of a cache line: a tile that fills whole ones reads and writes none of them twice.
LINE = 64
#: Most float32 additions into one accumulator: some 2**24 equal terms are where a sum stops growing.
RUN = 1 << 13


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel to schedule for a target.

    Attributes
    ----------
    kernel
        What to schedule.
    output
        Its ranges along which all of its stores go.
    reductions, accesses
        Its reductions, and its loads and stores, in the order of its nodes.
    lanes
        Width of vectors of the widest dtype that it computes in; 0 without vectors.
    capabilities
        What the target has.
    """

    kernel: Kernel
    output: list[UOp]
    reductions: list[UOp]
    accesses: list[Access]
    lanes: int
    capabilities: Capabilities
