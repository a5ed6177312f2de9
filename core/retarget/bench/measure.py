"""Measuring cases: results compared first, then alternating blocks of calls with idle gaps.

Worker threads of other libraries spin for a while after a call and slow down whoever runs next, so each
library gets a block of calls of its own after a pause in which the others go to sleep.  A round is one block
of each, in an order that turns from round to round.  Ratios are taken within rounds, so that a machine whose
speed drifts disturbs them little; the figure is the median of the rounds.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import RetargetError, UserError
from ..runtime.pool import wanted_threads
from .kernels import Case, Operand, Start
from .libraries import Call, load, values
from .timing import Timing, calls_for, interleave

OURS = "retarget"

_SLOW, _SLOW_ROUNDS = 0.3, 3
"""Seconds from which a call is so slow that few rounds have to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to measure.

    Attributes
    ----------
    rounds
        Blocks of each library.
    gap
        Seconds of silence before a block.
    block
        Seconds of a block, if that is more than one call.
    statistic
        As in `Result`.
    """

    rounds: int = 9
    gap: float = 0.05
    block: float = 0.04
    statistic: str = "median"

    @classmethod
    def quick(cls) -> Plan:
        """Return the plan for a first look."""
        return cls(rounds=3, gap=0.03, block=0.015)


@dataclass(frozen=True, slots=True)
class Result:
    """A case's times, in seconds for each round, and what could not be measured.

    Attributes
    ----------
    timings
        "retarget" and the libraries; a library that is slow has fewer rounds than the others.
    problems
        "retarget" or a library -> why it has no timing: a wrong result, or its error.
    moved
        Bytes of operands and result.
    statistic
        What verdicts go by: "median", or "best", the shortest measurement of each.  On a machine with other
        work, medians of libraries whose threads wait for each other measure that work rather than them.
    """

    case: Case | Start
    timings: dict[str, Timing] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    moved: float = 0.0
    statistic: str = "median"

    @property
    def ours(self) -> Timing | None:
        return self.timings.get(OURS)

    def ratio(self, name: str) -> Timing | None:
        """Return a library's time over ours, round by round; None where either is missing."""
        ours, theirs = self.ours, self.timings.get(name)
        if ours is None or theirs is None:
            return None
        return Timing(tuple(t / o for t, o in zip(theirs.seconds, ours.seconds, strict=False)))

    def figure(self, name: str) -> float | None:
        """Return a library's ratio by the statistic."""
        ratio = self.ratio(name)
        if ratio is None or self.ours is None:
            return None
        return ratio.median if self.statistic == "median" else self.timings[name].best / self.ours.best

    def seconds(self, name: str) -> float:
        """Return the time of "retarget" or a library by the statistic."""
        timing = self.timings[name]
        return timing.median if self.statistic == "median" else timing.best

    @property
    def reached(self) -> tuple[float, str] | None:
        """The ratio that a goal is compared with, to the fastest of its libraries, and which that is; for
        `Start`, the microseconds."""
        if isinstance(self.case, Start):
            return None if self.ours is None else (self.seconds(OURS) * 1e6, "")
        if self.case.goal is None:
            return None
        found = [(r, n) for n in self.case.goal.against if (r := self.figure(n)) is not None]
        return min(found, default=None)

    @property
    def verdict(self) -> str:
        """ "met", "missed", "not measured", or nothing where there is no goal."""
        if self.goal_text == "":
            return ""
        reached = self.reached
        if reached is None:
            return "missed" if OURS in self.problems else "not measured"
        if isinstance(self.case, Start):
            return "met" if reached[0] <= self.case.target else "missed"
        assert self.case.goal is not None
        return "met" if reached[0] >= self.case.goal.ratio else "missed"

    @property
    def goal_text(self) -> str:
        if isinstance(self.case, Start):
            return f"≤ {self.case.target:g} µs"
        return "" if self.case.goal is None else str(self.case.goal)

    @property
    def rate(self) -> tuple[float, str] | None:
        """Ours, in GFLOP/s or GB/s."""
        if self.ours is None or isinstance(self.case, Start):
            return None
        if not self.case.by_operations:
            return self.moved / self.seconds(OURS) / 1e9, "GB/s"
        unit = "GOP/s" if "int" in self.case.dtype else "GFLOP/s"
        return self.case.operations / self.seconds(OURS) / 1e9, unit

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        case = self.case
        out: dict[str, Any] = {"case": case.name, "sets": list(case.sets)}
        if isinstance(case, Case):
            out |= {
                "shapes": [list(s) for s in case.shapes], "dtype": case.dtype, "operations": case.operations,
                "bytes": self.moved,
            }  # fmt: skip
        if self.rate is not None:
            out["rate"], out["unit"] = self.rate
        out["times"] = {}
        for name, timing in self.timings.items():
            ratio = self.ratio(name)
            out["times"][name] = {
                "ms": timing.median * 1e3,
                "spread": timing.spread,
                "rounds": len(timing.seconds),
                "best_ms": timing.best * 1e3,
            }
            if ratio is not None and self.ours is not None:
                out["times"][name] |= {
                    "ratio": ratio.median, "ratio_spread": ratio.spread,
                    "ratio_of_best": timing.best / self.ours.best,
                }  # fmt: skip
        out["problems"] = self.problems
        out["goal"], out["verdict"], out["statistic"] = self.goal_text, self.verdict, self.statistic
        return out


def measure(case: Case | Start, device: str, against: Sequence[str], plan: Plan) -> Result:
    """Compare a case's results on a device and in other libraries, and time those that are right.

    Raises
    ------
    UserError
        If the case's operands cannot be had here.
    """
    if isinstance(case, Start):
        if wanted_threads() < 2:
            return Result(case)  # there is no other thread to start
        return Result(case, {OURS: _start(device, plan)}, statistic=plan.statistic)
    operands = case.operands()
    wide = [a.astype(np.float64) if a.dtype.kind in "fV" else a for a in operands]
    expected = np.asarray(case.computation.reference(*wide), dtype=np.float64)
    del wide
    result = Result(case, moved=_moved(case, operands, expected), statistic=plan.statistic)
    calls: dict[str, Call] = {}
    for name in (OURS, *against):
        if name not in (OURS, "lazy") and name not in case.computation.ways:
            continue
        try:
            call = _call(name, case, operands, device)
            found = values(call())
        except RetargetError as error:
            result.problems[name] = _first_line(error)
        except Exception as error:  # of another library: its failure is a result, too
            if name in (OURS, "lazy"):
                raise
            result.problems[name] = f"{type(error).__name__}: {_first_line(error)}"
        else:
            if problem := _compare(found, expected, case.tolerance):
                result.problems[name] = problem
            else:
                calls[name] = call
    del expected
    result.timings.update(blocks(calls, plan))
    return result


def blocks(calls: dict[str, Call], plan: Plan) -> dict[str, Timing]:
    """Time calls in alternating blocks; return, for each, the median of each of its blocks."""
    clock = time.perf_counter
    counts: dict[str, int] = {}
    slow: dict[str, bool] = {}
    for name, call in calls.items():
        time.sleep(plan.gap)
        start = clock()
        call()
        slow[name] = clock() - start > _SLOW
        counts[name] = 1 if slow[name] else calls_for(call, 1e-4)
    taken: dict[str, list[float]] = {name: [] for name in calls}
    least = dict.fromkeys(calls, float("inf"))
    names = list(calls)
    gc.collect()
    gc.disable()
    try:
        for round_ in range(plan.rounds):
            turn = round_ % len(names) if names else 0
            for name in names[turn:] + names[:turn]:
                if slow[name] and round_ >= _SLOW_ROUNDS:
                    continue
                call, count = calls[name], counts[name]
                time.sleep(plan.gap)
                if not slow[name]:
                    call()  # wakes its workers, and brings back its data
                times = []
                end = clock() + plan.block
                while True:
                    start = clock()
                    for _ in range(count):
                        call()
                    now = clock()
                    times.append((now - start) / count)
                    if now >= end:
                        break
                taken[name].append(float(np.median(times)))
                least[name] = min([least[name], *times])
    finally:
        gc.enable()
    return {name: Timing(tuple(times), least[name]) for name, times in taken.items()}


def _call(name: str, case: Case, operands: Sequence[Operand], device: str) -> Call:
    """Return what a library is timed by."""
    if name not in (OURS, "lazy"):
        module, own = load(name, operands)
        return case.computation.ways[name](module, *own)
    from .. import array as rt
    from ..pipeline import runtime
    from ..runtime.jit import jit

    arrays = [rt.asarray(a, device=device) for a in operands]
    ours = case.computation.ours
    wait = runtime(device).synchronize
    if name == "lazy":

        def lazily() -> Any:
            result = ours(rt, *arrays).realize()
            wait()
            return result

        return lazily
    function = jit(lambda *xs: ours(rt, *xs))

    def call() -> Any:
        result = function(*arrays)
        wait()
        return result

    return call


def _moved(case: Case, operands: Sequence[Operand], result: np.ndarray[Any, Any]) -> float:
    """Return the bytes of operands, weights and result."""
    item = max(4, operands[0].itemsize)  # narrow operands have results of 32 bits
    return float(sum(a.nbytes for a in operands) + result.size * item + case.held)


def _compare(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], tolerance: float) -> str:
    """Return what is wrong with a result; nothing if it is right."""
    if found.shape != expected.shape:
        return f"wrong: a result of shape {found.shape}, not {expected.shape}"
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    error = float(np.abs(found - expected).max(initial=0.0)) / scale
    if error <= tolerance:  # false for NaN
        return ""
    return f"wrong by {error:.2g} of the largest value"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _start(device: str, plan: Plan) -> Timing:
    """Time a kernel of 64 elements in two threads, less the same in one."""
    from .. import array as rt
    from ..pipeline import with_schedule
    from ..runtime.jit import jit

    x = rt.asarray(np.ones(64, np.float32), device=device)
    one, two = jit(lambda a: a * 3.0 + 1.0), jit(lambda a: a * 3.0 + 1.0)
    with with_schedule("r0=v"):
        one(x)
    with with_schedule("r0=t/2:t,i; order=t,i"):
        two(x)
    functions: list[Call] = [lambda: one(x), lambda: two(x)]
    alone, together = interleave(functions, 5 * plan.rounds, [calls_for(f) for f in functions])
    more = tuple(b - a for a, b in zip(alone.seconds, together.seconds, strict=True))
    return Timing(more, together.best - alone.best)


def operands_missing(case: Case | Start) -> str:
    """Return why a case's operands cannot be had here; nothing if they can."""
    if isinstance(case, Case) and case.make is not None:
        try:
            case.make()
        except UserError as error:
            return str(error)
    return ""
