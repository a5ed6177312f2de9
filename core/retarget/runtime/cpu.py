"""CPUs that code is made for: this machine's, as the system describes it, and generic ones by name.

For backends whose device is the host's CPU.  Nothing here imports or starts a compiler, so that a warm start
can make its cache keys cheaply.  On Linux /proc and /sys are read; other systems say less, and then features
are unknown and the machine's own name stands for its CPU in `identity`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Literal, NamedTuple

from ..errors import UnknownNameError
from ..ir.dtypes import ARRAY_DTYPES
from ..registry.capabilities import Capabilities, Entry, Limits, Support
from .pool import wanted_threads

__all__ = [
    "CPU", "GENERIC", "architecture", "caches", "capabilities", "description", "features", "from_features",
    "host", "identity", "memory_bytes", "name", "parse_cpuinfo", "read_caches", "target_cpu",
]  # fmt: skip

#: Names of architectures as compilers spell them, where systems spell them otherwise.
_ARCHITECTURES = {"AMD64": "x86_64", "amd64": "x86_64", "arm64": "aarch64"}

#: What 512-bit vectors of every dtype need.
_AVX512 = frozenset({"avx512f", "avx512vl", "avx512bw", "avx512dq"})

#: The entries of /proc/cpuinfo that may decide which code a compiler generates.
_IDENTIFYING = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",  # x86
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features",  # Arm
)  # fmt: skip

_NATIVE = Entry(Support.SUPPORTED)
_AS_FLOAT32 = Entry(Support.EMULATED, "computed in float32")


class CPU(NamedTuple):
    """What a backend must know about a CPU to generate code for it.

    Attributes
    ----------
    architecture
        "x86_64", "aarch64", or what the system calls it: the first component of target triples.
    vector_bits, vector_registers
        Width and number of the vector registers.
    half
        Whether it converts between float16 and float32.
    """

    architecture: str
    vector_bits: int
    vector_registers: int
    half: bool


#: Generic CPUs, by the name that targets end in: the levels of the x86-64 psABI, and Armv8-A.
GENERIC: Mapping[str, CPU] = {
    "x86-64-v2": CPU("x86_64", 128, 16, False),
    "x86-64-v3": CPU("x86_64", 256, 16, True),
    "x86-64-v4": CPU("x86_64", 512, 32, True),
    "aarch64": CPU("aarch64", 128, 32, True),
}


def target_cpu(target: str, targets: Sequence[str]) -> CPU:
    """Return the CPU that a target such as "llvm/native" or "llvm/x86-64-v3" names.

    Parameters
    ----------
    target
        A backend's name, "/", and "native" or a name in `GENERIC`.
    targets
        The targets that the backend has.

    Raises
    ------
    UnknownNameError
        `target` is not among `targets`.
    """
    if target not in targets:
        raise UnknownNameError("target", target, targets)
    cpu = target.partition("/")[2]
    return host() if cpu == "native" else GENERIC[cpu]


@functools.cache
def host() -> CPU:
    """Return this machine's CPU; as narrow as its architecture allows where its features are unknown."""
    return from_features(architecture(), features())


def from_features(architecture: str, features: AbstractSet[str]) -> CPU:
    """Return the CPU with these features, by the names that Linux and LLVM share."""
    if architecture == "x86_64":
        bits = 512 if features >= _AVX512 else 256 if "avx2" in features else 128
        return CPU(architecture, bits, 32 if bits == 512 else 16, "f16c" in features)
    if architecture == "aarch64":
        return CPU(architecture, 128, 32, True)
    return CPU(architecture, 128, 16, False)


def capabilities(
    target: str,
    cpu: CPU,
    functions: Mapping[str, Mapping[str, float]],
    unroll: Literal["pragma", "replay"],
) -> Capabilities:
    """Return what a backend that compiles for a CPU can do, given what such backends differ in.

    Floats narrower than 32 bits are stored as they are and computed in float32.

    Parameters
    ----------
    target, functions, unroll
        As in `Capabilities`.
    cpu
        What the target names.
    """
    return Capabilities(
        target=target,
        storage={d.name: _NATIVE for d in ARRAY_DTYPES},
        arithmetic={d.name: _AS_FLOAT32 if d.is_float and d.bits < 32 else _NATIVE for d in ARRAY_DTYPES},
        functions=functions,
        conversions=frozenset({"float16"}) if cpu.half else frozenset(),
        vector_bits=cpu.vector_bits,
        vector_memory_bits=cpu.vector_bits,
        registers=cpu.vector_registers,
        caches=caches(),
        axis_kinds=frozenset({"loop", "unroll", "vector", "thread"}),
        unroll=unroll,
        address_spaces=frozenset({"global", "local", "register"}),
        limits=Limits(local_bytes=1 << 20),  # stack
        threads=wanted_threads(),
    )


def architecture() -> str:
    """Return this machine's architecture, as in target triples: "x86_64", "aarch64"."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


@functools.cache
def features() -> frozenset[str]:
    """Return what this CPU's features are called by the system; empty where it does not say."""
    found = _cpuinfo()
    return frozenset(found.get("flags", found.get("Features", "")).split())


@functools.cache
def identity() -> str:
    """Return a short text, stable across processes, that differs where compilers make different code."""
    found = _cpuinfo()
    facts = [f"{key}={found[key]}" for key in _IDENTIFYING if key in found]
    facts = facts or [platform.processor(), platform.node()]
    return hashlib.sha256("\n".join([platform.machine(), *facts]).encode()).hexdigest()[:16]


def name() -> str:
    """Return what a person calls this CPU, e.g. "AMD EPYC 7B13"."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def description() -> str:
    """Return this CPU's name and how many threads kernels run on, e.g. "AMD EPYC 7B13, 8 cores"."""
    cores = wanted_threads()
    return f"{name()}, {cores} core{'s' if cores > 1 else ''}"


def memory_bytes() -> int:
    """Return the bytes of memory of this machine, 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


@functools.cache
def caches() -> tuple[int, ...]:
    """Return the sizes in bytes of the data caches, innermost first; of a shared one, a core's part.

    Where the system does not say, caches are assumed that nearly every CPU has.
    """
    return read_caches(Path("/sys/devices/system/cpu/cpu0/cache")) or (32 << 10, 512 << 10)


def read_caches(folder: Path) -> tuple[int, ...]:
    """Return what `caches` says, from a folder laid out as Linux's for one CPU; empty if nothing is there."""
    found: dict[int, int] = {}
    siblings = 1  # hardware threads of a core: those that share its first cache
    for entry in sorted(folder.glob("index*")):
        try:
            kind = (entry / "type").read_text().strip()
            level = int((entry / "level").read_text())
            size = int((entry / "size").read_text().strip().removesuffix("K")) << 10
            sharers = _count((entry / "shared_cpu_list").read_text().strip())
        except (OSError, ValueError):
            continue  # the entry is hidden, as in some containers
        if kind == "Instruction":
            continue
        if level == 1:
            siblings = sharers
        found[level] = size * siblings // max(sharers, siblings)
    return tuple(found[level] for level in sorted(found))


def parse_cpuinfo(text: str) -> dict[str, str]:
    """Return the first processor's entries of a text such as /proc/cpuinfo."""
    lines = [line.partition(":") for line in text.split("\n\n", 1)[0].splitlines()]
    return {key.strip(): value.strip() for key, _, value in lines}


@functools.cache
def _cpuinfo() -> Mapping[str, str]:
    """Return the first processor's entries of /proc/cpuinfo; empty where there is none."""
    try:
        return parse_cpuinfo(Path("/proc/cpuinfo").read_text())
    except OSError:
        return {}


def _count(cpus: str) -> int:
    """Return how many CPUs a list such as "0-3,8" names."""
    total = 0
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total
