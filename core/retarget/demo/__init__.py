"""`run`: five kernels on every device, compared with NumPy, timed, and the code of one of them.

Sizes are large enough to be measured, except on a device that is found to interpret rather than compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import UnknownNameError

if TYPE_CHECKING:
    from rich.console import Console

    from ..registry import DeviceInfo
    from .kernels import Case
    from .measure import Result

__all__ = ["run"]


def run(
    devices: Sequence[str] | None = None, source_of: str = "softmax", console: Console | None = None
) -> bool:
    """Run the kernels on devices, print a table and the source of one of them, and say if all was right.

    Parameters
    ----------
    devices
        Names of devices; None means every device that is ready.
    source_of
        Name of the kernel whose code for the first device is printed.
    console
        Where to print; None means standard output.

    Raises
    ------
    DeviceError
        If there is no device.
    UnknownNameError
        If a name is unknown.
    """
    from rich.console import Console
    from rich.progress import Progress

    from .. import registry
    from .kernels import CASES
    from .measure import TOLERANCE, measure

    shown = {case.name: case for case in CASES}.get(source_of)
    if shown is None:
        raise UnknownNameError("kernel", source_of, [case.name for case in CASES])
    found = [registry.device(n) for n in devices] if devices else registry.devices() or [registry.device()]
    console = console or Console(highlight=False)
    for info in found:
        console.print(f"{info.name}: {info.description}", markup=False, soft_wrap=True)

    results: list[Result] = []
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("", total=len(found) * len(CASES))
        for info in found:
            progress.update(task, description=info.name)
            for result in measure(info.name):
                results.append(result)
                progress.advance(task)

    _print_table(console, results)
    problems = [r for r in results if r.problem]
    for r in problems:
        console.print(f"{r.device}, {r.case.name}: {r.problem}", style="red", markup=False, soft_wrap=True)
    if not problems:
        console.print(
            "Everything equals NumPy in float64 "
            f"(errors are relative to the largest value; {TOLERANCE:g} is allowed).",
            soft_wrap=True,
        )
    _print_source(console, shown, found[0])
    return not problems


def _print_table(console: Console, results: Sequence[Result]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for name in ("device", "kernel", "size"):
        table.add_column(name, no_wrap=True)
    for name in ("error", "ms", "rate", "NumPy ms"):
        table.add_column(name, justify="right", no_wrap=True)
    device = ""
    for r in results:
        if r.device != device and device:
            table.add_section()
        size = "x".join(map(str, r.size))
        row = [r.device if r.device != device else "", r.case.name, size]
        device = r.device
        if r.seconds > 0:
            colour = "red" if r.problem else "green"
            rate = "" if r.small else f"{r.rate:.3g} {r.case.unit}"
            row += [
                f"[{colour}]{r.error:.1e}[/]",
                f"{r.seconds * 1e3:.3f}",
                rate,
                f"{r.numpy_seconds * 1e3:.3f}",
            ]
        else:
            row.append("[red]failed[/]")
        table.add_row(*row)
    console.print(table)
    small = list(dict.fromkeys([r.device for r in results if r.small]))
    if small:
        verb = "interprets its" if len(small) == 1 else "interpret their"
        console.print(f"{' and '.join(small)} {verb} programs: small sizes, times that mean little.")


def _print_source(console: Console, case: Case, info: DeviceInfo) -> None:
    """Print the code of a case's first kernel."""
    from rich.syntax import Syntax

    import retarget as rt

    from ..pipeline import toolchain

    arrays = [rt.asarray(a, device=info.name) for a in case.operands(*case.size)]
    kernel = rt.lower(case.compute(rt, *arrays))[0]
    source = rt.render(kernel, info.target)
    console.rule(f"{case.name} for {info.target}", align="left")
    text = source.text.rstrip("\n")
    if console.is_terminal:
        language = toolchain(info.target).renderer.language
        console.print(Syntax(text, language, theme="ansi_dark", background_color="default"))
    else:
        console.out(text, highlight=False)
