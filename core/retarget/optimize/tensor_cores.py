"""Sums of products as matrix instructions: a kernel's operands become the fragments of a descriptor.

An instruction covers one axis of rows, one of columns and one of the reduction.  Each lane of a warp holds
some elements of A, of B and of the result, so one substitution does all the work: in the operands, and in all
that reads the sum, these axes become index arithmetic on the lane and on an axis of kind "fragment", which
counts the elements that a lane holds.  Casts and elementwise operations of the operands (prologues) and of
the result (epilogues) are carried out on fragments so, and what masks keep out is zero there.  What is left
of the reduction is a loop that carries a fragment of sums.

Layouts are tables in a descriptor; here they must be what every vendor's are, sums of the bits of lane and
element numbers, and become index arithmetic that is as short as what a person would write.

A dot-product instruction of a CPU is the same with one lane, whose fragments are vector registers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import ScheduleError, UnknownNameError
from ..ir import dtypes, ops
from ..ir.dtypes import DType
from ..ir.index import ZERO, combine, divmod_, irange, range_size
from ..ir.simplify import alu, cast
from ..ir.substitute import Substitution
from ..ir.uop import UOp, const, round_float, toposort
from ..registry.capabilities import TensorCore
from ..schedule.lower import reduce, zero_outside
from .schedule import TensorTile
from .stages import Staged

#: The name of the axis that counts the lanes of a warp.
LANE = "lane"
Table = tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """A tensor core with the axes that it covers; None where its dimension is 1.

    Attributes
    ----------
    core
        The descriptor.
    rows, columns, reduction
        The covered axes.
    lane
        The axis of its lanes, of kind "warp"; the constant 0 if there is one lane.
    """

    core: TensorCore
    rows: UOp | None
    columns: UOp | None
    reduction: UOp | None
    lane: UOp

    @property
    def axes(self) -> tuple[UOp, ...]:
        """The covered axes: they have no loop."""
        return tuple([r for r in (self.rows, self.columns, self.reduction) if r is not None])


def find_unit(tile: TensorTile, cores: Sequence[TensorCore], axes: Mapping[str, UOp]) -> Unit:
    """Return the unit that a schedule asks for.

    Parameters
    ----------
    tile
        The clause of the schedule.
    cores
        The descriptors of the target.
    axes
        Axis name -> range.

    Raises
    ------
    UnknownNameError
        If the target has no such descriptor.
    ScheduleError
        If an axis does not exist, has another size than the instruction, or is not a plain one.
    """
    core = next((c for c in cores if c.name == tile.name), None)
    if core is None:
        raise UnknownNameError("tensor core", tile.name, [c.name for c in cores], f"in {tile}")
    columns, rows, terms = core.dims
    found: list[UOp | None] = []
    for what, name, size in (
        ("rows", tile.rows, rows), ("columns", tile.columns, columns), ("reduction", tile.reduction, terms)
    ):  # fmt: skip
        if name is None:
            if size != 1:
                raise ScheduleError(f"{tile}: {core.name} has {what} of size {size}; name an axis for them")
            found.append(None)
            continue
        axis = axes.get(name)
        if axis is None or axis.op is not ops.RANGE:
            raise ScheduleError(f"{tile}: there is no axis {name} for the {what}; axes are {', '.join(axes)}")
        if axis.src or range_size(axis) != size:
            here = "a size that is bound at launch" if axis.src else f"size {range_size(axis)}"
            raise ScheduleError(f"{tile}: {name} has {here}, the {what} of {core.name} are {size}")
        if axis.arg[2] != "loop":
            raise ScheduleError(
                f"{tile}: {name} is of kind {axis.arg[2]}; leave its kind out: the instruction covers it"
            )
        found.append(axis)
    if len({id(r) for r in found if r is not None}) < sum(r is not None for r in found):
        raise ScheduleError(f"{tile}: rows, columns and reduction are different axes")
    if core.threads > 1 and LANE in axes:
        raise ScheduleError(f"{tile}: an axis is called {LANE}, which is what the lanes of a warp are called")
    return Unit(core, found[0], found[1], found[2], irange(core.threads, LANE, "warp"))


def match_unit(unit: Unit, tile: TensorTile, stores: list[UOp]) -> list[UOp]:
    """Return the stores with the products that an instruction multiplies and adds up marked as such.

    A marked product is a WMMA of two operands in the dtypes of the instruction, still over plain axes: a
    stage of an operand keeps it in that dtype.

    Raises
    ------
    ScheduleError
        If there is no such sum, or the instruction does not compute it.
    """
    summed = _sum(unit, tile, stores)
    a, b, masks = _factors(summed, unit, tile)
    marked = Substitution({summed: _product(a, b, masks, summed, unit, tile)})
    return [marked(s) for s in stores]


def apply_unit(
    unit: Unit, tile: TensorTile, stores: list[UOp], stages: list[Staged]
) -> tuple[list[UOp], list[Staged]]:
    """Return the stores and stages with the marked products on fragments.

    Raises
    ------
    ScheduleError
        If something else does not work on fragments.
    """
    core = unit.core
    sums = [u for u in toposort([*stores, *[t.fill for t in stages]]) if _is_marked(u)]
    element = irange(len(core.c_layout[0]), "ce", "fragment")
    row, column = index_map(core.c_layout, unit.lane, element)
    mapped = {u: _on_fragments(u, unit) for u in sums}
    outside = Substitution(mapped | _present(((unit.rows, row), (unit.columns, column))))
    covered = set(unit.axes)
    new = []
    for t in stages:
        if not covered.isdisjoint(t.fill.ranges) and not any(_is_marked(u) for u in toposort([t.fill])):
            raise ScheduleError(
                f"{tile}: {t.array.arg[0]} keeps values along an axis that the instruction covers; stage the "
                "buffer instead"
            )
        loops = tuple([r for r in t.loops if r not in covered])
        new.append(replace(t, fill=outside(t.fill), loops=loops))
    stores = [outside(s) for s in stores]
    for u in toposort([*stores, *[t.fill for t in new]]):
        _check(u, unit, tile)
    return stores, new


def _is_marked(u: UOp) -> bool:
    return u.op is ops.REDUCE and u.src[0].op is ops.WMMA and len(u.src[0].src) == 2


def _on_fragments(summed: UOp, unit: Unit) -> UOp:
    """Return a marked sum as instructions on fragments, and a loop over what is left of the reduction."""
    core = unit.core
    a, b = summed.src[0].src
    ea = irange(len(core.a_layout[0]), "ae", "fragment")
    eb = irange(len(core.b_layout[0]), "be", "fragment")
    ec = irange(len(core.c_layout[0]), "ce", "fragment")
    row, a_term = index_map(core.a_layout, unit.lane, ea)
    b_term, column = index_map(core.b_layout, unit.lane, eb)
    in_a = Substitution(_present(((unit.rows, row), (unit.reduction, a_term))))
    in_b = Substitution(_present(((unit.reduction, b_term), (unit.columns, column))))
    rest = [r for r in summed.src[1:] if r is not unit.reduction]
    product = UOp(ops.WMMA, summed.dtype, (in_a(a), in_b(b), ea, eb, ec), core.name)
    return reduce(ops.ADD, product, rest)


def _check(u: UOp, unit: Unit, tile: TensorTile) -> None:
    """Raise ScheduleError for what cannot be computed on fragments."""
    if u.op is ops.REDUCE and not set(unit.axes).isdisjoint(u.src[1:]):
        raise ScheduleError(f"{tile}: an axis that the instruction covers is reduced elsewhere too")
    if unit.reduction in u.ranges:
        raise ScheduleError(f"{tile}: {tile.reduction} is used outside of the sum of products")
    if u.op is not ops.RANGE and sum(r.arg[2] in ("vector", "fragment") for r in u.ranges) > 1:
        raise ScheduleError(f"{tile}: a vector axis meets the fragments; use loop or unroll axes beside it")


def _sum(unit: Unit, tile: TensorTile, roots: Sequence[UOp]) -> UOp:
    """Return the one sum over the reduction axis; without such an axis, the only sum of products."""
    found = [
        u
        for u in toposort(roots)
        if u.op is ops.REDUCE
        and u.arg is ops.ADD
        and (unit.reduction in u.src[1:] if unit.reduction is not None else _has_product(u))
    ]
    if len(found) != 1:
        what = f"over {tile.reduction}" if tile.reduction else "of products"
        raise ScheduleError(f"{tile}: the kernel has {len(found) or 'no'} sums {what}; one is expected")
    out = dtypes.as_dtype(unit.core.dtype_out)
    if found[0].dtype is not out and not (unit.core.loses and out.is_float and holds(found[0].dtype, out)):
        raise ScheduleError(
            f"{tile}: the sum is of {found[0].dtype}, {unit.core.name} gives {unit.core.dtype_out}"
        )
    return found[0]


def _has_product(u: UOp) -> bool:
    return _unmasked(u.src[0])[0].op is ops.MUL


def _unmasked(value: UOp) -> tuple[UOp, list[UOp]]:
    """Return a value and the masks outside of which it is 0."""
    masks = []
    while value.op is ops.WHERE and value.src[2].op is ops.CONST and not value.src[2].arg:
        masks.append(value.src[0])
        value = value.src[1]
    return value, masks


def _factors(summed: UOp, unit: Unit, tile: TensorTile) -> tuple[UOp, UOp, list[UOp]]:
    """Return A, B and the masks of what is summed."""
    value, masks = _unmasked(summed.src[0])
    if value.op is not ops.MUL:
        raise ScheduleError(f"{tile}: what is summed is no product of two operands")
    for a, b in (value.src, value.src[::-1]):
        if (
            (unit.columns is None or (unit.columns in b.ranges and unit.columns not in a.ranges))
            and (unit.rows is None or (unit.rows in a.ranges and unit.rows not in b.ranges))
        ):  # fmt: skip
            return a, b, masks
    raise ScheduleError(
        f"{tile}: one operand of the product must vary with {tile.rows or 'rows'} alone, the other with "
        f"{tile.columns or 'columns'} alone"
    )


def _product(a: UOp, b: UOp, masks: list[UOp], summed: UOp, unit: Unit, tile: TensorTile) -> UOp:
    """Return the sum of the products of two operands as matrix instructions.

    An operand of int8 where the instruction takes uint8, or the other way round, is moved by 128, and what
    that adds is taken off again: sum((a + 128) * b) - sum(128 * b).  Integers wrap, so that it is exact.
    """
    core = unit.core
    left = operand(a, dtypes.as_dtype(core.dtype_in))
    right = operand(b, dtypes.as_dtype(core.dtype_b or core.dtype_in))
    for x, found, dtype in ((a, left, core.dtype_in), (b, right, core.dtype_b or core.dtype_in)):
        if found is None:
            raise ScheduleError(
                f"{tile}: {core.name} takes {dtype}, which does not hold every value of an operand made of "
                f"{_innermost(x).dtype}"
            )
    assert left is not None and right is not None
    (a, moved_a), (b, moved_b) = left, right
    if moved_a and moved_b:
        raise ScheduleError(f"{tile}: both operands have the other sign than {core.name} takes")
    for mask in masks:
        a, b = _zeroed(a, mask, moved_a), _zeroed(b, mask, moved_b)
    out = dtypes.as_dtype(core.dtype_out)

    def multiplied(x: UOp, y: UOp) -> UOp:
        return reduce(ops.ADD, UOp(ops.WMMA, out, (x, y), core.name), summed.src[1:])

    total = multiplied(a, b)
    if moved_a:
        total = alu(ops.SUB, total, multiplied(const(moved_a, a.dtype), b))
    if moved_b:
        total = alu(ops.SUB, total, multiplied(a, const(moved_b, b.dtype)))
    return cast(total, summed.dtype)


def _present(pairs: Sequence[tuple[UOp | None, UOp]]) -> dict[UOp, UOp]:
    return {r: x for r, x in pairs if r is not None}


def _zeroed(x: UOp, mask: UOp, moved: int) -> UOp:
    """Return an operand that stands for 0 where a mask is false."""
    if not moved and zero_outside(x, mask):
        return x
    return UOp(ops.WHERE, x.dtype, (mask, x, const(moved, x.dtype)))


def _innermost(x: UOp) -> UOp:
    while x.op is ops.CAST:
        x = x.src[0]
    return x


# -- operands ------------------------------------------------------------------------------------------------


def holds(dtype: DType, other: DType) -> bool:
    """Whether `dtype` has every value of `other`."""
    if other.kind == "bool" or dtype is other:
        return True
    if dtype.is_float and other.is_float:
        return dtype.mantissa >= other.mantissa and dtype.exponent >= other.exponent
    if dtype.is_float and other.is_int:
        return other.bits - (other.kind == "int") <= dtype.mantissa + 1 and other.bits < 1 << (
            dtype.exponent - 1
        )
    return dtype.is_int and other.is_int and dtype.min <= other.min and other.max <= dtype.max


def operand(x: UOp, dtype: DType) -> tuple[UOp, int] | None:
    """Return (the same numbers as `x` plus some constant, in `dtype`; that constant).

    None if `dtype` does not hold them.  The constant is 0, or 128 or -128 for bytes of the other sign.
    """
    if x.dtype is dtype:
        return x, 0
    if x.op is ops.CONST:
        return (const(x.arg, dtype), 0) if _has_value(dtype, x.arg) else None
    if x.op is ops.WHERE:
        arms = [operand(arm, dtype) for arm in x.src[1:]]
        first, second = arms
        if first is None or second is None:
            return None
        moved = first[1] or second[1]
        values = [arm if by == moved else _moved(arm, moved) for arm, by in (first, second)]
        if any(v is None for v in values):
            return None
        return UOp(ops.WHERE, dtype, (x.src[0], *[v for v in values if v is not None])), moved
    if x.op is ops.CAST and x.src[0].dtype.kind != "index" and holds(x.dtype, x.src[0].dtype):
        return operand(x.src[0], dtype)
    if holds(dtype, x.dtype):
        return cast(x, dtype), 0
    if x.dtype.is_int and dtype.is_int and x.dtype.bits == dtype.bits == 8:
        sign = const(-128 if x.dtype.kind == "int" else 128, x.dtype)
        flipped = alu(ops.BITCAST, alu(ops.XOR, x, sign), dtype=dtype)
        return flipped, 128 if dtype.kind == "uint" else -128
    return None


def _has_value(dtype: DType, value: bool | int | float) -> bool:
    if dtype.is_float:
        return value == round_float(value, dtype)
    return float(value).is_integer() and dtype.min <= value <= dtype.max


def _moved(x: UOp, by: int) -> UOp | None:
    """Return a constant moved by a number; None if it is no constant, or leaves its dtype."""
    if x.op is not ops.CONST or not _has_value(x.dtype, x.arg + by):
        return None
    return const(x.arg + by, x.dtype)


# -- layouts -------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _weights(table: Table) -> tuple[tuple[int, int], list[tuple[int, int]], list[tuple[int, int]]]:
    """Return what lane 0's element 0 is, and what each bit of the lane's and the element's number adds."""
    lanes, elements = len(table), len(table[0])
    if lanes & (lanes - 1) or elements & (elements - 1):
        raise ScheduleError(f"a layout of {lanes} lanes with {elements} elements: both must be powers of two")
    base = table[0][0]

    def added(at: tuple[int, int]) -> tuple[int, int]:
        return at[0] - base[0], at[1] - base[1]

    by_lane = [added(table[1 << n][0]) for n in range(lanes.bit_length() - 1)]
    by_element = [added(table[0][1 << n]) for n in range(elements.bit_length() - 1)]
    for lane, row in enumerate(table):
        for element, at in enumerate(row):
            for axis in (0, 1):
                total = base[axis]
                total += sum(w[axis] for n, w in enumerate(by_lane) if lane >> n & 1)
                total += sum(w[axis] for n, w in enumerate(by_element) if element >> n & 1)
                if total != at[axis]:
                    raise ScheduleError(
                        f"a layout's element {element} of lane {lane} is no sum over the bits of both numbers"
                    )
    return base, by_lane, by_element


def index_map(table: Table, lane: UOp, element: UOp) -> tuple[UOp, UOp]:
    """Return the two indices of an element of a fragment.

    Parameters
    ----------
    table
        A layout of a `TensorCore`.
    lane, element
        Ranges, or the constant 0 where there is but one.

    Raises
    ------
    ScheduleError
        If the layout is no sum over the bits of lane and element number.
    """
    base, by_lane, by_element = _weights(table)
    first, second = (
        combine(
            [*_digits(lane, [w[axis] for w in by_lane]), *_digits(element, [w[axis] for w in by_element])],
            base[axis],
        )
        for axis in (0, 1)
    )
    return first, second


def _digits(x: UOp, weights: Sequence[int]) -> list[tuple[UOp, int]]:
    """Return (digit of a number, its weight) for runs of bits whose weights double."""
    if x is ZERO:
        return []
    pairs = []
    start = 0
    while start < len(weights):
        stop = start + 1
        while stop < len(weights) and weights[stop] == 2 * weights[stop - 1]:
            stop += 1
        if weights[start]:
            pairs.append((divmod_(divmod_(x, 1 << start)[0], 1 << (stop - start))[1], weights[start]))
        start = stop
    return pairs
