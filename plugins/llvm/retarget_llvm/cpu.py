"""The CPUs that LLVM generates code for, by target."""

from __future__ import annotations

import functools

from retarget.runtime import cpu
from retarget.runtime.cpu import CPU, GENERIC

TARGETS: tuple[str, ...] = ("llvm/native", *(f"llvm/{name}" for name in GENERIC))

#: LLVM's names of generic CPUs, where it does not call them as the targets do.
_CPU_NAMES = {"aarch64": "generic"}


def machine(target: str) -> CPU:
    """Return the CPU that a target such as "llvm/native" or "llvm/x86-64-v3" names."""
    found = cpu.target_cpu(target, TARGETS)
    return _asked_host() if is_native(target) and not cpu.features() else found


def is_native(target: str) -> bool:
    """Return whether a target is this machine's CPU, with all its features."""
    return target == "llvm/native"


def cpu_name(target: str) -> str:
    """Return LLVM's name of a generic target's CPU."""
    name = target.partition("/")[2]
    return _CPU_NAMES.get(name, name)


@functools.cache
def _asked_host() -> CPU:
    """Return this machine's CPU by what LLVM says, for systems that do not tell its features themselves."""
    import llvmlite.binding as llvm

    known = llvm.get_host_cpu_features()
    return cpu.from_features(cpu.architecture(), frozenset(n for n, present in known.items() if present))
