"""`bench`: kernels against other libraries, and `bench latency`: what the compiler itself costs."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("cases", metavar="[CASE]...", nargs=-1)
@click.option("--device", help="The device; the default device if left out.")
@click.option(
    "--against", default="numpy", show_default=True, help="Comma-separated: numpy, torch, tinygrad."
)
@click.option(
    "--json", "output", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here, too."
)
@click.option(
    "--repeat", type=click.IntRange(1), default=20, show_default=True, help="Measurements of each figure."
)
@click.option("--tinygrad-python", type=click.Path(exists=True, dir_okay=False),
              help="latency: the interpreter of an environment that has tinygrad.")  # fmt: skip
def bench(
    cases: tuple[str, ...],
    device: str | None,
    against: str,
    output: Path | None,
    repeat: int,
    tinygrad_python: str | None,
) -> None:
    """Time kernels beside other libraries; with the single case "latency", time the compiler itself.

    \b
    Example:
      retarget bench softmax matmul --against numpy
      retarget bench latency --device llvm --json latency.json
    """
    from .. import registry

    name = registry.device(device).name
    if cases == ("latency",):
        pass
    else:
        pass
    raise NotImplementedError
