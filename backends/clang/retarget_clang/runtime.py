"""The CPU's memory and launches are the core's; this names them for the backend."""

from __future__ import annotations

from retarget.runtime.host import HostRuntime

__all__ = ["ClangRuntime"]


class ClangRuntime(HostRuntime):
    """Loads objects that `ClangCompiler` made."""
