"""The GPUs that CUDA C is compiled for, by target: what their architectures differ in, as data.

Figures are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""

from __future__ import annotations

import re
from typing import NamedTuple

from retarget.errors import UnknownNameError

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
TARGETS = tuple(f"cuda/{name}" for name in ARCHITECTURES)


def architecture(target: str) -> Architecture:
    """Return the architecture that a target such as "cuda/sm_90a" names.

    One that is newer than all in the table is taken for the newest family's: the driver translates what is
    compiled for an older one.

    Raises
    ------
    UnknownNameError
        `target` names no architecture, or one older than all in the table.
    """
    backend, _, name = target.partition("/")
    found = ARCHITECTURES.get(name) if backend == "cuda" else None
    if found is not None:
        return found
    number = re.fullmatch(r"cuda/sm_(\d{2,3})", target)
    if number and int(number[1]) > _KNOWN[-1].number:
        return Architecture(int(number[1]), 99 * _KB, 96 * _MB)
    raise UnknownNameError("target", target, TARGETS)
