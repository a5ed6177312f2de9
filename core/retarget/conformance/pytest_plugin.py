"""The options of `pytest --pyargs retarget.conformance --retarget-device NAME`; without them nothing is
collected.

Every pytest run in an environment with retarget loads this file, so it imports nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_PACKAGE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("retarget", "conformance of Retarget backends")
    group.addoption(
        "--retarget-device", metavar="NAME", help="the backend or device to hold to the conformance suite"
    )
    group.addoption(
        "--retarget-level", metavar="N", type=int, default=3, help="the highest level to run (default 3)"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the suite's own test files out of runs that do not name a device."""
    if collection_path.parent == _PACKAGE and not config.getoption("--retarget-device"):
        return True
    return None
