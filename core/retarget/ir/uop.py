"""The one node type of the IR: `UOp(op, dtype, src, arg)`, immutable and interned.

Two UOps are equal exactly when they are the same object, so comparing, hashing and memoising cost nothing.
The intern table holds nodes weakly: a node lives as long as something refers to it.  Derived facts that
passes ask for all the time are computed once, when a node is made: the shape of graph nodes, the free ranges
and the bounds of kernel nodes.
"""

from __future__ import annotations

import math
import struct
import weakref

# The weakref module's own helper: removes a key only if its reference is dead, atomically under the GIL.
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import InternalError
from . import dtypes, ops
from .dtypes import DType
from .ops import Op
from .sizes import SizeArithmetic

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


class _Fields:
    """What a UOp holds.  A new node is one of these, whose attributes can be set; then it becomes a `UOp`."""

    __slots__ = (
        "__weakref__", "_key", "arg", "data", "dtype", "op", "ranges", "shape", "src", "vmax", "vmin",
    )  # fmt: skip
    op: Op
    dtype: DType
    src: tuple[UOp, ...]
    arg: Any
    shape: Shape
    ranges: Ranges
    vmin: int
    vmax: int
    data: Any
    _key: Any


class UOp(_Fields, SizeArithmetic):
    """One operation with its operands.

    Attributes
    ----------
    op, dtype, src, arg
        What it computes.  Together they are its identity.
    shape
        Shape of a graph node, () of a scalar constant; None at the other levels.
    ranges
        The free ranges of a kernel node: those that its value varies with.
    vmin, vmax
        Bounds of an index-typed node (inclusive); 0 elsewhere.
    data
        What a BUFFER node keeps alive (the runtime's buffer); not part of the identity.
    """

    __slots__ = ()

    def __new__(cls, op: Op, dtype: DType, src: tuple[UOp, ...] = (), arg: Any = None) -> UOp:
        key: tuple[Any, ...]
        if type(arg) is float:  # told apart by its bits, -0.0 from 0.0; there is one NaN
            if arg != arg:
                arg = math.nan
            key = (op, dtype, src, struct.pack("d", arg))
        else:  # the dtype tells 1 from True
            key = (op, dtype, src, arg)
        ref = _table.get(key)
        if ref is not None:
            found = ref()
            if found is not None:
                return found
        draft = _new(_Fields)
        draft.op = op
        draft.dtype = dtype
        draft.src = src
        draft.arg = arg
        draft.data = draft._key = None
        _infer(draft, op, src, arg)
        draft.__class__ = UOp
        self: UOp = draft
        ref = _Ref(self, _forget)
        ref.key = key
        while True:
            other = _table.setdefault(key, ref)
            if other is ref:
                return self
            found = other()  # another thread was first, or a dead entry is about to be removed
            if found is not None:
                return found
            _remove_dead_weakref(_table, key)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"UOps are immutable; build a new one instead of setting {name!r}")

    def __copy__(self) -> UOp:
        return self

    def __deepcopy__(self, memo: Any) -> UOp:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        from .text import dump, parse

        return parse, (dump(self),)

    def __str__(self) -> str:
        from .text import dump

        return dump(self)

    def __repr__(self) -> str:
        from .text import expr

        return f"<{self.op.name} {self.dtype!r} {expr(self)}>"

    def replace(self, src: tuple[UOp, ...]) -> UOp:
        """Return this node with other operands."""
        return self if src == self.src else UOp(self.op, self.dtype, src, self.arg)


_new: Any = object.__new__
_set_key: Any = _Fields.__dict__["_key"].__set__


def new_buffer(dtype: DType, arg: tuple[int, tuple[int, ...], str], data: Any) -> UOp:
    """Return a BUFFER node that owns `data`, the runtime's buffer, for as long as the node lives.

    `arg` starts with a number that no other buffer has, so there is nothing to look up and nothing to infer:
    this is on the path of every evaluation.
    """
    draft = _new(_Fields)
    draft.op = ops.BUFFER
    draft.dtype = dtype
    draft.src = ()
    draft.arg = arg
    draft.data = data
    draft._key = None
    draft.shape = arg[1]
    draft.ranges = NO_RANGES
    draft.vmin = draft.vmax = 0
    draft.__class__ = UOp
    node: UOp = draft
    ref = _Ref(node, _forget)
    ref.key = (ops.BUFFER, dtype, (), arg)
    _table[ref.key] = ref
    return node


def union(src: Iterable[UOp]) -> Ranges:
    """Return the free ranges of several nodes together."""
    found = NO_RANGES
    for s in src:
        r = s.ranges
        if r and r is not found:
            found = found | r if found else r
    return found


def _infer(u: _Fields, op: Op, src: tuple[UOp, ...], arg: Any) -> None:
    """Set the derived attributes of a new node: by default, the shape and the free ranges of its operands."""
    shape: Any = None
    ranges = NO_RANGES
    if src:
        shape = src[0].shape
        for s in src:
            r = s.ranges
            if r and r is not ranges:
                ranges = ranges | r if ranges else r
            if not shape and s.shape:  # the first operand is a scalar
                shape = s.shape
    special = _INFER.get(op)
    if special is not None:
        u.shape, u.ranges, u.vmin, u.vmax = special(u, src, arg, shape, ranges)
        return
    if u.dtype is dtypes.index and src:
        raise InternalError(f"{op} has index dtype but no bounds rule")
    u.shape = shape
    u.ranges = ranges
    u.vmin = u.vmax = 0


# Each returns (shape, free ranges, lowest, highest).
Facts = tuple[Any, Ranges, int, int]


def _buffer(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return arg[1], ranges, 0, 0


def _const(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return (), ranges, 0, 0


def _shape_arg(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return arg, ranges, 0, 0


def _iota(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return (arg,), ranges, 0, 0


def _permute(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return tuple(shape[a] for a in arg), ranges, 0, 0


def _pad(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return tuple(n + a + b for n, (a, b) in zip(shape, arg, strict=True)), ranges, 0, 0


def _shrink(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return tuple(e - b for b, e in arg), ranges, 0, 0


def _reduce_axis(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    axes = arg[1]
    return tuple(1 if i in axes else n for i, n in enumerate(shape)), ranges, 0, 0


def _gather(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return src[1].shape + shape[len(src) - 1 :], ranges, 0, 0


def _range(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    size = arg[1]
    return None, frozenset((u,)), 0, (src[0].vmax if size is None else size) - 1


def _var(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return (), ranges, arg[1], arg[2]


def _affine(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    lo = hi = arg[0]
    for a, k in zip(src, arg[1], strict=True):
        if k > 0:
            lo += k * a.vmin
            hi += k * a.vmax
        else:
            lo += k * a.vmax
            hi += k * a.vmin
    return None, ranges, lo, hi


def _idiv(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return None, ranges, src[0].vmin // arg, src[0].vmax // arg


def _imod(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return None, ranges, 0, arg - 1


def _imul(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    a, b = src
    corners = [x * y for x in (a.vmin, a.vmax) for y in (b.vmin, b.vmax)]
    return None, ranges, min(corners), max(corners)


def _ivalue(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return None, ranges, arg[0], arg[1]


def _reduce(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return None, src[0].ranges.difference(src[1:]), 0, 0


def _wmma(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    if len(src) != 5:  # linear
        return None, ranges, 0, 0
    a, b, *axes = src
    left, right = a.ranges.difference(axes[:1]), b.ranges.difference(axes[1:2])
    return None, left | right | axes[2].ranges, 0, 0


def _kernel(u: Any, src: Any, arg: Any, shape: Any, ranges: Ranges) -> Facts:
    return None, ranges, 0, 0


_INFER: dict[Op, Any] = {
    ops.BUFFER: _buffer, ops.CONST: _const, ops.IOTA: _iota, ops.RESHAPE: _shape_arg, ops.EXPAND: _shape_arg,
    ops.PERMUTE: _permute, ops.PAD: _pad, ops.SHRINK: _shrink, ops.REDUCE_AXIS: _reduce_axis,
    ops.GATHER: _gather, ops.RANGE: _range, ops.VAR: _var, ops.AFFINE: _affine, ops.IDIV: _idiv,
    ops.IMOD: _imod, ops.IMUL: _imul,
    ops.IVALUE: _ivalue, ops.REDUCE: _reduce, ops.LOAD: _kernel, ops.STORE: _kernel, ops.GE0: _kernel,
    ops.ALL: _kernel, ops.WMMA: _wmma,
}  # fmt: skip


_INDEX_OPS = frozenset({ops.AFFINE, ops.IDIV, ops.IMOD, ops.IMUL, ops.GE0, ops.ALL})


def sort_key(u: UOp) -> tuple[Any, ...]:
    """Return a structural key that orders index expressions the same way in every process."""
    if u._key is None:
        for s in u.src:
            if s._key is None:
                for t in toposort((s,)):
                    if t._key is None:
                        _set_key(t, _key(t))
        _set_key(u, _key(u))
    return u._key  # type: ignore[no-any-return]


def _key(u: UOp) -> tuple[Any, ...]:
    """Return the key of a node whose operands have theirs.  Ranges go by the number in their name first."""
    if u.op is ops.RANGE or u.op is ops.VAR:
        name = u.arg[0]
        digits = name.lstrip("abcdefghijklmnopqrstuvwxyz_")
        rest = (name, repr(u.arg), *[s._key for s in u.src])
        if digits.isdecimal():
            return (0, len(name) - len(digits), "", int(digits), *rest)
        return (0, len(name) - len(digits), name, 0, *rest)
    if u.op in _INDEX_OPS:
        return (1, u.op.name, u.arg, *[s._key for s in u.src])
    # Values under an IVALUE may be deep: a digest is compared in constant time.
    import hashlib

    text = repr((u.op, u.dtype, u.arg, [s._key for s in u.src]))
    return (2, hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def toposort(roots: Iterable[UOp]) -> list[UOp]:
    """Return every node that `roots` reach, operands before users, in a deterministic order; no recursion."""
    done: set[UOp] = set()
    out: list[UOp] = []
    stack = list(roots)
    stack.reverse()
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        waiting = [s for s in node.src if s not in done]
        if waiting:
            waiting.reverse()
            stack += waiting
        else:
            stack.pop()
            done.add(node)
            out.append(node)
    return out


def const(value: bool | int | float, dtype: DType) -> UOp:
    """Return the scalar constant `value` in `dtype`: integers wrap, floats round to the dtype.

    A vector dtype gives the scalar constant of its element type.
    """
    scalar = dtype.scalar
    if scalar is dtypes.index:
        return UOp(ops.AFFINE, scalar, (), (int(value), ()))
    return UOp(ops.CONST, scalar, (), const_value(value, scalar))


def const_value(value: bool | int | float, dtype: DType) -> bool | int | float:
    """Return `value` as a constant of the scalar `dtype` holds it."""
    kind = dtype.kind
    if kind == "float":
        return round_float(value, dtype)
    if kind == "bool":
        return bool(value)
    return wrap(int(value), dtype) if kind != "index" else int(value)


def wrap(value: int, dtype: DType) -> int:
    """Return `value` modulo 2**bits, in the range of `dtype`."""
    bits = dtype.bits
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "int" and value >> (bits - 1) else value


def round_float(value: int | float, dtype: DType) -> float:
    """Return a number rounded once, to nearest even, to the float `dtype`, as a double.

    What is too large becomes infinity, or NaN in float8_e4m3, which has none.
    """
    if not isinstance(value, int):
        value = float(value)
        if value != value:
            return math.nan
        if value in (math.inf, -math.inf):
            return value if dtype is not dtypes.float8_e4m3 else math.nan
        if dtype is dtypes.float64 or value == 0.0:
            return value
        numerator, exponent = int(math.ldexp(math.frexp(value)[0], 53)), math.frexp(value)[1] - 53
    else:
        numerator, exponent = int(value), 0
    size = abs(numerator)
    lowest = 2 - (1 << (dtype.exponent - 1))  # exponent of the smallest normal number
    # The result is a multiple of 2**quantum; subnormal numbers share the smallest normal's.
    quantum = max(size.bit_length() - 1 + exponent, lowest) - dtype.mantissa
    cut = quantum - exponent
    if cut > 0:
        half = 1 << (cut - 1)
        kept, rest = size >> cut, size & ((1 << cut) - 1)
        size = kept + (rest > half or (rest == half and kept & 1))
        exponent = quantum
    if dtype is dtypes.float8_e4m3:
        overflow, beyond = size << max(exponent, 0) > 448, math.nan
    else:
        overflow, beyond = size.bit_length() + exponent > 1 << (dtype.exponent - 1), math.inf
    return math.copysign(beyond if overflow else math.ldexp(size, exponent), numerator)


def numel(shape: Sequence[int]) -> int:
    """Return the number of elements of an array of `shape`."""
    return math.prod(shape)
