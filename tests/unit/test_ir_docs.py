"""docs/ir.md: the op table is the code's, and what the page says about the code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retarget.ir import ops
from retarget.ir.docs import main, op_table, with_table
from retarget.ir.text import dump, dump_program, parse, parse_program
from retarget.ir.uop import UOp
from retarget.ir.verify import verify, verify_program

PAGE = Path(__file__).parents[2] / "docs" / "ir.md"


def test_the_op_table_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), "run: python -m retarget.ir.docs docs/ir.md"


def test_every_op_has_a_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", op_table(), re.MULTILINE)
    assert sorted(rows) == sorted(ops.OPS)


def test_the_table_is_written_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- op table: begin -->\nold\n<!-- op table: end -->\nz\n", encoding="utf-8")
    main([str(page)])
    text = page.read_text(encoding="utf-8")
    assert text.startswith("a\n<!-- op table: begin -->\n\n### alu\n")
    assert text.endswith("<!-- op table: end -->\nz\n")
    assert "\nold\n" not in text


def blocks(language: str) -> list[str]:
    page = PAGE.read_text(encoding="utf-8")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def test_the_examples_run() -> None:
    found = blocks("python")
    assert len(found) == 3
    exec("".join(found), {})


@pytest.mark.parametrize("text", [b for b in blocks("") if b.startswith("%0")])
def test_the_textual_examples_are_what_is_printed(text: str) -> None:
    if "return" in text:
        root = parse(text)
        assert isinstance(root, UOp)
        assert dump(root) + "\n" == text
        verify(root, "kernel")
    else:
        program = parse_program(text)
        assert dump_program(program) + "\n" == text
        verify_program(program)
