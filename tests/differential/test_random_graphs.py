"""Random graphs on the compiling devices, with the heuristics' schedules and with random ones."""

from __future__ import annotations

import pytest
from devices import require

from retarget.conformance.fuzz import fuzz

DEVICES = ["llvm", "clang"]


@pytest.mark.parametrize("device", DEVICES)
def test_heuristic_schedules(device: str) -> None:
    assert [str(f) for f in fuzz(require(device), range(300, 325), size=12)] == []


@pytest.mark.parametrize("device", DEVICES)
def test_random_schedules(device: str) -> None:
    assert [str(f) for f in fuzz(require(device), range(400, 415), size=8, schedules=True)] == []


def test_the_interpreter() -> None:
    assert [str(f) for f in fuzz("numpy:0", range(500, 510), size=8)] == []
