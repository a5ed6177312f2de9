"""`tune`: search for faster schedules of a function's kernels, and keep them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..optimize.search.tune import Progress, Tuned, Tuning


@click.command()
@click.argument("function", metavar="FILE:FUNC")
@click.option("--device", help="The device to measure on; by default that of the arrays.")
@click.option("--target", help="The target to compile for; by default the device's.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True,
              help="How long to search, for all kernels together.")  # fmt: skip
@click.option("--candidates", type=click.IntRange(1), help="Most candidates for each kernel.")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides which candidates are tried.")
@click.option("--workers", type=click.IntRange(1), help="Processes that compile candidates.")
@click.option("--scheduler", metavar="ADDRESS",
              help="Measure on the workers of a Dask cluster, such as tcp://10.0.0.1:8786.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tune(
    function: str,
    device: str | None,
    target: str | None,
    seconds: float,
    candidates: int | None,
    seed: int,
    workers: int | None,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Search for faster schedules of what a function returns, by measuring candidates.

    FUNC takes no required argument and returns lazy arrays.  What is found is kept in the disk cache and used
    from then on; RETARGET_TUNED=0 ignores it.  Ctrl-C ends the search, and keeps the best so far.

    \b
    Example:
      retarget tune model.py:softmax --seconds 30
      retarget tune model.py:block --scheduler tcp://10.0.0.1:8786 --json
    """
    from ..optimize.search.tune import tune as search
    from .function import arrays_of
    from .output import print_json

    arrays = arrays_of(function)
    with _bar(seconds) as progress:
        found = search(
            arrays, device=device, target=target, seconds=seconds, candidates=candidates, seed=seed,
            workers=workers, scheduler=scheduler, progress=progress,
        )  # fmt: skip
    if as_json:
        print_json(_described(found))
    else:
        for each in found.kernels:
            _print(each)
    if found.interrupted:
        click.echo("Interrupted: the best so far is what is shown.", err=True)
        raise click.exceptions.Exit(130)


@contextmanager
def _bar(seconds: float) -> Iterator[Callable[[Progress], None]]:
    """Show the time that has gone, the best time so far and its ratio to the heuristics'."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    err = Console(stderr=True)
    columns = (TextColumn("Tuning"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=seconds)

        def show(p: Any) -> None:
            best = ""
            if p.best is not None and p.baseline is not None:
                best = f", best {_time(p.best)}, {p.baseline / p.best:.2f}x the heuristics"
            bar.update(
                task, completed=min(p.elapsed, seconds),
                description=f"{p.name} ({p.kernel + 1} of {p.kernels}): {p.candidates} tried{best}",
            )  # fmt: skip

        yield show


def _print(each: Tuned) -> None:
    rejected = ", ".join(f"{n} {reason}" for reason, n in each.rejected.items())
    click.echo(f"{each.name}: {each.candidates} candidates" + (f" ({rejected})" if rejected else ""))
    click.echo(f"  heuristics  {_time(each.baseline_seconds)}  {each.baseline or '(none)'}")
    if each.schedule == each.baseline:
        click.echo("  nothing clearly faster was found")
        return
    click.echo(f"  tuned       {_time(each.seconds)}  {each.schedule or '(none)'}")
    click.echo(f"  {each.ratio:.2f} times as fast; " + _fate(each))
    if each.overridden:
        click.echo("  a plugin chooses the schedule of this kernel: pin the tuned one with rt.with_schedule")


def _fate(each: Tuned) -> str:
    return "kept for later runs" if each.kept else "not kept, as there is no disk cache"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _described(found: Tuning) -> dict[str, Any]:
    from dataclasses import asdict

    kernels = [{**asdict(k), "ratio": k.ratio} for k in found.kernels]
    return {
        "device": found.device, "target": found.target, "seconds": found.seconds,
        "interrupted": found.interrupted, "kernels": kernels,
    }  # fmt: skip
