"""`show` and `compile`: the stages of a function's kernels, and their binaries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..array.array import Array
    from .stages import KernelStages

STAGES = ("graph", "kernels", "schedule", "uops", "source", "asm")


@click.command()
@click.argument("function", metavar="FILE:FUNC")
@click.option(
    "--target", help="The target, such as clang or cuda/sm_90a; by default that of the arrays' device."
)
@click.option(
    "--stage", "wanted", multiple=True, type=click.Choice(STAGES), help="Only this stage; may be repeated."
)
@click.option("--provenance", is_flag=True,
              help="Say beside each line of the source which uop, hook and plugin wrote it.")  # fmt: skip
@click.option("--html", "page", metavar="OUT", type=click.Path(dir_okay=False, path_type=Path),
              help="Write one page with the stages side by side instead.")  # fmt: skip
def show(
    function: str, target: str | None, wanted: tuple[str, ...], provenance: bool, page: Path | None
) -> None:
    """Print every stage of the kernels that compute what a function returns.

    FUNC takes no required argument and returns lazy arrays; nothing is run, and no device of the target is
    needed.

    \b
    Example:
      retarget show model.py:softmax
      retarget show model.py:softmax --target clang --stage source --provenance
      retarget show model.py:softmax --html softmax.html
    """
    from ..ir.text import dump
    from .function import arrays_of
    from .output import print_code, print_heading, with_progress

    arrays = arrays_of(function)
    chosen = wanted or STAGES
    if page is not None:
        from .page import write_page

        stages = list(with_progress("Compiling", _stages(arrays, target), lambda s: s.program.name))
        write_page(page, function, arrays, stages)
        click.echo(f"{page} shows {len(stages)} kernel{'s' * (len(stages) != 1)} of {function}")
        return
    if "graph" in chosen:
        print_heading("graph")
        print_code(dump([a.node for a in arrays]), "text")
    if chosen == ("graph",):
        return
    for each in _stages(arrays, target):
        name = each.program.name
        if "kernels" in chosen:
            print_heading(f"kernel {name}")
            print_code(str(each.kernel), "text")
        if "schedule" in chosen:
            print_heading(f"schedule of {name}")
            print_code(str(each.schedule) or "(the kernel's own loops, in order)", "text")
        if "uops" in chosen:
            from ..ir.text import dump_program

            print_heading(f"uops of {name}")
            print_code(dump_program(each.program.uops), "text")
        if "source" in chosen:
            print_heading(f"source of {name} for {each.source.target}")
            if provenance:
                print_code(_annotated(each), "text")
            else:
                print_code(each.source.text, each.language)
        if "asm" in chosen:
            text, used = _assembly(each, required="asm" in wanted)
            print_heading(f"assembly of {name}{used}")
            print_code(text, "text")


@click.command("compile")
@click.argument("function", metavar="FILE:FUNC")
@click.option("--target", required=True, help="The target, such as clang or cuda/sm_90a.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path),
              help="The binary; a folder if there are several kernels.")  # fmt: skip
def compile_(function: str, target: str, output: Path) -> None:
    """Compile what a function returns for a target, and write the binary.

    FUNC takes no required argument and returns lazy arrays.  Beside each binary, a .json file says its
    entry symbol, arguments and launch.

    \b
    Example:
      retarget compile model.py:softmax --target llvm -o softmax.o
    """
    import json

    from ..runtime.realize import describe_binary
    from .function import arrays_of
    from .output import with_progress
    from .stages import usage

    stages = _stages(arrays_of(function), target)
    several = len(stages) > 1 or output.is_dir()
    (output if several else output.parent).mkdir(parents=True, exist_ok=True)
    for each in with_progress("Compiling", stages, lambda s: s.program.name):
        binary = each.binary()
        path = output / f"{binary.entry}.o" if several else output
        path.write_bytes(binary.data)
        path.with_suffix(".json").write_text(json.dumps(describe_binary(binary), indent=2) + "\n")
        click.echo(f"{path}: {binary.entry} for {binary.target}, {len(binary.data)} bytes{usage(binary)}")


def _stages(arrays: list[Array], target: str | None) -> list[KernelStages]:
    from .. import registry
    from ..pipeline import lower, toolchain
    from .stages import stages_of

    tools = toolchain(registry.target(target) if target else registry.device(arrays[0].device).target)
    return [stages_of(kernel, tools) for kernel in lower(*arrays)]


def _annotated(stages: KernelStages) -> str:
    """Return the source with a column that says who wrote each line."""
    lines = stages.source.text.splitlines()
    notes = [
        f"{f'uop {who.position} {who.op}' if who.position >= 0 else '':22} {who.hook:16} "
        f"{' over '.join(who.plugins)}"
        for who in stages.provenance
    ]
    width = max(map(len, notes))
    return "\n".join(f"{note:{width}} | {line}" for note, line in zip(notes, lines, strict=True))


def _assembly(stages: KernelStages, required: bool) -> tuple[str, str]:
    """Return the assembly, and what the kernel uses.

    Where it was not asked for by name, a missing tool is told instead.
    """
    from ..errors import CompileError
    from .stages import usage

    try:
        return stages.assembly(), usage(stages.binary())
    except CompileError as error:
        if required:
            raise
        return f"(not shown: {error})", ""
