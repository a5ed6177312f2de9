"""The CPUs that C is compiled for, by target, and the flags that tell compilers."""

from __future__ import annotations

from retarget.runtime import cpu
from retarget.runtime.cpu import CPU

TARGETS = ("clang/native", "clang/x86-64-v2", "clang/x86-64-v3", "clang/x86-64-v4")


def machine(target: str) -> CPU:
    """Return the CPU that a target such as "clang/native" or "clang/x86-64-v3" names."""
    return cpu.target_cpu(target, TARGETS)


def flags(target: str) -> tuple[str, ...]:
    """Return the flags that make a compiler generate code for a target."""
    found, name = machine(target), target.partition("/")[2]
    if found.architecture == "x86_64":
        # Without the width, compilers split vectors of 512 bits on some CPUs.
        return (f"-march={name}", f"-mprefer-vector-width={found.vector_bits}")
    return ("-mcpu=native",) if found.architecture == "aarch64" else ("-march=native",)
