"""The CPU that code is made for: this machine's, read without importing llvmlite, or a generic one by name.

What Linux says in /proc/cpuinfo decides the vector width and identifies the host in cache keys, so that a
warm start does not pay for the import of LLVM.  Elsewhere LLVM is asked.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retarget.errors import UnknownNameError

#: First components of LLVM's target triples, where systems call the machine otherwise.
_ARCHITECTURES = {"AMD64": "x86_64", "amd64": "x86_64", "arm64": "aarch64"}

#: What 512-bit vectors of every dtype need.
_AVX512 = frozenset({"avx512f", "avx512vl", "avx512bw", "avx512dq"})
_IDENTIFYING = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",  # x86
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features",  # Arm
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """A CPU to generate code for.

    Attributes
    ----------
    architecture
        First component of the target triple.
    cpu
        LLVM's name of the CPU; "" for this machine's.
    vector_bits, vector_registers
        Width and number of the vector registers.
    half
        Whether it converts between float16 and float32.
    """

    architecture: str
    cpu: str
    vector_bits: int
    vector_registers: int
    half: bool


#: The generic targets, by the part of their name behind "llvm/".
GENERIC: Mapping[str, Machine] = {
    "x86-64-v2": Machine("x86_64", "x86-64-v2", 128, 16, False),
    "x86-64-v3": Machine("x86_64", "x86-64-v3", 256, 16, True),
    "x86-64-v4": Machine("x86_64", "x86-64-v4", 512, 32, True),
    "aarch64": Machine("aarch64", "generic", 128, 32, True),
}

TARGETS: tuple[str, ...] = ("llvm/native", *(f"llvm/{name}" for name in GENERIC))


def machine(target: str) -> Machine:
    """Return the CPU that a target such as "llvm/native" or "llvm/x86-64-v3" names."""
    name = target.partition("/")[2]
    if name == "native":
        return host_machine()
    try:
        return GENERIC[name]
    except KeyError:
        raise UnknownNameError("target", target, TARGETS) from None


def host_architecture() -> str:
    """Return the first component of this machine's target triple."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


@functools.cache
def host_machine() -> Machine:
    """Return what this machine's vector unit is like."""
    architecture, features = host_architecture(), host_features()
    if architecture == "x86_64":
        bits = 512 if features >= _AVX512 else 256 if "avx2" in features else 128
        return Machine(architecture, "", bits, 32 if bits == 512 else 16, "f16c" in features)
    if architecture == "aarch64":
        return Machine(architecture, "", 128, 32, True)
    return Machine(architecture, "", 128, 16, False)


@functools.cache
def host_features() -> frozenset[str]:
    """Return the names of this CPU's features: the kernel's names, or LLVM's where there is no /proc."""
    found = _cpuinfo()
    if found:
        return frozenset(found.get("flags", found.get("Features", "")).split())
    import llvmlite.binding as llvm

    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


@functools.cache
def host_identity() -> str:
    """Return a short text that differs between CPUs for which LLVM generates different code."""
    found = _cpuinfo()
    if found:
        facts = [f"{key}={found[key]}" for key in _IDENTIFYING if key in found]
    else:
        import llvmlite.binding as llvm

        facts = [llvm.get_host_cpu_name(), *sorted(host_features())]
    return hashlib.sha256("\n".join([platform.machine(), *facts]).encode()).hexdigest()[:16]


def host_name() -> str:
    """Return what a person calls this CPU."""
    found = _cpuinfo()
    return found.get("model name") or platform.processor() or platform.machine()


@functools.cache
def host_caches() -> tuple[int, ...]:
    """Return the sizes in bytes of the data caches, innermost first; of a shared one, a core's part."""
    found: dict[int, int] = {}
    siblings = 1  # hardware threads of a core: those that share its first cache
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
            level = int((folder / "level").read_text())
            size = int((folder / "size").read_text().strip().removesuffix("K")) << 10
            sharers = _count((folder / "shared_cpu_list").read_text().strip())
        except (OSError, ValueError):
            continue  # the entry is hidden, as in some containers
        if kind == "Instruction":
            continue
        if level == 1:
            siblings = sharers
        found[level] = size * siblings // max(sharers, siblings)
    return tuple(found[level] for level in sorted(found)) or (32 << 10, 512 << 10)


def memory_bytes() -> int:
    """Return the bytes of memory of this machine, 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _count(cpus: str) -> int:
    """Return how many CPUs a list such as "0-3,8" names."""
    total = 0
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


@functools.cache
def _cpuinfo() -> Mapping[str, str]:
    """Return the first processor's entries of /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    lines = [line.partition(":") for line in text.split("\n\n", 1)[0].splitlines()]
    return {key.strip(): value.strip() for key, _, value in lines}
