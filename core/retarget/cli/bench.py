"""`bench`: kernels against other libraries, and `bench latency`: what the compiler itself costs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..bench.latency import Row
    from ..bench.measure import Result

_INTERRUPTED = "interrupted"
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("cases", metavar="[CASE]...", nargs=-1)
@click.option(
    "--set", "chosen_set", metavar="SET", help="A set of cases: small (the default), cpu, matmul ..."
)
@click.option("--list", "listing", is_flag=True, help="List the cases, their sets and targets.")
@click.option("--device", help="The device; the default device if left out.")
@click.option(
    "--against", default="numpy", show_default=True,
    help="Libraries, with commas: numpy, torch, torch-fresh, torch-compile, tinygrad, numba, numexpr, lazy; "
    "or all.",
)  # fmt: skip
@click.option("--threads", type=click.IntRange(1), help="Threads of every library; all cores if left out.")
@click.option("--quick", is_flag=True, help="Fewer and shorter measurements.")
@click.option("--repeat", type=click.IntRange(1), help="Blocks of calls of each library (9); latency: 20.")
@click.option(
    "--statistic",
    type=click.Choice(["median", "best"]),
    default="median",
    show_default=True,
    help="What ratios and verdicts go by; best (the shortest measurement) for a machine with other work.",
)
@click.option("--json", "output", type=_FILE, help="Write the figures here, too.")
@click.option("--markdown", type=_FILE, help="Write the table here, too.")
@click.option("--plot", type=_FILE, metavar="PNG", help="Draw the ratios; needs retarget[bench].")
@click.option("--roofline", type=_FILE, metavar="PNG", help="Draw our rates under the device's limits.")
@click.option(
    "--tinygrad-python",
    metavar="PYTHON",
    type=click.Path(exists=True, dir_okay=False),
    help="latency: an interpreter that has tinygrad; this one if it has.",
)
@click.pass_context
def bench(
    context: click.Context,
    cases: tuple[str, ...],
    chosen_set: str | None,
    listing: bool,
    device: str | None,
    against: str,
    threads: int | None,
    quick: bool,
    repeat: int | None,
    statistic: str,
    output: Path | None,
    markdown: Path | None,
    plot: Path | None,
    roofline: Path | None,
    tinygrad_python: str | None,
) -> None:
    """Time kernels beside other libraries; with the single case "latency", time the compiler itself.

    CASE is a name or a pattern such as "matmul*"; without cases and --set it is the set "small".  A ratio is
    a library's time over ours: above 1, Retarget is faster.  ± is half the distance between the quartiles.

    \b
    Example:
      retarget bench softmax matmul --against numpy,torch
      retarget bench --set cpu --against all --json figures.json
      retarget bench latency --device llvm --json latency.json
    """
    from .output import write_json

    if listing:
        _print_cases()
        return
    if cases == ("latency",):
        name, facts, figures = _latency(device, repeat or 20, tinygrad_python)
        click.echo(_summary(name, facts))
        if output is not None:
            write_json(output, {**facts, "device": name, "figures": figures})
        return

    from .. import registry
    from ..bench import drawing, kernels, libraries
    from ..bench.measure import Plan
    from ..bench.timing import environment
    from ..runtime.pool import wanted_threads

    chosen = kernels.select(cases, chosen_set)
    names, missing = libraries.chosen(against)
    wanted = libraries.thread_environment(threads or wanted_threads())
    if any(os.environ.get(variable) != value for variable, value in wanted.items()):
        context.exit(_respawn(context, wanted))  # libraries read them when they are loaded
    name = registry.device(device).name
    plan = replace(Plan.quick() if quick else Plan(), statistic=statistic)
    if repeat is not None:
        plan = replace(plan, rounds=repeat)
    if plot is not None or roofline is not None:
        drawing.require()
    load = environment()["load"]  # before there is our own
    results, notes = _measure(chosen, cases, name, names, plan)
    if statistic == "median" and isinstance(load, float) and load > 0.5 * wanted_threads():
        notes.append(f"the machine had other work (load {load}): see --statistic best")
    if missing:
        notes.append(f"not installed, and left out: {', '.join(missing)}")
    facts = {**environment(libraries.packages(names)), "load": load, "threads": wanted_threads()}
    facts["command"] = shlex.join(["retarget", "bench", *_arguments(context)])
    facts["statistic"] = statistic
    limits: dict[str, float] = {}
    if roofline is not None:
        from ..bench.roofline import measure_limits

        limits = measure_limits(name)
        drawing.draw_roofline(roofline, results, limits, _summary(name, facts))
        facts["limits"] = limits
        peak, copy, read = [limits[k] / 1e9 for k in ("operations", "copy", "read")]
        notes.append(f"limits: {peak:.4g} GFLOP/s; memory {copy:.3g} GB/s copied, {read:.3g} GB/s read")
    if plot is not None:
        drawing.draw_ratios(plot, results, names, _summary(name, facts))
    _print_kernels(results, names)
    for note in (f"of libraries: their time ÷ ours ({statistic}); above 1, Retarget is faster", *notes):
        click.echo(note)
    click.echo(_summary(name, facts))
    if output is not None:
        figures = [result.as_json() for result in results]
        write_json(output, {**facts, "device": name, "notes": notes, "figures": figures})
    if markdown is not None:
        _write_markdown(markdown, results, names, [*notes, _summary(name, facts)])
    if any(result.problems for result in results):
        context.exit(1)
    if any(note.startswith(_INTERRUPTED) for note in notes):
        context.exit(130)


def _arguments(context: click.Context) -> list[str]:
    """Return the arguments that the command was given."""
    words: list[str] = []
    for parameter in context.command.params:
        value: Any = context.params.get(parameter.name or "")
        if context.get_parameter_source(parameter.name or "") is not click.core.ParameterSource.COMMANDLINE:
            continue
        if isinstance(parameter, click.Argument):
            words.extend(value)
        elif value is True:
            words.append(parameter.opts[-1])
        elif value is not None and value is not False:
            words += [parameter.opts[-1], str(value)]
    return words


def _respawn(context: click.Context, variables: dict[str, str]) -> int:
    """Run the same command in a process with these environment variables; return its status."""
    command = [sys.executable, "-m", "retarget.cli", "bench", *_arguments(context)]
    if context.find_root().meta.get("debug"):
        command.append("--debug")
    with subprocess.Popen(command, env={**os.environ, **variables}) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:  # it was told, too, and prints what it has
                continue


def _measure(
    chosen: Sequence[Any], asked: Sequence[str], device: str, names: list[str], plan: Any
) -> tuple[list[Result], list[str]]:
    """Measure the cases; return the results, and notes about what was left out, which is an error for a case
    that was asked for by its name."""
    from ..bench.measure import measure, operands_missing
    from ..errors import UserError
    from .output import with_progress

    results: list[Result] = []
    notes: list[str] = []
    try:
        for case in with_progress("Measuring", chosen, lambda case: case.name):
            if reason := operands_missing(case):
                if case.name in asked:
                    raise UserError(reason)
                notes.append(f"left out: {reason}")
                continue
            results.append(measure(case, device, names, plan))
    except KeyboardInterrupt:
        notes.append(f"{_INTERRUPTED}: {len(results)} of {len(chosen)} cases were measured")
    return results, notes


def _latency(device: str | None, repeat: int, python: str | None) -> tuple[str, dict[str, Any], list[Any]]:
    from .. import registry
    from ..bench.latency import find_tinygrad, steps
    from ..bench.timing import environment
    from .output import with_progress

    name = registry.device(device).name
    wanted = steps(name, repeat, python or find_tinygrad())
    rows = [row for _, measure in with_progress("Measuring", wanted, lambda s: s[0]) for row in measure()]
    _print_latency(rows)
    return name, environment(), [row.as_json() for row in rows]


def _summary(device: str, facts: dict[str, Any]) -> str:
    count = facts.get("threads")
    threads = "" if count is None else f" · {count} thread{'s' if count > 1 else ''}"
    versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
    threads += f" · {facts['statistic']}" if "statistic" in facts else ""
    return f"{device} · {facts['machine']}{threads} · load {facts['load']} · {facts['date']} · {versions}"


def _print_latency(rows: list[Row]) -> None:
    from .output import print_table

    def met(value: float | None, row: Row) -> str:
        return "" if value is None or row.target is None else ("yes" if value <= row.target else "NO")

    cells = []
    for row in rows:
        ours, scaled = row.in_unit(row.timing), row.at_reference_speed
        peer = f"{row.in_unit(row.peer):.1f} {row.unit}" if row.peer else ""
        ratio = f"{row.peer.median / row.timing.median:.0f}x" if row.peer else ""
        goal = "" if row.target is None else f"{row.target:g} {row.unit}"
        cells.append(
            (row.what, f"{ours:.3g} {row.unit}", f"±{row.timing.spread:.0%}", goal, met(ours, row), peer,
             ratio, "" if scaled is None else f"{scaled:.3g} {row.unit}", met(scaled, row), row.note)
        )  # fmt: skip
    columns = (
        "",
        "median",
        "±",
        "target",
        "met",
        "tinygrad",
        "ratio",
        "at reference speed",
        "met there",
        "note",
    )
    right = [c for c in columns if c not in ("", "met", "met there", "note")]
    print_table(columns, cells, right=right)
    if any(row.at_reference_speed is not None for row in rows):
        click.echo(
            "at reference speed: ours × tinygrad's time on the machine on which the targets were set ÷ its "
            "time here"
        )


def _print_cases() -> None:
    from ..bench.kernels import CASES, Case
    from .output import print_table

    rows = []
    for case in CASES:
        goal = case.goal if isinstance(case, Case) else f"≤ {case.target:g} µs"
        rows.append((case.title, " ".join(case.sets), str(goal or "")))
    print_table(("case", "sets", "target"), rows)


def _columns(results: list[Result], names: list[str]) -> list[str]:
    """Return the libraries that have anything to show."""
    return [n for n in names if any(n in r.timings or n in r.problems for r in results)]


def _cells(result: Result, names: list[str], times: bool) -> list[str]:
    """Return a row: the case, our time and rate, the target, and each library's ratio."""
    ours, rate = result.ours, result.rate
    reached = result.reached
    row = [
        result.case.title,
        _time(result.seconds("retarget")) if ours else result.problems.get("retarget", ""),
        f"±{ours.spread:.0%}" if ours else "",
        f"{rate[0]:.3g} {rate[1]}" if rate else "",
        result.goal_text,
        f"{reached[0]:.2f}" if reached else "",
        result.verdict,
    ]
    for name in names:
        ratio, figure = result.ratio(name), result.figure(name)
        if ratio is not None:
            time = f" {_time(result.seconds(name))}" if times else ""
            row.append(f"{figure:.2f}x ±{ratio.spread:.0%}{time}")
        elif name in result.timings:
            row.append(_time(result.seconds(name)))
        else:
            row.append(result.problems.get(name, ""))
    return row


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


_HEAD = ("kernel", "retarget", "±", "rate", "target", "reached", "verdict")


def _print_kernels(results: list[Result], names: list[str]) -> None:
    from .output import print_table

    shown = _columns(results, names)
    columns = (*_HEAD, *shown)
    right = [c for c in columns if c not in ("kernel", "target", "verdict")]
    print_table(columns, [_cells(r, shown, len(shown) <= 3) for r in results], right=right)


def _write_markdown(path: Path, results: list[Result], names: list[str], notes: list[str]) -> None:
    shown = _columns(results, names)
    columns = (*_HEAD, *shown)
    rule = ["---" if c in ("kernel", "target", "verdict") else "---:" for c in columns]
    lines = [columns, rule, *[_cells(r, shown, len(shown) <= 3) for r in results]]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n" + "\n\n".join(notes) + "\n"
    path.write_text(text, encoding="utf-8")
