"""`show --html`: one page, needing nothing but itself, with the stages of each kernel side by side.

Rows of different stages are linked by two numbers: `data-u`, the uop's position in the linear program, and
`data-k`, the node's number in the kernel.  Resting on a row lights up everything that belongs to it; a
click pins that.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CompileError
from ..ir.text import dump, program_lines
from ..ir.uop import toposort

if TYPE_CHECKING:
    from ..array.array import Array
    from ..codegen.hooks import HookStep
    from .stages import KernelStages

_TEMPLATE = Path(__file__).with_name("page.html")


def write_page(path: Path, title: str, arrays: Sequence[Array], kernels: Sequence[KernelStages]) -> None:
    """Write the page for some kernels of a graph."""
    from .. import __version__

    graph = _rows((line, "", "") for line in dump([a.node for a in arrays]).splitlines())
    parts = [_kernel(number, stages) for number, stages in enumerate(kernels, 1)]
    text = _TEMPLATE.read_text(encoding="utf-8")
    target = kernels[0].source.target if kernels else ""
    count = f"{len(kernels)} kernel{'s' * (len(kernels) != 1)}"
    fill = {
        "TITLE": html.escape(title),
        "SUBTITLE": f"{html.escape(target)} · {count} · Retarget {__version__}",
        "GRAPH": graph,
        "KERNELS": "\n".join(parts),
    }
    for name, value in fill.items():
        text = text.replace(f"<!--{name}-->", value)
    path.write_text(text, encoding="utf-8")


def _kernel(number: int, stages: KernelStages) -> str:
    kernel, program = stages.kernel, stages.program
    numbers = {node: n for n, node in enumerate(toposort(kernel.stores))}
    of_uop = ["" if node is None else str(numbers[node]) for node in stages.origins]
    versions = {s.plugin: f"{s.distribution} {s.version}".strip() for s in _steps(stages)}

    def who(hook: str, plugins: Sequence[str]) -> str:
        chain = " over ".join(f"{p} ({versions[p]})" if versions.get(p) else p for p in plugins)
        return f"{hook} · {chain}" if chain else hook

    uops = _rows(
        (line, "" if at is None else str(at), "" if at is None else of_uop[at])
        for at, line in program_lines(program.uops)
    )
    kernel_lines = str(kernel).splitlines()
    expressions = _rows((line, "", str(n) if n < len(numbers) else "") for n, line in enumerate(kernel_lines))
    coloured = _highlighted(stages.source.text, stages.language)
    source = "".join(
        _row(
            line,
            str(p.position) if p.position >= 0 else "",
            of_uop[p.position] if p.position >= 0 else "",
            who(p.hook, p.plugins),
        )
        for line, p in zip(coloured, stages.provenance, strict=True)
    )
    try:
        assembly = _rows((line, "", "") for line in stages.assembly().splitlines())
    except CompileError as error:
        assembly = f'<p class="note">{html.escape(str(error))}</p>'
    schedule = html.escape(str(stages.schedule)) or "the kernel's own loops, in order"
    facts = f"{kernel.flops:,} flops · {kernel.bytes:,} bytes · {program.launch.chunks} pieces"
    columns = (
        ("kernel", "Kernel", expressions), ("uops", "Linear program", uops), ("source", "Source", source),
        ("asm", "Assembly", assembly),
    )  # fmt: skip
    body = "".join(
        f'<section class="{name}"><h3>{label}</h3><div class="code" tabindex="0">{rows}</div></section>'
        for name, label, rows in columns
    )
    return (
        f'<article id="k{number}"><h2>{html.escape(program.name)}</h2><p class="facts">{facts}</p>'
        f'<p class="schedule"><span>schedule</span> <code>{schedule}</code></p>'
        f'<div class="stages">{body}</div></article>'
    )


def _steps(stages: KernelStages) -> list[HookStep]:
    hooks = dict.fromkeys(who.hook for who in stages.provenance if who.hook)
    return [step for hook in hooks for step in stages.tools.hooks.explain(hook)]


def _rows(lines: Iterable[tuple[str, str, str]]) -> str:
    return "".join(_row(html.escape(line), uop, node) for line, uop, node in lines)


def _row(line: str, uop: str, node: str, who: str = "") -> str:
    attributes = "".join(
        f' data-{name}="{html.escape(value)}"'
        for name, value in (("u", uop), ("k", node), ("by", who))
        if value
    )
    return f"<div{attributes}>{line or ' '}</div>"


def _highlighted(text: str, language: str) -> list[str]:
    """Return the lines of code as HTML, words marked with Pygments' short class names."""
    from pygments import lex
    from pygments.lexers import get_lexer_by_name
    from pygments.token import STANDARD_TYPES

    lines = [""]
    for token, value in lex(text, get_lexer_by_name(language, stripnl=False)):
        style = STANDARD_TYPES.get(token, "")[:2]
        for n, part in enumerate(value.split("\n")):
            if n:
                lines.append("")
            if part:
                escaped = html.escape(part)
                lines[-1] += f'<i class="{style}">{escaped}</i>' if style and part.strip() else escaped
    return lines[: len(text.splitlines())]
