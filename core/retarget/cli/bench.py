"""`bench`: kernels against other libraries, and `bench latency`: what the compiler itself costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..bench.kernels import Result
    from ..bench.latency import Row


@click.command()
@click.argument("cases", metavar="[CASE]...", nargs=-1)
@click.option("--device", help="The device; the default device if left out.")
@click.option("--against", default="numpy", show_default=True, help="Of numpy,torch,tinygrad, with commas.")
@click.option(
    "--json", "output", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here, too."
)
@click.option("--repeat", type=click.IntRange(1), default=20, show_default=True, help="Measurements of each.")
@click.option(
    "--tinygrad-python",
    metavar="PYTHON",
    type=click.Path(exists=True, dir_okay=False),
    help="latency: an interpreter that has tinygrad; this one if it has.",
)
def bench(
    cases: tuple[str, ...],
    device: str | None,
    against: str,
    output: Path | None,
    repeat: int,
    tinygrad_python: str | None,
) -> None:
    """Time kernels beside other libraries; with the single case "latency", time the compiler itself.

    The kernels are add, sum, transpose, gelu, softmax, layernorm and matmul.  ± is half the distance between
    the quartiles.

    \b
    Example:
      retarget bench softmax matmul --against numpy
      retarget bench latency --device llvm --json latency.json
    """
    from .. import registry
    from ..bench.timing import environment
    from .output import with_progress, write_json

    name = registry.device(device).name
    if cases == ("latency",):
        from ..bench.latency import find_tinygrad, steps

        wanted = steps(name, repeat, tinygrad_python or find_tinygrad())
        rows = [row for _, measure in with_progress("Measuring", wanted, lambda s: s[0]) for row in measure()]
        figures: list[dict[str, Any]] = [row.as_json() for row in rows]
        facts = environment()
        _print_latency(rows)
    else:
        from ..bench.kernels import measure, peers, select

        libraries = peers(against)
        chosen = select(cases)
        results = [
            measure(case, name, libraries, repeat)
            for case in with_progress("Measuring", chosen, lambda case: case.name)
        ]
        figures = [result.as_json() for result in results]
        facts = environment(libraries)
        _print_kernels(results, libraries)
    click.echo(f"{name} · {facts['machine']} · load {facts['load']} · {facts['date']}")
    if output is not None:
        write_json(output, {**facts, "device": name, "figures": figures})


def _print_latency(rows: list[Row]) -> None:
    from .output import print_table

    cells = []
    for row in rows:
        ours = row.in_unit(row.timing)
        peer = f"{row.in_unit(row.peer):.1f} {row.unit}" if row.peer else ""
        ratio = f"{row.peer.median / row.timing.median:.0f}x" if row.peer else ""
        goal = "" if row.target is None else f"{row.target:g} {row.unit}"
        met = "" if row.target is None else ("yes" if ours <= row.target else "NO")
        spread = f"±{row.timing.spread:.0%}"
        cells.append((row.what, f"{ours:.3g} {row.unit}", spread, goal, met, peer, ratio, row.note))
    print_table(
        ("", "median", "±", "target", "met", "tinygrad", "ratio", "note"),
        cells,
        right=("median", "±", "target", "tinygrad", "ratio"),
    )


def _print_kernels(results: list[Result], libraries: list[str]) -> None:
    from .output import print_table

    cells = []
    for result in results:
        ours = result.timings["retarget"]
        row = [
            f"{result.case.name} {' '.join('x'.join(map(str, s)) for s in result.case.shapes[:2])}",
            f"{ours.median * 1e3:.3f} ms",
            f"±{ours.spread:.0%}",
            f"{result.case.work / ours.median / 1e9:.1f} {result.case.unit}",
        ]
        for library in libraries:
            timing = result.timings[library]
            row += [
                f"{timing.median * 1e3:.3f} ms ±{timing.spread:.0%}",
                f"{timing.median / ours.median:.2f}x",
            ]
        cells.append(row)
    peers = [column for library in libraries for column in (library, f"speedup over {library}")]
    columns = ("kernel", "retarget", "±", "rate", *peers)
    print_table(columns, cells, right=columns[1:])
