"""Compilers that are programs: running them, and showing what they complain about."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence

from ..errors import CompileError

TIMEOUT = 300.0  # seconds


def run_tool(command: Sequence[str], data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, with `data` as its input and messages in English, so that they can be
    searched for.

    Raises
    ------
    CompileError
        It cannot be started, or does not finish; a status other than 0 is the caller's business.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, input=data, capture_output=True, timeout=TIMEOUT, check=False, env=environment
        )
    except OSError as error:
        raise CompileError(f"{command[0]!r} cannot be started: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{command[0]!r} did not finish in {TIMEOUT:.0f} s") from error


def excerpt(text: str, wrong: Iterable[int], around: int = 2, most: int = 3) -> str:
    """Return the numbered lines around the first lines of a text that are wrong, counted from 1."""
    lines = text.splitlines()
    first = list(dict.fromkeys(wrong))[:most]
    shown = {n for w in first for n in range(max(1, w - around), min(len(lines), w + around) + 1)}
    return "".join(f"\n{'>' if n in first else ' '} {n:4} | {lines[n - 1]}" for n in sorted(shown))
