"""`conformance`: hold a backend to the contract."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("name")
@click.option(
    "--level", type=click.IntRange(0, 3), default=3, show_default=True, help="The highest level to run."
)
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help="Write the report here, as JSON."
)
def conformance(name: str, level: int, report: Path | None) -> None:
    """Check whether a backend does what the contract and its own manifest say; fail if it does not.

    NAME is a backend or a device.

    \b
    Example:
      retarget conformance llvm --level 3 --report report.json
    """
    from ..conformance import run

    made = run(name, level=level, report=report)
    for what in made.unclaimed:
        click.echo(f"works without being claimed: {what}")
    made.check()
    count = f"{len(made.results)} checks of levels 0 to {level}"
    click.echo(f"{made.target} passes {count} in {made.seconds:.0f} s")
