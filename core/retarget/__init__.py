"""Retarget: write an array kernel once; every device is a plugin.

`import retarget as rt` gives the lazy array namespace (`retarget.array`).  What deals with devices is loaded
when it is first used, so that importing stays cheap and never fails because of a plugin.
"""

import importlib as _importlib
from typing import TYPE_CHECKING
from typing import Any as _Any

from . import array as _array
from .array import *  # noqa: F403

if TYPE_CHECKING:
    from .optimize.search.tune import tune
    from .pipeline import compile, fast_math, load, lower, render, synchronize, with_schedule
    from .registry import default_device, device, devices, select, set_default_device
    from .runtime.jit import jit

__version__ = "0.1.0"
__array_api_version__ = "2024.12"

#: Names that are loaded at first use, with the module that has each.
_LATE = {
    "compile": "pipeline",
    "default_device": "registry",
    "device": "registry",
    "devices": "registry",
    "fast_math": "pipeline",
    "jit": "runtime.jit",
    "load": "pipeline",
    "lower": "pipeline",
    "render": "pipeline",
    "select": "registry",
    "set_default_device": "registry",
    "synchronize": "pipeline",
    "tune": "optimize.search.tune",
    "with_schedule": "pipeline",
}

__all__ = [
    "compile", "default_device", "device", "devices", "fast_math", "jit", "load", "lower", "render", "select",
    "set_default_device", "synchronize", "tune", "with_schedule",
]  # fmt: skip
__all__ += _array.__all__


def __getattr__(name: str) -> _Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_importlib.import_module(f".{module}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATE])
