"""What commands print with: tables, highlighted code, progress bars; rich is imported here, when it is
needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_WIDE = 200


def console() -> Console:
    """Return the console for results: standard output, as wide as the terminal, or wide where there is
    none."""
    from rich.console import Console

    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=_WIDE)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table; the columns in `right` are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    console().print(table)


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON to a file."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def print_code(text: str, language: str) -> None:
    """Print code, highlighted on a terminal and unchanged elsewhere."""
    out = console()
    if not out.is_terminal or language == "text":
        sys.stdout.write(text.rstrip("\n") + "\n")
        return
    from rich.syntax import Syntax

    out.print(
        Syntax(text.rstrip("\n"), language, theme="ansi_dark", background_color="default", word_wrap=False)
    )


def print_heading(text: str) -> None:
    """Print the line that stands over a part of the output."""
    out = console()
    out.print(f"── {text} " + "─" * max(0, min(out.width, 110) - len(text) - 4), style="bold", markup=False)


def with_progress(title: str, items: Sequence[Any], name: Callable[[Any], str] = str) -> Iterable[Any]:
    """Yield the items, with a progress bar on standard error while they are worked through, if it is a
    terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    err = Console(stderr=True)
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("", total=len(items))
        for item in items:
            progress.update(task, description=name(item))
            yield item
            progress.advance(task)
