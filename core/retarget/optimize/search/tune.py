"""`rt.tune`: search for faster schedules of the kernels behind some arrays, and keep what was found."""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import pipeline, registry
from ...errors import DeviceError, InternalError, UserError
from ...ir import ops
from ...ir.text import dump
from ...ir.uop import UOp, numel, toposort
from ...runtime.tuned import Place, find, keep, place_of, records_of
from ..schedule import Schedule, parse_schedule
from .cells import dask_executor, local_executor, run_job
from .evolve import Evolution
from .moves import Mutator

if TYPE_CHECKING:
    from ...array.array import Array
    from ...schedule.kernel import Kernel

#: Elements of all nodes of a graph up to which the NumPy evaluator checks the kernel.
ORACLE = 1 << 18
#: How much faster than the heuristics' a schedule has to be to be kept: less is noise.
WORTH = 1.03
#: Seconds in which one candidate is timed, and several finalists in turn.
_BUDGET, _FINAL = 0.04, 0.6
_FINALISTS = 4
#: Seconds that the compiler gets for a candidate, and that its runs get beside what they ought to take.
_COMPILE, _RUN = 5.0, 1.0
#: Bytes a candidate may take beside its arrays.
_MEMORY = 4 << 30


@dataclass(frozen=True, slots=True)
class Tuned:
    """What the search found for one kernel.

    Attributes
    ----------
    name
        The kernel's.
    schedule
        The fastest schedule; that of the heuristics if none was clearly faster.
    seconds, baseline_seconds
        Times of it and of the heuristics' schedule, measured in turn.
    baseline
        The heuristics' schedule, or an extension plugin's.
    candidates, rejected, illegal
        How many were measured; how many of them were rejected, by reason; how many more were illegal and
        never measured.
    kept
        Whether later runs use the schedule.
    overridden
        Whether an extension plugin chooses the schedule of this kernel, so that the tuned one is not used.
    faults
        Schedule, reason and detail of rejected candidates.
    """

    name: str
    schedule: str
    seconds: float
    baseline: str
    baseline_seconds: float
    candidates: int
    rejected: dict[str, int]
    illegal: int
    kept: bool
    overridden: bool
    faults: tuple[dict[str, str], ...] = ()

    @property
    def ratio(self) -> float:
        """How many times faster the schedule is than the heuristics'."""
        return self.baseline_seconds / self.seconds


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a search found: one `Tuned` for each different kernel, and whether it was interrupted."""

    kernels: tuple[Tuned, ...]
    device: str
    target: str
    seconds: float
    interrupted: bool


class Progress(NamedTuple):
    """How far a search is: `best` and `baseline` are seconds, None before they are known."""

    kernel: int
    kernels: int
    name: str
    candidates: int
    rejected: int
    best: float | None
    baseline: float | None
    elapsed: float


def tune(
    what: Any,
    *arguments: Any,
    device: str | None = None,
    target: str | None = None,
    seconds: float = 60.0,
    candidates: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Callable[[Progress], object] = lambda _: None,
) -> Tuning:
    """Search for faster schedules of what computes some arrays; keep them on disk for all later runs.

    Candidates are compiled and timed in other processes, with limits of time and memory; only results that
    agree with those of the heuristics' schedule count.  What is kept holds for this target, processor,
    compiler and set of plugins, and is used from then on, by this process and by others;
    `RETARGET_TUNED=0` ignores it.  Functions under `rt.jit` keep what they were captured with.
    Ctrl-C ends the search, and keeps the best that it has found.

    Parameters
    ----------
    what
        Lazy arrays: one, or nested tuples, lists and dicts of them; or a function that returns such, also
        one under `rt.jit`.  Its inputs' values do not matter.
    arguments
        What the function is called with.
    device
        The device to measure on; the arrays' own by default.
    target
        The target to compile for; the device's by default.
    seconds
        How long to search.
    candidates
        How many candidates to measure for each kernel; as many as there is time for by default.
    seed
        Decides which candidates are tried, apart from what their times decide.
    workers
        Processes that compile candidates; by default one for each core, up to 8.
    scheduler
        Address of a Dask scheduler, whose workers measure instead.
    progress
        Called after each batch.

    Raises
    ------
    UserError
        If there is nothing to tune: no function, no lazy array, no kernel with loops.
    DeviceError
        If there is no such device, the kernel fails on it as it is, or no worker of the cluster is such a
        machine.
    """
    start = time.perf_counter()
    if not seconds > 0:
        raise UserError(f"a search takes more than 0 seconds, not {seconds:g}")
    if candidates is not None and candidates < 1:
        raise UserError(f"a search measures at least 1 candidate, not {candidates}")
    if workers is not None and workers < 1:
        raise UserError(f"a search has at least 1 worker, not {workers}")
    arrays = _lazy(what, arguments)
    where = _device(arrays, device, target)
    tools = pipeline.toolchain(registry.target(target) if target else where.target)
    kernels = list({str(k): k for k in pipeline.lower(*arrays)}.values())
    tunable = [k for k in kernels if k.ranges and not k.variables]
    if not tunable:
        why = "sizes that are bound at launch" if any(k.variables for k in kernels) else "no loops"
        raise UserError(f"there is nothing to tune: the kernel{'s' * (len(kernels) > 1)} have {why}")
    place = place_of(tools)
    found: list[Tuned] = []
    with _executor(scheduler, workers, place, where.name) as (executor, width):
        hands = _Hands(executor, width, place, where.name, tools, seed)
        shares = _shares(tunable)
        for n, (kernel, share) in enumerate(zip(tunable, shares, strict=True)):
            try:
                search = _Search(kernel, hands, n, len(tunable), start, progress)
                found.append(search.run(start + seconds * share, candidates))
            except KeyboardInterrupt:
                if not found:  # not even the first kernel was measured
                    raise
                hands.interrupted = True
            if hands.interrupted:
                break
    return Tuning(tuple(found), where.name, tools.target, time.perf_counter() - start, hands.interrupted)


def _lazy(what: Any, arguments: Sequence[Any]) -> list[Array]:
    """Return the arrays that are still to be computed."""
    from ...array.array import Array
    from ...runtime.jit import Jit

    if isinstance(what, Jit):
        what = what.function
    if callable(what) and not isinstance(what, Array):
        import inspect

        try:
            inspect.signature(what).bind(*arguments)
        except (TypeError, ValueError) as error:
            name = getattr(what, "__name__", repr(what))
            raise UserError(
                f"{name} cannot be called with {len(arguments)} argument{'s' * (len(arguments) != 1)} "
                f"({error}); pass what it takes to rt.tune, after the function"
            ) from None
        for a in arguments:
            if isinstance(a, Array):
                a.realize()
        what = what(*arguments)
    elif arguments:
        raise UserError(f"rt.tune got arguments for {type(what).__name__}, which is no function")
    leaves = list(_leaves(what))
    lazy = [a for a in leaves if a.node.op is not ops.BUFFER]
    if not lazy:
        raise UserError("there is nothing to tune: the arrays are computed already")
    return lazy


def _leaves(value: Any) -> Iterator[Array]:
    from ...array.array import Array

    if isinstance(value, Array):
        yield value
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _leaves(each)
    else:
        raise UserError(
            f"rt.tune takes lazy arrays or a function that returns some, got {type(value).__name__}"
        )


def _device(arrays: Sequence[Array], device: str | None, target: str | None) -> registry.DeviceInfo:
    """Return the device to measure on."""
    backend = registry.target(target).partition("/")[0] if target else ""
    if device is None and backend and backend != arrays[0].device.partition(":")[0]:
        device = backend
    where = registry.device(device or arrays[0].device)
    if backend and where.name.partition(":")[0] != backend:
        raise DeviceError(f"{where.name} does not run code for {target}; leave out one of device and target")
    return where


@contextlib.contextmanager
def _executor(
    scheduler: str | None, workers: int | None, place: Place, device: str
) -> Iterator[tuple[Executor, int]]:
    if scheduler is not None:
        with dask_executor(scheduler, place, device) as found:
            yield found
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with local_executor(workers or min(8, cores)) as found:
        yield found


class _Hands:
    """The workers, and how they are asked.

    Attributes
    ----------
    interrupted
        Whether Ctrl-C came.
    """

    def __init__(
        self, executor: Executor, width: int, place: Place, device: str, tools: pipeline.Toolchain, seed: int
    ) -> None:
        self.executor, self.width, self.place, self.device = executor, width, place, device
        self.tools, self.seed = tools, seed
        self.interrupted = False

    def ask(
        self, jobs: Sequence[dict[str, Any]], until: float = math.inf
    ) -> list[dict[str, Any] | None]:
        """Return the jobs' results in order, None for those that were not done in time."""
        futures: list[Future[dict[str, Any]]] = [self.executor.submit(run_job, job) for job in jobs]
        try:
            left = None if math.isinf(until) else max(0.0, until - time.perf_counter())
            done, waiting = wait(futures, timeout=left)
        except KeyboardInterrupt:
            self.interrupted = True
            done, waiting = {f for f in futures if f.done()}, {f for f in futures if not f.done()}
        for future in waiting:
            future.cancel()
        return [self._result(f) if f in done else None for f in futures]

    def _result(self, future: Future[dict[str, Any]]) -> dict[str, Any] | None:
        try:
            result = future.result()
        except CancelledError:
            return None
        except Exception as error:  # a worker of a cluster that went away
            return {"rejected": "lost worker", "detail": f"{type(error).__name__}: {error}"}
        if "place" in result and list(self.place) != list(result["place"]):
            differences = self.place.differences(Place(*result["place"]))
            return {"rejected": "other machine", "detail": "; ".join(differences)}
        return result


def _shares(kernels: Sequence[Kernel]) -> list[float]:
    """Return at which part of the time the search of each kernel ends: those that do more get more."""
    weights = [math.sqrt(k.flops + k.bytes) for k in kernels]
    return [sum(weights[: n + 1]) / sum(weights) for n in range(len(weights))]


class _Search:
    """The search of one kernel."""

    def __init__(
        self, kernel: Kernel, hands: _Hands, number: int, count: int, start: float,
        progress: Callable[[Progress], object],
    ) -> None:  # fmt: skip
        self.kernel, self.hands = kernel, hands
        self.number, self.count, self.start, self.progress = number, count, start, progress
        tools = hands.tools
        chosen = pipeline.extension_schedule(kernel, tools)
        self.overridden = chosen is not None
        self.baseline = pipeline.heuristic_schedule(kernel, tools) if chosen is None else chosen
        with pipeline.with_schedule(self.baseline):
            self.name = pipeline.program_of(kernel, tools).name
        rng = random.Random(f"{hands.seed} {kernel}")
        self.evolution = Evolution(Mutator(kernel, tools.capabilities), rng)
        self.baseline_seconds: float | None = None

    def job(self, kind: str, schedules: Sequence[Schedule], budget: float = _BUDGET) -> dict[str, Any]:
        base = self.baseline_seconds
        run = 60.0 if base is None else _RUN + budget + 40 * base * len(schedules)
        compile_ = 60.0 if base is None else _COMPILE * len(schedules)
        tools = self.hands.tools
        return {
            "kind": kind, "kernel": str(self.kernel), "graph": oracle_graph(self.kernel),
            "target": tools.target, "device": self.hands.device, "fast": pipeline.is_fast_math(),
            "baseline": str(self.baseline), "schedules": [str(s) for s in schedules],
            "seed": self.hands.seed, "budget": budget, "best": self.evolution.best,
            "memory": _MEMORY + 8 * self.kernel.bytes,
            "processor": (compile_ + run) * (1 + tools.capabilities.threads),
            "limits": {"compile": compile_, "run": run},
        }  # fmt: skip

    def tell(self) -> None:
        e = self.evolution
        self.progress(Progress(
            self.number, self.count, self.name, e.measured, sum(e.rejected.values()), e.best,
            self.baseline_seconds, time.perf_counter() - self.start,
        ))  # fmt: skip

    def run(self, until: float, candidates: int | None) -> Tuned:
        """Search until a time of `time.perf_counter`."""
        hands, e = self.hands, self.evolution
        self.tell()
        # Every worker measures it: then each is ready when the first candidates come.
        answers = hands.ask([self.job("time", [self.baseline])] * hands.width)
        right = [x for x in answers if x is not None and "seconds" in x]
        if not right or hands.interrupted:
            return self._failed(None if hands.interrupted else answers[0])
        first = min(right, key=lambda x: x["seconds"])
        self.baseline_seconds = first["seconds"]
        e.note(self.baseline, first)
        e.measured = 0
        self.tell()
        earlier = find(self.kernel, records_of(hands.tools))
        if earlier and earlier != str(self.baseline) and not hands.interrupted:
            schedule = parse_schedule(earlier)
            self._measure([schedule], until)
        final = min(_FINAL, 0.05 * (until - time.perf_counter()) + 0.1)
        last = until - final

        def measure(schedules: Sequence[Schedule]) -> Sequence[dict[str, Any] | None]:
            return hands.ask([self.job("time", [s]) for s in schedules], last)

        def more() -> bool:
            self.tell()
            return not hands.interrupted and time.perf_counter() < last

        try:
            e.run(measure, max(4, 2 * hands.width), candidates, more)
        except KeyboardInterrupt:
            hands.interrupted = True
        self.tell()
        return self._finish(final)

    def _measure(self, schedules: Sequence[Schedule], until: float) -> None:
        results = self.hands.ask([self.job("time", [s]) for s in schedules], until)
        for schedule, result in zip(schedules, results, strict=True):
            self.evolution.note(schedule, result)

    def _failed(self, result: dict[str, Any] | None) -> Tuned:
        """Tell why the kernel cannot be measured as it is."""
        if result is None:
            raise KeyboardInterrupt
        reason, detail = result["rejected"], result.get("detail", "")
        if reason == "InternalError":
            raise InternalError(f"kernel {self.name} is wrong before any search: {detail}")
        raise DeviceError(
            f"kernel {self.name} cannot be measured on {self.hands.device} as it is: {reason}"
            + (f" ({detail})" if detail else "")
        )

    def _finish(self, budget: float) -> Tuned:
        """Compare the fastest with the baseline once more, in turn, and keep the winner if it is worth it."""
        e, hands = self.evolution, self.hands
        assert self.baseline_seconds is not None
        base = str(self.baseline)
        finalists = [s for _, s in e.ranked if str(s) != base][: _FINALISTS - 1]
        times = {str(s): t for t, s in e.ranked}
        if finalists and not hands.interrupted:
            (duel,) = hands.ask([self.job("duel", [self.baseline, *finalists], budget)])
            if duel is not None and "times" in duel:
                times = dict(zip(map(str, [self.baseline, *finalists]), duel["times"], strict=True))
            else:  # one of them does not run reliably: none is trusted
                finalists = []
        best = min(finalists, key=lambda s: times[str(s)], default=self.baseline)
        base_time = times.get(base, self.baseline_seconds)
        won = best is not self.baseline and times[str(best)] * WORTH <= base_time
        if not won:
            best = self.baseline
        seconds = times.get(str(best), base_time)
        record = {"schedule": str(best), "seconds": seconds, "baseline": base, "baseline_seconds": base_time}
        earlier = find(self.kernel, records_of(hands.tools))
        kept = False
        if won:
            kept = keep(self.kernel, hands.place, record)
        elif earlier and not hands.interrupted:
            keep(self.kernel, hands.place, None)
        return Tuned(
            self.name, str(best), seconds, base, base_time, e.measured, dict(sorted(e.rejected.items())),
            e.mutator.illegal, kept, self.overridden, tuple(e.details),
        )  # fmt: skip


def oracle_graph(kernel: Kernel) -> str:
    """Return the graph that a kernel computes, of placeholders numbered as its inputs; nothing if it is
    large."""
    from ...conformance.execute import placeholder

    memo: dict[UOp, UOp] = {u: placeholder(n, u.dtype, u.shape) for n, u in enumerate(kernel.inputs)}
    total = 0
    stack = list(kernel.outputs)
    order: list[UOp] = []
    seen = set(memo)
    while stack:  # not beyond the inputs: what is behind them is another kernel's
        u = stack.pop()
        if u in seen:
            continue
        seen.add(u)
        order.append(u)
        stack.extend(u.src)
    inside = set(order)
    for u in toposort(kernel.outputs):
        if u in memo or u not in inside:
            continue
        if u.op in (ops.BUFFER, ops.VAR):
            return ""
        total += numel(u.shape)
        if total > ORACLE:
            return ""
        memo[u] = u.replace(tuple([memo[s] for s in u.src]))
    return dump([memo[u] for u in kernel.outputs])
