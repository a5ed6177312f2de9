"""`docs/faults.md` names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "faults.md"
ROWS = [line.split(" | ") for line in TABLE.read_text().splitlines() if re.match(r"\| [A-Z]+-\d\d ", line)]


@pytest.mark.parametrize("row", ROWS, ids=[r[0].strip("| ") for r in ROWS])
def test_named_tests_exist(row: list[str]) -> None:
    case, _, answer, tests = (cell.strip(" |") for cell in row)
    assert re.fullmatch(r"[A-Z]+-\d\d", case)
    assert tests or answer.startswith("not yet"), "neither a test nor an admission"
    text = ""
    for file, name in re.findall(r"`([\w/]+\.py)?(?:::(\w+))?[^`]*`", tests):
        if file:
            path = ROOT / file if "/" in file else ROOT / "tests" / "cases" / file
            text = path.read_text()
        assert text and (not name or f"def {name}(" in text), (file, name)


def test_cases_are_unique() -> None:
    names = [r[0] for r in ROWS]
    assert len(set(names)) == len(names) >= 36
