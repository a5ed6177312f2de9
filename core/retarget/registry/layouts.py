"""Fragment layouts of tensor cores, from the formulas in which vendors document them.

A vendor says either which element of a matrix a lane's register holds, or in which lane and register an
element is; `by_lane` and `by_element` make the table of a `TensorCore` from the one and the other.
"""

from __future__ import annotations

from collections.abc import Callable

from .capabilities import TensorCore

Position = tuple[int, int]
Layout = tuple[tuple[Position, ...], ...]

__all__ = ["Layout", "by_element", "by_lane", "dot_product"]


def by_lane(lanes: int, elements: int, f: Callable[[int, int], Position]) -> Layout:
    """Return a layout from the map (lane, element) -> (row, column).

    >>> by_lane(2, 2, lambda lane, e: (lane, e))
    (((0, 0), (0, 1)), ((1, 0), (1, 1)))
    """
    return tuple(tuple(f(lane, e) for e in range(elements)) for lane in range(lanes))


def by_element(
    lanes: int, elements: int, rows: int, columns: int, f: Callable[[int, int], Position]
) -> Layout:
    """Return a layout from the map (row, column) -> (lane, element), which hits each pair once.

    >>> by_element(2, 2, 2, 2, lambda row, column: (column, row))
    (((0, 0), (1, 0)), ((0, 1), (1, 1)))
    """
    where = {f(r, c): (r, c) for r in range(rows) for c in range(columns)}
    return by_lane(lanes, elements, lambda lane, e: where[lane, e])


def dot_product(
    name: str, columns: int, terms: int, dtypes: tuple[str, str], dtype_out: str, loses: str = ""
) -> TensorCore:
    """Return the descriptor of a CPU instruction that adds a dot product to each lane of a vector register.

    A is a group of `terms` elements, the same for all lanes; lane n of B holds such a group of column n.

    Parameters
    ----------
    name
        Of the descriptor.
    columns, terms
        Lanes of the accumulator, and products added to each.
    dtypes, dtype_out
        Of A and B, and of the accumulator.
    loses
        As in `TensorCore`.
    """
    return TensorCore(
        name, (columns, 1, terms), dtypes[0], dtype_out, 1,
        by_lane(1, terms, lambda _, e: (0, e)),
        by_lane(1, columns * terms, lambda _, e: (e % terms, e // terms)),
        by_lane(1, columns, lambda _, e: (0, e)),
        "" if dtypes[0] == dtypes[1] else dtypes[1], loses,
    )  # fmt: skip
