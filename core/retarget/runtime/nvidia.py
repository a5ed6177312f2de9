"""NVIDIA's GPUs as data: what their architectures differ in, and what all can do, for backends of them.

Figures are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from ..errors import UnknownNameError
from ..ir.dtypes import ARRAY_DTYPES
from ..registry.capabilities import Capabilities, Entry, Limits, Support

#: Bytes of shared memory that a kernel may declare; more is asked for at launch, and starts at one address.
STATIC_SHARED = 48 << 10
THREADS = 1024
WARP = 32
GRID = (2**31 - 1, 65535, 65535)
BLOCK = (1024, 1024, 64)


class Architecture(NamedTuple):
    """What code for one compute capability may use.

    Attributes
    ----------
    number
        Ten times the major version plus the minor one: 90.
    shared
        Bytes of shared memory that one block may have, when its kernel asks for them.
    cache
        Bytes of L2 cache of the largest GPU of the architecture.
    suffix
        "a" where only the instructions of this one architecture are included as well, e.g. wgmma in sm_90a.
    """

    number: int
    shared: int
    cache: int
    suffix: str = ""

    @property
    def name(self) -> str:
        """What compilers call it, e.g. "sm_90a"."""
        return f"sm_{self.number}{self.suffix}"


_KB, _MB = 1 << 10, 1 << 20
_KNOWN = (
    Architecture(75, 64 * _KB, 6 * _MB),
    Architecture(80, 163 * _KB, 40 * _MB),
    Architecture(86, 99 * _KB, 6 * _MB),
    Architecture(87, 163 * _KB, 4 * _MB),
    Architecture(89, 99 * _KB, 96 * _MB),
    Architecture(90, 227 * _KB, 50 * _MB),
    Architecture(90, 227 * _KB, 50 * _MB, "a"),
    Architecture(100, 227 * _KB, 126 * _MB),
    Architecture(100, 227 * _KB, 126 * _MB, "a"),
    Architecture(103, 227 * _KB, 126 * _MB),
    Architecture(103, 227 * _KB, 126 * _MB, "a"),
    Architecture(110, 227 * _KB, 32 * _MB),
    Architecture(110, 227 * _KB, 32 * _MB, "a"),
    Architecture(120, 99 * _KB, 96 * _MB),
    Architecture(120, 99 * _KB, 96 * _MB, "a"),
    Architecture(121, 99 * _KB, 24 * _MB),
    Architecture(121, 99 * _KB, 24 * _MB, "a"),
)
ARCHITECTURES = {a.name: a for a in _KNOWN}
_NATIVE = Entry(Support.SUPPORTED)
_AS_FLOAT32 = Entry(Support.EMULATED, "computed in float32")


def architecture(target: str, targets: Sequence[str]) -> Architecture:
    """Return the architecture that a target ends in, e.g. "sm_90a".

    One that is newer than all in the table is taken for the newest family's: the driver translates what is
    compiled for an older one.

    Raises
    ------
    UnknownNameError
        `target` is none of `targets`, nor newer than all in the table.
    """
    head, _, name = target.rpartition("sm_")
    if target in targets:
        return ARCHITECTURES[f"sm_{name}"]
    number = re.fullmatch(r"\d{2,3}", name)
    newer = number is not None and int(name) > _KNOWN[-1].number
    if newer and any(t.startswith(f"{head}sm_") for t in targets):
        return Architecture(int(name), 99 * _KB, 96 * _MB)
    raise UnknownNameError("target", target, targets)


def capabilities(
    target: str,
    arch: Architecture,
    functions: Mapping[str, Mapping[str, float]],
    conversions: frozenset[str],
    unroll: Literal["pragma", "replay"],
) -> Capabilities:
    """Return what a backend that compiles for an architecture can do, given what such backends differ in.

    Floats narrower than 32 bits are stored as they are and computed in float32.

    Parameters
    ----------
    target, functions, conversions, unroll
        As in `Capabilities`.
    arch
        What the target names.
    """
    ahead = _NATIVE if arch.number >= 80 else Entry(Support.UNSUPPORTED, "cp.async needs sm_80")
    return Capabilities(
        target=target,
        storage={d.name: _NATIVE for d in ARRAY_DTYPES},
        arithmetic={d.name: _AS_FLOAT32 if d.is_float and d.bits < 32 else _NATIVE for d in ARRAY_DTYPES},
        functions=functions,
        conversions=conversions,
        vector_bits=128,  # of a load or store; arithmetic is done lane by lane
        vector_memory_bits=128,
        registers=255,
        caches=(arch.shared, arch.cache),
        axis_kinds=frozenset({"grid", "block", "warp", "loop", "unroll", "vector"}),
        unroll=unroll,
        address_spaces=frozenset({"global", "local", "register"}),
        limits=Limits(
            arguments=512,  # 4 KB of parameters
            grid=GRID,
            block=BLOCK,
            block_threads=THREADS,
            local_bytes=arch.shared,
            warp=WARP,
        ),
        barriers=_NATIVE,
        async_copies=ahead,
        fork_safe=False,
    )
