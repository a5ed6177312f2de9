"""The CPU that C is compiled for: this machine's, as /proc and /sys describe it, or a generic one by name."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retarget.errors import UnknownNameError

_X86, _ARM = ("x86_64", "amd64", "x86-64"), ("aarch64", "arm64")
_AVX512 = frozenset(
    {"avx512f", "avx512vl", "avx512bw", "avx512dq"}
)  # what 512-bit vectors of every dtype need


@dataclass(frozen=True, slots=True)
class Machine:
    """A CPU to compile for.

    Attributes
    ----------
    flags
        What tells the compiler.
    vector_bits, registers
        Width and number of the vector registers.
    half
        Whether it converts between float16 and float32.
    """

    flags: tuple[str, ...]
    vector_bits: int
    registers: int
    half: bool


def _x86(name: str, vector_bits: int, half: bool) -> Machine:
    # Without the width, compilers split vectors of 512 bits on some CPUs.
    flags = (f"-march={name}", f"-mprefer-vector-width={vector_bits}")
    return Machine(flags, vector_bits, 32 if vector_bits == 512 else 16, half)


#: Targets besides "clang/native", by the part of their name behind "clang/".
GENERIC: Mapping[str, Machine] = {
    "x86-64-v2": _x86("x86-64-v2", 128, False),
    "x86-64-v3": _x86("x86-64-v3", 256, True),
    "x86-64-v4": _x86("x86-64-v4", 512, True),
}


def machine(target: str) -> Machine:
    """Return the CPU that a target such as "clang/native" or "clang/x86-64-v3" names."""
    name = target.partition("/")[2]
    if name == "native":
        return host()
    try:
        return GENERIC[name]
    except KeyError:
        raise UnknownNameError("target", target, [f"clang/{n}" for n in ("native", *GENERIC)]) from None


@functools.cache
def host() -> Machine:
    """Return this machine's CPU."""
    features = frozenset(_cpuinfo().get("flags", "").split())
    kind = platform.machine().lower()
    if kind in _X86:
        return _x86(
            "native", 512 if features >= _AVX512 else 256 if "avx2" in features else 128, "f16c" in features
        )
    if kind in _ARM:
        return Machine(("-mcpu=native",), 128, 32, True)
    return Machine(("-march=native",), 128, 16, False)


@functools.cache
def host_identity() -> str:
    """Return a short text that differs between CPUs for which compilers generate different code."""
    found = _cpuinfo()
    keys = (
        "vendor_id", "cpu family", "model", "flags",
        "CPU implementer", "CPU variant", "CPU part", "Features",
    )  # fmt: skip
    facts = [platform.machine(), platform.processor(), *(found.get(key, "") for key in keys)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def host_name() -> str:
    """Return what a person calls this CPU."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


@functools.cache
def host_caches() -> tuple[int, ...]:
    """Return the sizes in bytes of the data caches, innermost first; shared ones count in parts."""
    found: dict[int, int] = {}
    siblings = 1  # hardware threads of a core: those that share its first cache
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size, sharers = (
                (folder / name).read_text().strip() for name in ("type", "level", "size", "shared_cpu_list")
            )
            count = sum(_span(part) for part in sharers.split(","))
            total = int(size.removesuffix("K")) << 10
        except (OSError, ValueError):
            continue  # the entry is hidden, as in some containers
        if kind == "Instruction":
            continue
        if level == "1":
            siblings = count
        found[int(level)] = total * siblings // max(count, siblings)
    return tuple(found[level] for level in sorted(found)) or (32 << 10, 512 << 10)


def usable_threads() -> int:
    """Return RETARGET_THREADS, or the number of cores that this process may use."""
    wanted = os.environ.get("RETARGET_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _span(cpus: str) -> int:
    first, _, last = cpus.partition("-")
    return int(last or first) - int(first) + 1


@functools.cache
def _cpuinfo() -> Mapping[str, str]:
    """Return the first processor's entries of /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    lines = [line.partition(":") for line in text.split("\n\n", 1)[0].splitlines()]
    return {key.strip(): value.strip() for key, _, value in lines}
