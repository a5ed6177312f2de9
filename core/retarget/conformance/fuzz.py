"""Find wrong code: random graphs on a device against the NumPy graph evaluator.

    python -m retarget.conformance.fuzz --device llvm --count 500 --seed 0 [--schedules]

Each graph is compared within the bounds of `bounds`; with `--schedules` each of its kernels runs under a
random schedule.  A failing graph is reduced and printed as IR text with its seed and schedules.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .. import pipeline, registry
from ..errors import DTypeError, RetargetError
from ..ir.dtypes import ARRAY_DTYPES, DType
from ..ir.text import dump
from ..optimize.schedule import Schedule
from ..registry.capabilities import Capabilities
from ..schedule.kernel import Kernel
from .blocks import BLOCKS, LARGEST_WORK, block_capabilities, execute_blocks, work
from .bounds import evaluate, mismatches, wide
from .execute import Choose, Execution, execute
from .generate import Graph, generate
from .minimize import minimize
from .schedules import legal_schedule


@dataclass(frozen=True, slots=True)
class Failure:
    """A graph that gave wrong values, or an error.

    Attributes
    ----------
    graph
        The graph; reduced, if it came from `fuzz`.
    kind
        "wrong values", or the name of an exception.
    message
        Where the first wrong value is and how far off, or what the exception says.
    schedules
        The schedules of its kernels.
    """

    graph: Graph
    kind: str
    message: str
    schedules: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"seed {self.graph.seed}: {self.kind}", f"  {self.message}"]
        lines += [f"  schedule of kernel {n}: {s or '(none)'}" for n, s in enumerate(self.schedules)]
        lines.append(dump(self.graph.roots))
        for u, values in self.graph.data.items():
            text = np.array2string(wide(values), threshold=64, separator=", ").replace("\n", " ")
            lines.append(f"# buffer {u.arg[0]}: {text}")
        return "\n".join(lines)


@dataclass(slots=True)
class Statistics:
    """What a fuzzing run did."""

    graphs: int = 0
    kernels: int = 0
    elements: int = 0
    unbounded: int = 0
    illegal: int = 0

    def add(self, other: Statistics) -> None:
        """Count what another run did, too."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def capabilities_of(device: str) -> Capabilities:
    """Return what a device, or the made-up one with a grid, can do."""
    if device == BLOCKS:
        return block_capabilities()
    return pipeline.toolchain(registry.device(device).target).capabilities


def usable_dtypes(device: str) -> tuple[DType, ...]:
    """Return the dtypes that a device stores and computes in."""
    caps = capabilities_of(device)
    return tuple([d for d in ARRAY_DTYPES if caps.storage.get(d.name) and caps.arithmetic.get(d.name)])


def check(
    graph: Graph, device: str, choose: Choose | None = None, statistics: Statistics | None = None
) -> Failure | None:
    """Run a graph on a device, and say what is wrong with the result, if anything."""
    expected, bounds = evaluate(graph.roots, graph.data)
    schedules: list[Schedule] = []

    def note(kernel: Kernel) -> Schedule:
        if choose is not None:
            schedules.append(choose(kernel))
        else:
            tools = pipeline.toolchain(registry.device(device).target)
            schedules.append(pipeline.schedule_for(kernel, tools))
        return schedules[-1]

    try:
        runs: list[Execution] = (
            execute_blocks(graph.roots, graph.data, note)
            if device == BLOCKS
            else [execute(graph.roots, graph.data, device, note)]
        )
    except DTypeError:
        raise  # the graph asks for what the device says it has not: the caller's mistake
    except Exception as error:  # whatever the compiler stumbles over is what is looked for
        text = str(error).splitlines()
        kind = type(error).__name__
        return Failure(graph, kind, text[0] if text else kind, tuple(map(str, schedules)))
    if statistics is not None:
        statistics.graphs += 1
        statistics.kernels += len(runs[0].kernels)
        statistics.elements += sum(b.size for b in bounds)
        statistics.unbounded += int(sum(np.isinf(b).sum() for b in bounds))
    compared = [
        (n, values, right, bound)
        for done in runs
        for n, (values, right, bound) in enumerate(zip(done.values, expected, bounds, strict=True))
    ]
    for n, values, right, bound in compared:
        wrong = mismatches(values, right, bound)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            message = (
                f"output {n}: {int(wrong.sum())} of {wrong.size} elements; at {at} it has {values[at]!r}, "
                f"expected {right[at]!r} within {bound[at]:.3g}"
            )
            return Failure(graph, "wrong values", message, tuple(map(str, schedules)))
    return None


def random_choice(
    seed: int, device: str, statistics: Statistics | None = None, stages: bool = False
) -> Choose:
    """Return a chooser of random legal schedules, the same for the same seed and kernel."""
    caps = capabilities_of(device)

    def choose(kernel: Kernel) -> Schedule:
        schedule, refused = legal_schedule(kernel, f"{seed} {','.join(kernel.ranges)}", caps, stages=stages)
        if statistics is not None:
            statistics.illegal += refused
        return schedule

    return choose


def reduce_failure(failure: Failure, device: str, seed: int | None = None, stages: bool = False) -> Failure:
    """Return a smaller failure of the same kind; `seed`: random schedules were used."""
    choosers: list[Choose | None] = [None]
    if seed is not None:
        choosers = [random_choice(s, device, stages=stages) for s in (seed, 1, 2, 3, 4)]
    found = failure

    def fails(graph: Graph) -> bool:
        nonlocal found
        for choose in choosers:
            try:
                again = check(graph, device, choose)
            except RetargetError:
                return False
            if again is not None and again.kind == failure.kind:
                found = again
                return True
        return False

    small = minimize(failure.graph, fails)
    graph = Graph(small.roots, small.data, failure.graph.seed)
    return Failure(graph, found.kind, found.message, found.schedules)


def fuzz(
    device: str,
    seeds: Sequence[int],
    *,
    schedules: bool = False,
    stages: bool = False,
    size: int = 16,
    reduce: bool = True,
    statistics: Statistics | None = None,
) -> Iterator[Failure]:
    """Yield the failures of random graphs on a device.

    Parameters
    ----------
    device
        A device's name.
    seeds
        One graph each.
    schedules
        Whether kernels run under random schedules.
    stages
        Whether those have stages.
    size
        Functions in a graph.
    reduce
        Whether failing graphs are reduced.
    statistics
        Counts what was done.
    """
    named = usable_dtypes(device)
    for seed in seeds:
        graph = generate(seed, size, named)
        if device == BLOCKS and work(graph.roots) > LARGEST_WORK:
            continue
        choose = random_choice(seed, device, statistics, stages) if schedules else None
        failure = check(graph, device, choose, statistics)
        if failure is not None:
            yield reduce_failure(failure, device, seed if schedules else None, stages) if reduce else failure


_DEVICE_HELP = 'the device, for example "llvm" (default: auto); "blocks:0" is a made-up one with a grid'


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m retarget.conformance.fuzz",
        description="Run random graphs on a device and compare them with the NumPy graph evaluator.",
        epilog="example: python -m retarget.conformance.fuzz --device llvm --count 500 --seed 0 --schedules",
    )
    parser.add_argument("--device", default="auto", help=_DEVICE_HELP)
    parser.add_argument("--count", type=int, default=100, help="how many graphs (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="the first graph's seed (default: 0)")
    parser.add_argument("--size", type=int, default=16, help="functions in a graph (default: 16)")
    parser.add_argument("--schedules", action="store_true", help="run kernels under random schedules")
    parser.add_argument("--stages", action="store_true", help="the same, with stages in the schedules")
    parser.add_argument("--keep", action="store_true", help="print failing graphs as they are, not reduced")
    parser.add_argument("--jobs", type=int, default=1, help="processes to share the graphs (default: 1)")
    options: Any = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; it takes at least one process")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    device = BLOCKS if options.device == BLOCKS else registry.device(options.device).name
    run = functools.partial(
        _run, device, schedules=options.schedules or options.stages, stages=options.stages,
        size=options.size, reduce=not options.keep,
    )  # fmt: skip
    seeds = range(options.seed, options.seed + options.count)
    batches = [seeds[n : n + _BATCH] for n in range(0, len(seeds), _BATCH)]
    total = Statistics()
    failures = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(*columns, console=Console(stderr=True)))
        task = progress.add_task(f"graphs on {device}", total=options.count)
        if options.jobs == 1:
            done: Iterator[tuple[Statistics, list[str]]] = map(run, batches)
        else:
            from concurrent.futures import ProcessPoolExecutor, as_completed
            from multiprocessing import get_context

            pool = stack.enter_context(ProcessPoolExecutor(options.jobs, get_context("spawn")))
            done = (future.result() for future in as_completed([pool.submit(run, b) for b in batches]))
        for statistics, found in done:
            total.add(statistics)
            failures += len(found)
            for text in found:
                progress.console.file.flush()
                print(text, end="\n\n", flush=True)
            progress.advance(task, min(_BATCH, options.count - int(progress.tasks[task].completed)))
    print(
        f"{total.graphs} graphs, {total.kernels} kernels, {total.elements} elements "
        f"({total.unbounded} without a bound)"
        + (f", {total.illegal} illegal schedules skipped" if options.schedules or options.stages else "")
        + f"; {failures} failures"
    )
    return 1 if failures else 0


_BATCH = 10
"""Graphs that a process takes at a time."""


def _run(device: str, seeds: Sequence[int], **options: Any) -> tuple[Statistics, list[str]]:
    statistics = Statistics()
    failures = [str(failure) for failure in fuzz(device, seeds, statistics=statistics, **options)]
    return statistics, failures


if __name__ == "__main__":
    sys.exit(main())
