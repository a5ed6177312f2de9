"""The conformance suite: whether a backend does what the contract and its own manifest say.

It ships in the wheel, so that the author of a backend runs it without writing anything:

    retarget conformance NAME --level 3 --report r.json
    pytest --pyargs retarget.conformance --retarget-device NAME

docs/conformance.md describes the levels and the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .report import Report
    from .suite import run

__all__ = ["Report", "run"]


def __getattr__(name: str) -> Any:
    """Import the suite when it is asked for: every pytest run loads the plugin in this package."""
    if name == "run":
        from .suite import run

        return run
    if name == "Report":
        from .report import Report

        return Report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
