"""Register arrays as SSA values: an array that only ever has literal indices needs no memory.

Unrolled loops are replayed with literal indices, so the elements of an accumulator tile are known one by one
while the text is written.  Each is a value; loops and conditions that store to one get a phi for it.  LLVM
would find as much by itself, but slowly: it would have to read twice the text first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from retarget.ir import ops
from retarget.ir.uop import UOp

_OPENS = frozenset({ops.RANGE, ops.IF})
_CLOSES = frozenset({ops.END, ops.ENDIF})
_RELEVANT = frozenset({ops.LOCAL, ops.LOAD, ops.STORE, *_OPENS, *_CLOSES})
#: Largest number of elements that an array may have to be made of values.
_MOST = 64


class Element(NamedTuple):
    """One element of an array: the array's name, the flat index, and the array's declaration."""

    array: str
    at: int
    declared: UOp


@dataclass(slots=True)
class Registers:
    """What is known of the register arrays of a program.

    Attributes
    ----------
    promoted
        The arrays that are made of values.
    written
        Position of a RANGE or an IF -> the promoted arrays that it changes and that outlive it.
    values
        The present value of each element.
    names
        Promoted array -> its name since it was last declared.
    """

    promoted: frozenset[UOp]
    written: dict[int, dict[UOp, None]]
    values: dict[str, dict[int, str]] = field(default_factory=dict)
    names: dict[UOp, str] = field(default_factory=dict)

    @staticmethod
    def of(uops: Iterable[UOp]) -> Registers:
        """Return the register arrays of a program, before any of them is declared."""
        refused: set[UOp] = set()
        declared: dict[UOp, int] = {}
        opened: list[int] = []
        written: dict[int, dict[UOp, None]] = {}
        for n, u in enumerate(uops):
            op = u.op
            if op not in _RELEVANT:
                continue
            if op in _OPENS:
                opened.append(n)
            elif op in _CLOSES:
                opened.pop()
            elif op is ops.LOCAL:
                if u.arg[2] == "register" and _size(u) <= _MOST:
                    declared[u] = n
            elif (array := u.src[0]) in declared:
                value = u if op is ops.LOAD else u.src[2]
                if value.dtype is not array.dtype or not _is_literal(u.src[1]):
                    refused.add(array)
                elif op is ops.STORE:
                    for block in reversed(opened):
                        if block < declared[array]:
                            break
                        written.setdefault(block, {})[array] = None
        return Registers(frozenset(declared) - refused, written)

    def declare(self, array: UOp, name: str) -> None:
        """Start an array anew; its elements have no value yet."""
        self.names[array] = name
        self.values[name] = {}

    def changed(self, position: int) -> list[Element]:
        """Return the elements that the block which opens at a position may change, and that outlive it."""
        return [
            Element(self.names[array], n, array)
            for array in self.written.get(position, ())
            if array in self.promoted
            for n in range(_size(array))
        ]

    def get(self, element: Element, otherwise: Callable[[], str]) -> str:
        """Return the present value of an element."""
        found = self.values[element.array].get(element.at)
        return otherwise() if found is None else found

    def put(self, element: Element, value: str) -> None:
        self.values[element.array][element.at] = value


def _is_literal(index: UOp) -> bool:
    """Whether an index is a number once unrolled loops are replayed."""
    if index.op is ops.RANGE:
        return index.arg[2] == "unroll" and index.arg[1] is not None
    if not index.src:
        return index.op is ops.CONST
    return index.dtype.is_int and index.op is not ops.LOAD and all(map(_is_literal, index.src))


def _size(array: UOp) -> int:
    return math.prod([n for n in array.arg[1] if n])
