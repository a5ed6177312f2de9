"""The one node type of the IR: `UOp(op, dtype, src, arg)`, immutable and interned.

Two UOps are equal exactly when they are the same object, so comparing, hashing and memoising cost nothing.  The intern
table holds nodes weakly: a node lives as long as something refers to it.  Derived facts that passes ask for all the
time are computed once, when a node is made: the shape of graph nodes, the free ranges and the bounds of kernel nodes.
"""

from __future__ import annotations

import math
import struct
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

# The weakref module's own helper: removes a key only if its reference is dead, atomically under the GIL.
from _weakref import _remove_dead_weakref

from ..errors import InternalError
from . import dtypes, ops
from .dtypes import DType
from .ops import Op

#: A dimension is an int, or (a leading one only) an index expression of a variable bound at launch.
Shape = tuple[int, ...]
Ranges = frozenset["UOp"]
NO_RANGES: Ranges = frozenset()


class _Ref(weakref.ref["UOp"]):
    __slots__ = ("key",)
    key: Any


_table: dict[Any, _Ref] = {}


def _forget(ref: _Ref) -> None:
    _remove_dead_weakref(_table, ref.key)


class UOp:
    """One operation with its operands.

    Attributes
    ----------
    op, dtype, src, arg
        What it computes.  Together they are its identity.
    shape
        Shape of a graph node; None at the other levels.
    ranges
        The free ranges of a kernel node: those that its value varies with.
    vmin, vmax
        Bounds of an index-typed node (inclusive); 0 elsewhere.
    data
        What a BUFFER node keeps alive (the runtime's buffer); not part of the identity.
    """

    __slots__ = ("__weakref__", "_key", "arg", "data", "dtype", "op", "ranges", "shape", "src", "vmax", "vmin")
    op: Op
    dtype: DType
    src: tuple[UOp, ...]
    arg: Any
    shape: Shape
    ranges: Ranges
    vmin: int
    vmax: int
    data: Any

    def __new__(cls, op: Op, dtype: DType, src: tuple[UOp, ...] = (), arg: Any = None) -> UOp:
        # Floats are told apart by their bits (-0.0 from 0.0, NaN equal to itself); the dtype tells 1 from True and 1.0.
        key = (op, dtype, src, arg) if type(arg) is not float else (op, dtype, src, struct.pack("d", arg))
        ref = _table.get(key)
        if ref is not None:
            found = ref()
            if found is not None:
                return found
        self = object.__new__(cls)
        _set_op(self, op)
        _set_dtype(self, dtype)
        _set_src(self, src)
        _set_arg(self, arg)
        _infer(self, op, src, arg)
        while True:
            ref = _Ref(self, _forget)
            ref.key = key
            other = _table.setdefault(key, ref)
            if other is ref:
                return self
            found = other()  # another thread was first, or a dead entry is about to be removed
            if found is not None:
                return found
            _remove_dead_weakref(_table, key)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"UOps are immutable; build a new one instead of setting {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        from .text import dump, parse

        return parse, (dump(self),)

    def __repr__(self) -> str:
        from .text import dump

        return dump(self)

    def replace(self, src: tuple[UOp, ...]) -> UOp:
        """Return this node with other operands."""
        return self if src == self.src else UOp(self.op, self.dtype, src, self.arg)


_set_op = UOp.op.__set__  # type: ignore[attr-defined]
_set_dtype = UOp.dtype.__set__  # type: ignore[attr-defined]
_set_src = UOp.src.__set__  # type: ignore[attr-defined]
_set_arg = UOp.arg.__set__  # type: ignore[attr-defined]
_set_shape = UOp.shape.__set__  # type: ignore[attr-defined]
_set_ranges = UOp.ranges.__set__  # type: ignore[attr-defined]
_set_vmin = UOp.vmin.__set__  # type: ignore[attr-defined]
_set_vmax = UOp.vmax.__set__  # type: ignore[attr-defined]
_set_data = UOp.data.__set__  # type: ignore[attr-defined]
_set_key = UOp._key.__set__  # type: ignore[attr-defined]


def attach(node: UOp, data: Any) -> None:
    """Make a BUFFER node own `data`, the runtime's buffer, for as long as the node lives."""
    _set_data(node, data)


def union(src: Iterable[UOp]) -> Ranges:
    """Return the free ranges of several nodes together."""
    found = NO_RANGES
    for s in src:
        r = s.ranges
        if r and r is not found:
            found = found | r if found else r
    return found


def _infer(u: UOp, op: Op, src: tuple[UOp, ...], arg: Any) -> None:
    """Set the derived attributes of a new node."""
    shape: Any = None
    lo = hi = 0
    ranges = NO_RANGES
    if src:
        first = src[0]
        shape = first.shape
        for s in src:
            r = s.ranges
            if r and r is not ranges:
                ranges = ranges | r if ranges else r
        special = _INFER.get(op)
        if special is not None:
            shape, ranges, lo, hi = special(u, src, arg, shape, ranges)
        elif shape is None and u.dtype is dtypes.index:
            raise InternalError(f"{op} has index dtype but no bounds rule")
    else:
        special = _INFER.get(op)
        if special is not None:
            shape, ranges, lo, hi = special(u, src, arg, shape, ranges)
    _set_shape(u, shape)
    _set_ranges(u, ranges)
    _set_vmin(u, lo)
    _set_vmax(u, hi)
    _set_data(u, None)
    _set_key(u, None)


# Each returns (shape, free ranges, lowest, highest).
Facts = tuple[Any, Ranges, int, int]


def _buffer(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return arg[1], ranges, 0, 0


def _const(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return (), ranges, 0, 0


def _shape_arg(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return arg, ranges, 0, 0


def _iota(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return (arg,), ranges, 0, 0


def _permute(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return tuple(shape[a] for a in arg), ranges, 0, 0


def _pad(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return tuple(n + a + b for n, (a, b) in zip(shape, arg, strict=True)), ranges, 0, 0


def _shrink(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return tuple(e - b for b, e in arg), ranges, 0, 0


def _reduce_axis(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    axes = arg[1]
    return tuple(1 if i in axes else n for i, n in enumerate(shape)), ranges, 0, 0


def _gather(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return src[1].shape + shape[len(src) - 1 :], ranges, 0, 0


def _range(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    size = arg[1]
    return None, frozenset((u,)), 0, (src[0].vmax if size is None else size) - 1


def _var(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return (), ranges, arg[1], arg[2]


def _affine(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    lo = hi = arg[0]
    for a, k in zip(src, arg[1], strict=True):
        if k > 0:
            lo += k * a.vmin
            hi += k * a.vmax
        else:
            lo += k * a.vmax
            hi += k * a.vmin
    return None, ranges, lo, hi


def _idiv(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return None, ranges, src[0].vmin // arg, src[0].vmax // arg


def _imod(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return None, ranges, 0, arg - 1


def _imul(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    a, b = src
    corners = [x * y for x in (a.vmin, a.vmax) for y in (b.vmin, b.vmax)]
    return None, ranges, min(corners), max(corners)


def _ivalue(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return None, ranges, arg[0], arg[1]


def _reduce(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return None, src[0].ranges.difference(src[1:]), 0, 0


def _kernel(u: UOp, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return None, ranges, 0, 0


_INFER: dict[Op, Any] = {
    ops.BUFFER: _buffer, ops.CONST: _const, ops.IOTA: _iota, ops.RESHAPE: _shape_arg, ops.EXPAND: _shape_arg,
    ops.PERMUTE: _permute, ops.PAD: _pad, ops.SHRINK: _shrink, ops.REDUCE_AXIS: _reduce_axis, ops.GATHER: _gather,
    ops.RANGE: _range, ops.VAR: _var, ops.AFFINE: _affine, ops.IDIV: _idiv, ops.IMOD: _imod, ops.IMUL: _imul,
    ops.IVALUE: _ivalue, ops.REDUCE: _reduce, ops.LOAD: _kernel, ops.STORE: _kernel, ops.GE0: _kernel, ops.ALL: _kernel,
}  # fmt: skip


def sort_key(u: UOp) -> tuple[Any, ...]:
    """Return a structural key that orders index expressions the same way in every process."""
    key = u._key
    if key is None:
        if u.op is ops.RANGE or u.op is ops.VAR:
            name = u.arg[0]
            digits = name.lstrip("abcdefghijklmnopqrstuvwxyz_")
            key = (0, len(name) - len(digits), name if not digits.isdigit() else "", int(digits) if digits.isdigit() else 0, name)
        else:
            key = (1, u.op.name, repr(u.arg), *[sort_key(s) for s in u.src])
        _set_key(u, key)
    return key  # type: ignore[no-any-return]


def toposort(roots: Iterable[UOp]) -> list[UOp]:
    """Return every node that `roots` reach, operands before users, in a deterministic order; without recursion."""
    seen: set[UOp] = set()
    out: list[UOp] = []
    for root in roots:
        if root in seen:
            continue
        stack: list[tuple[UOp, bool]] = [(root, False)]
        while stack:
            node, done = stack.pop()
            if done:
                out.append(node)
                continue
            if node in seen:
                continue
            seen.add(node)
            stack.append((node, True))
            for s in reversed(node.src):
                if s not in seen:
                    stack.append((s, False))
    return out


def const(value: bool | int | float, dtype: DType) -> UOp:
    """Return the scalar constant `value` in `dtype`: integers wrap, floats round to the dtype.

    A vector dtype gives the scalar constant of its element type.
    """
    scalar = dtype.scalar
    kind = scalar.kind
    if kind == "float":
        value = round_float(float(value), scalar)
    elif kind == "bool":
        value = bool(value)
    elif kind == "index":
        return UOp(ops.AFFINE, dtypes.index, (), (int(value), ()))
    else:
        value = wrap(int(value), scalar)
    return UOp(ops.CONST, scalar, (), value)


def wrap(value: int, dtype: DType) -> int:
    """Return `value` modulo 2**bits, in the range of `dtype`."""
    bits = dtype.bits
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "int" and value >> (bits - 1) else value


def round_float(value: float, dtype: DType) -> float:
    """Return the double `value` rounded to `dtype` (ties to even), as a double."""
    if value != value:
        return math.nan
    if dtype is dtypes.float64 or value == 0.0 or value in (math.inf, -math.inf):
        if dtype is dtypes.float8_e4m3 and value in (math.inf, -math.inf):
            return math.nan
        return value
    if dtype is dtypes.float32:
        try:
            return struct.unpack("f", struct.pack("f", value))[0]  # type: ignore[no-any-return]
        except OverflowError:
            return math.copysign(math.inf, value)
    import numpy as np

    with np.errstate(over="ignore"):
        return float(np.asarray(value, dtypes.to_numpy(dtype)))


def alu(op: Op, *src: UOp, dtype: DType | None = None) -> UOp:
    """Return an elementwise node; comparisons give bool, everything else the last operand's dtype."""
    if dtype is None:
        dtype = src[-1].dtype
        if op in ops.COMPARISONS:
            dtype = dtypes.bool_.vector(dtype.lanes)
    return UOp(op, dtype, src, None)


def numel(shape: Sequence[int]) -> int:
    """Return the number of elements of an array of `shape`."""
    return math.prod(shape)
