"""The versions of the plugin contract, which manifests are checked against before anything is imported.

A manifest gives the API versions as a specifier like pip's.  The common form, bounds on plain numbers such as
">=1,<2", is decided here; all others by `packaging`, which takes longer to import than to decide.
"""

from __future__ import annotations

import operator
import re

API_VERSION = "1.0"
"""Of the plugin API: the manifest, `Backend`, `Capabilities` and the hooks."""

IR_VERSION = "1"
"""Of the IR: ops and their meaning."""

_BOUND = re.compile(r"\s*(>=|<=|>|<)\s*([0-9]+(?:\.[0-9]+)*)\s*")
_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def is_specifier(text: str) -> bool:
    """Whether a text is a version specifier (as of PEP 440)."""
    if _bounds(text):
        return True
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def admits(specifier: str, version: str) -> bool:
    """Whether a version specifier admits a version."""
    bounds = _bounds(specifier)
    if bounds and _PLAIN.fullmatch(version):
        number = _number(version)
        return all(_COMPARISONS[comparison](number, bound) for comparison, bound in bounds)
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(version, prereleases=True)


def _bounds(specifier: str) -> list[tuple[str, tuple[int, ...]]] | None:
    """Return the comparisons of a specifier in the common form, None for any other."""
    bounds = [_BOUND.fullmatch(part) for part in specifier.split(",")]
    if not all(bounds):
        return None
    return [(bound[1], _number(bound[2])) for bound in bounds if bound]


def _number(version: str) -> tuple[int, ...]:
    """Return the parts of a plain version without trailing zeros: 1.0 is 1."""
    parts = [int(part) for part in version.split(".")]
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)
