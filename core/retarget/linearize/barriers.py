"""Barriers between the threads of a block: where memory that they share needs one, and nowhere else.

What a block has written since its last barrier may not be read, and what it has read may not be written, by
another thread.  A barrier stands just before the first access that conflicts, and in front of the loop around
it where that spares one inside.  A loop begins with what was accessed before it and, from its second
iteration on, with what its own end left: both count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir import dtypes, ops
from ..ir.uop import UOp

#: A barrier that stands where it is whatever is accessed.
FENCE = UOp(ops.BARRIER, dtypes.void, (), "fence")
_BARRIER = UOp(ops.BARRIER, dtypes.void)
_READ, _WRITTEN = 1, 2
#: Array -> how it was accessed since the last barrier.
State = dict[UOp, int]
#: A uop, or a loop with a `body` of such items.
Item = Any


def synchronize(body: list[Item], shared: frozenset[UOp]) -> None:
    """Insert barriers into a nest of loops.

    Parameters
    ----------
    body
        The outermost body; changed in place.
    shared
        Arrays that threads of a block share.
    """
    _Synchronizer(shared).body(body, {})


@dataclass(slots=True)
class _Synchronizer:
    shared: frozenset[UOp]

    def accesses(self, item: Item) -> State:
        """Return how an item accesses the shared arrays, inside of its loops too."""
        if not isinstance(item, UOp):
            found: State = {}
            for inner in item.body:
                _merge(found, self.accesses(inner))
            return found
        if not item.src or item.src[0] not in self.shared:
            return {}  # a fence too: what stands before it in a loop still counts for what is around
        return {item.src[0]: _READ if item.op is ops.LOAD else _WRITTEN}

    def body(self, items: list[Item], before: State) -> State:
        """Insert the barriers of one body, and return what is accessed and not yet separated at its end."""
        state = dict(before)
        done: list[Item] = []
        for item in items:
            here = self.accesses(item)
            if item is FENCE:
                state = {}
            elif isinstance(item, UOp):
                if _conflict(state, here):
                    done.append(_BARRIER)
                    state = {}
                _merge(state, here)
            elif here:
                end = self.loop(item, state)
                if _conflict(state, here):
                    # One barrier in front, unless those that the loop has anyway come early enough.
                    inside = _barriers(item)
                    alone = self.loop(item, {})
                    if _barriers(item) < inside:
                        done.append(_BARRIER)
                        end = alone
                    else:
                        end = self.loop(item, state)
                state = end
            done.append(item)
        items[:] = done
        return state

    def loop(self, frame: Item, before: State) -> State:
        """Insert the barriers of a loop, given what stands before it and what its own end leaves."""
        entry = dict(before)
        while True:
            _strip(frame)
            end = self.body(frame.body, entry)
            again = dict(entry)
            _merge(again, end)
            if again == entry:
                return end
            entry = again


def _strip(frame: Item) -> None:
    """Take the barriers out again."""
    frame.body[:] = [x for x in frame.body if not (isinstance(x, UOp) and x is _BARRIER)]
    for x in frame.body:
        if not isinstance(x, UOp):
            _strip(x)


def _barriers(frame: Item) -> int:
    return sum(x is _BARRIER if isinstance(x, UOp) else _barriers(x) for x in frame.body)


def _merge(state: State, more: State) -> None:
    for array, how in more.items():
        state[array] = state.get(array, 0) | how


def _conflict(state: State, more: State) -> bool:
    """Whether something is read after it was written, or written after it was read."""
    return any(
        (have & _WRITTEN and more[array] & _READ) or (have & _READ and more[array] & _WRITTEN)
        for array, have in state.items()
        if array in more
    )
