"""The op table as Markdown, for docs/ir.md.

`python -m retarget.ir.docs docs/ir.md` writes the table between the page's two markers again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from .ops import OPS, Effect, Op

BEGIN, END = "<!-- op table: begin -->", "<!-- op table: end -->"
_LEVELS = {"g": "graph", "k": "kernel", "l": "linear"}


def _row(op: Op) -> str:
    operands = " ".join(f"`{o}`" for o in op.operands)
    levels = ", ".join(_LEVELS[level] for level in op.levels)
    meaning = op.meaning.replace("|", "\\|").replace("*", "\\*")
    if op.effect is not Effect.PURE:
        meaning += f" ({op.effect.value})"
    return f"| `{op.name}` | {operands} | {levels} | {meaning} |"


def op_table() -> str:
    """Return the op table: one heading and table for each group of ops, in the order of declaration."""
    groups: dict[str, list[Op]] = {}
    for op in OPS.values():
        groups.setdefault(op.group, []).append(op)
    lines: list[str] = []
    for group, members in groups.items():
        lines += [f"### {group}", "", "| op | operands | levels | meaning |", "|---|---|---|---|"]
        lines += [*map(_row, members), ""]
    return "\n".join(lines)


def with_table(page: str) -> str:
    """Return a page with a fresh op table between its markers."""
    before, rest = page.split(BEGIN, 1)
    return f"{before}{BEGIN}\n\n{op_table()}\n{END}{rest.split(END, 1)[1]}"


def main(arguments: Sequence[str]) -> None:
    """Write the op table into the page that the only argument names."""
    path = Path(arguments[0])
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
