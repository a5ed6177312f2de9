"""The errors Retarget raises, in two families.

`UserError` and its subclasses are about what the caller asked for: each says what is wrong, where, and what
to do next.  `InternalError` is about us: a broken invariant inside the compiler, which asks for a
report.  Where the array API or Python convention expects a built-in (a wrong dtype is a `TypeError`, a
missing name a `KeyError`), the class derives from it too, so that callers need not know ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "BackendUnavailableError",
    "CacheWarning",
    "CompileError",
    "ConformanceError",
    "CopyError",
    "DTypeError",
    "DeviceError",
    "IndexingError",
    "InternalError",
    "LaunchError",
    "OutOfMemoryError",
    "ParseError",
    "PluginError",
    "RetargetError",
    "ScheduleError",
    "ShapeError",
    "UnknownNameError",
    "UserError",
    "VerifyError",
    "closest_match",
]  # fmt: skip


class RetargetError(Exception):
    """Base of every error that Retarget raises."""


class UserError(RetargetError):
    """Something the caller can put right."""


class InternalError(RetargetError):
    """A broken invariant of Retarget itself; please report it together with the printed program."""


class DTypeError(UserError, TypeError):
    """Operands have dtypes that an operation does not take, or that do not promote."""


class ShapeError(UserError, ValueError):
    """Shapes do not broadcast, or an axis or a size is out of range."""


class CopyError(UserError, ValueError):
    """`copy=False` was asked for where the data has to be copied."""


class IndexingError(UserError, IndexError):
    """An index expression that the array does not take."""


class UnknownNameError(UserError, KeyError):
    """A device, target, hook, kernel or option that does not exist; names the closest match."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        names = sorted(known)
        text = f"unknown {kind} {name!r}; known: {', '.join(names) or 'none'}"
        if match := closest_match(name, names):
            text += f" (did you mean {match!r}?)"
        if hint:
            text += f"; {hint}"
        super().__init__(text)
        self.kind, self.name, self.known = kind, name, tuple(names)

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0])


class ParseError(UserError, ValueError):
    """Text (IR, a schedule, a manifest) that does not parse; shows the line and a caret."""

    def __init__(self, message: str, text: str = "", position: int | None = None) -> None:
        if position is not None:
            start = text.rfind("\n", 0, position) + 1
            end = text.find("\n", position)
            line = text[start : end if end >= 0 else len(text)]
            message += (
                f"\n  line {text.count(chr(10), 0, position) + 1}: {line}\n  {' ' * (position - start + 8)}^"
            )
        super().__init__(message)
        self.position = position


class ScheduleError(UserError, ValueError):
    """A schedule that is malformed, or illegal for the kernel that it is applied to."""


class DeviceError(UserError, RuntimeError):
    """A device that was asked for cannot be used."""


class BackendUnavailableError(DeviceError):
    """A backend is blocked, incompatible, unavailable or broken.  `__cause__` has the original error."""


class PluginError(UserError, RuntimeError):
    """A plugin breaks the contract: manifest, versions, hook names, conflicts."""


class CompileError(UserError, RuntimeError):
    """A device compiler is missing or refused a source; `source` and `log` hold what it saw and said."""

    def __init__(self, message: str, source: str = "", log: str = "") -> None:
        super().__init__(message if not log else f"{message}\n{log}")
        self.source, self.log = source, log


class LaunchError(DeviceError):
    """A kernel could not be launched: wrong arguments, or beyond the device's limits."""


class OutOfMemoryError(DeviceError, MemoryError):
    """A device has no room; the text gives the sizes."""


class ConformanceError(UserError, RuntimeError):
    """A conformance run failed, or a declaration in a plugin's manifest does not hold."""


class VerifyError(InternalError):
    """The verifier found an ill-formed program; the text has the pass, the program and the offending op."""


class CacheWarning(UserWarning):
    """The disk cache is off or had to repair itself; results are right without it."""


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `name`, or None when nothing is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None
