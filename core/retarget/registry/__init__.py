"""Plugins and devices: manifests, discovery, states, hook resolution and device selection.

The functions here ask the process's one `Registry`; tests make their own over another path and environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from .backend import (
    Argument,
    Backend,
    Binary,
    Compiler,
    DeviceInfo,
    Executable,
    Launch,
    Probe,
    Runtime,
    Source,
)
from .capabilities import Capabilities, Entry, Limits, Support, TensorCore
from .plugins import Plugin, PluginWarning, State
from .selection import Explanation, Registry
from .versions import API_VERSION, IR_VERSION

if TYPE_CHECKING:
    from ..codegen.hooks import ResolvedHooks

__all__ = [
    "API_VERSION", "IR_VERSION", "Argument", "Backend", "Binary", "Capabilities", "Compiler", "DeviceInfo",
    "Entry", "Executable", "Explanation", "Launch", "Limits", "Plugin", "PluginWarning", "Probe", "Registry",
    "Runtime", "Source", "State", "Support", "TensorCore", "backend", "default_device", "device", "devices",
    "explain_devices", "hooks", "plugins", "registry", "select", "set_default_device", "target",
]  # fmt: skip

_registry = Registry()


def registry() -> Registry:
    """Return the process's registry."""
    return _registry


def plugins() -> tuple[Plugin, ...]:
    """Return all installed plugins (`Registry.plugins`)."""
    return _registry.plugins()


def backend(name: str) -> Backend:
    """Return a backend by name, loaded (`Registry.backend`)."""
    return _registry.backend(name)


def target(name: str) -> str:
    """Return the full name of a target (`Registry.target`)."""
    return _registry.target(name)


def devices() -> list[DeviceInfo]:
    """Return all ready devices, the preferred ones first (`Registry.devices`)."""
    return _registry.devices()


def device(name: str | None = None) -> DeviceInfo:
    """Return a device by name, "auto", or the default (`Registry.device`)."""
    return _registry.device(name)


def select(
    *,
    dtypes: Sequence[str] = (),
    tensor_cores: bool = False,
    memory: int = 0,
    prefer: Sequence[str] = (),
    target: str = "*",
) -> DeviceInfo:
    """Return the best device that meets requirements (`Registry.select`)."""
    return _registry.select(
        dtypes=dtypes, tensor_cores=tensor_cores, memory=memory, prefer=prefer, target=target
    )


def default_device(name: str) -> AbstractContextManager[DeviceInfo]:
    """Make a device the default inside a `with` block (`Registry.default_device`)."""
    return _registry.default_device(name)


def set_default_device(name: str | None) -> None:
    """Make a device the default of the process (`Registry.set_default_device`)."""
    _registry.set_default_device(name)


def explain_devices() -> list[Explanation]:
    """Return why each plugin is used or not (`Registry.explain_devices`)."""
    return _registry.explain_devices()


def hooks(target: str) -> ResolvedHooks:
    """Return the resolved hooks of a target (`Registry.hooks`)."""
    return _registry.hooks(target)
