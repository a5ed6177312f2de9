"""Loads and stores of fragments: what one lane holds of a matrix lies in a few runs of contiguous elements.

A tensor core's layout decides which elements these are; an access is taken apart into one for each element,
and elements that follow each other in memory under the same mask are accessed as one vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..ir.index import combine, constant, iconst, range_size, terms
from ..ir.substitute import Substitution
from ..ir.uop import UOp


class Run(NamedTuple):
    """Elements of a fragment that are contiguous in memory.

    Attributes
    ----------
    first, length
        Number of the first element, and how many there are: a power of two.
    access
        The load or store of the first one.
    flat
        Its flat index.
    alignment
        The power of two up to `length` that provably divides it.
    """

    first: int
    length: int
    access: UOp
    flat: UOp
    alignment: int


def elements(access: UOp, axis: UOp) -> list[UOp]:
    """Return the load or store of each element along a fragment's axis."""
    return [Substitution({axis: iconst(n)})(access) for n in range(range_size(axis))]


def runs(accesses: Sequence[UOp], flats: Sequence[UOp]) -> Iterator[Run]:
    """Yield the runs that accesses, with their flat indices, make up."""
    start = 0
    while start < len(accesses):
        stop = start + 1
        while stop < len(accesses) and _follows(accesses, flats, stop):
            stop += 1
        while start < stop:
            count = 1 << ((stop - start).bit_length() - 1)
            yield Run(start, count, accesses[start], flats[start], aligned(flats[start], count))
            start += count


def _follows(accesses: Sequence[UOp], flats: Sequence[UOp], n: int) -> bool:
    same_mask = accesses[n].src[1] is accesses[n - 1].src[1]
    return same_mask and constant(combine(((flats[n], 1), (flats[n - 1], -1)))) == 1


def aligned(flat: UOp, count: int) -> int:
    """Return the largest power of two up to `count`, itself one, that divides a flat index for certain."""
    c, parts = terms(flat)
    for number in (c, *[k for _, k in parts]):
        while number % count:
            count //= 2
    return count
