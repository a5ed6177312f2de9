"""A group of stored graph nodes as one kernel: an index vector is pushed from each store down to the loads.

Each movement op maps the index vector (a PAD also adds a mask), each reduction opens ranges, a leaf becomes a
load with one index per axis; movement ops vanish.  Ranges are named by position, `r0`, `r1` ...: output axes
first, and a reduction takes the smallest name that is not free in its index vector, so that all passes of a
softmax over one row share one range, and one split of it schedules them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import InternalError, ShapeError
from ..ir import dtypes, ops
from ..ir.index import (
    FALSE,
    TRUE,
    ZERO,
    all_of,
    combine,
    constant,
    divmod_,
    flatten,
    in_bounds,
    irange,
    ishift,
)  # fmt: skip
from ..ir.simplify import alu, cast, where
from ..ir.sizes import shape_text, size_text, upper, variables_in
from ..ir.uop import UOp, const, toposort, union
from .closed import closed_sum
from .kernel import Kernel

Indices = tuple[UOp, ...]


def lower_group(group: Sequence[UOp], stored: Mapping[UOp, object]) -> Kernel:
    """Return the kernel that computes a group of stored nodes of one shape.

    Parameters
    ----------
    group
        The nodes whose values the kernel stores.
    stored
        Every node that has a buffer; those outside the group are loaded.
    """
    return _Lowering(group, stored).run()


def parameter_shape(node: UOp) -> tuple[int, ...]:
    """Return the shape of the buffer behind a stored node or a BUFFER."""
    return node.shape


class _Lowering:
    def __init__(self, group: Sequence[UOp], stored: Mapping[UOp, object]) -> None:
        self.group = tuple(group)
        self.stored = stored
        self.inputs: dict[UOp, UOp] = {}
        self.sizes: dict[str, int] = {}
        self.memo: dict[tuple[UOp, Indices, UOp], UOp] = {}
        self.own = frozenset(group)

    def run(self) -> Kernel:
        shape = self.group[0].shape
        indices: list[UOp] = []
        for n, size in enumerate(shape):
            self.sizes[f"r{n}"] = (
                size  # an axis of size 1 keeps its slot, so that one schedule fits every shape
            )
            indices.append(irange(size, f"r{n}"))
        idx = tuple(indices)
        stores = []
        for n, node in enumerate(self.group):
            target = UOp(ops.PARAM, node.dtype, (), (f"out{n}", node.shape, True))
            value = self.body(node, idx, TRUE)
            stores.append(UOp(ops.STORE, dtypes.void, (target, TRUE, value, *idx)))
        nodes = toposort(stores)
        used = {u for u in nodes if u.op is ops.PARAM}  # a load may have been simplified away
        symbolic = [u for u in nodes if u.op is ops.VAR]
        symbolic += [n for p in nodes if p.op is ops.PARAM for n in p.arg[1] if isinstance(n, UOp)]
        inputs = tuple([n for n, p in self.inputs.items() if p in used])
        return Kernel(tuple(stores), self.group, inputs, tuple(variables_in(symbolic)), nodes)

    def fresh(self, size: int, used: frozenset[UOp]) -> UOp:
        """Return a range with the smallest name that is not free in the index vector or of another size."""
        names = {r.arg[0] for r in used}
        n = 0
        while f"r{n}" in names or self.sizes.get(f"r{n}", size) != size:
            n += 1
        self.sizes[f"r{n}"] = size
        return irange(size, f"r{n}")

    def value(self, node: UOp, idx: Indices, mask: UOp) -> UOp:
        """Return `node`'s element at `idx`; where the mask is false any value will do, but loads give 0."""
        key = (node, idx, mask)
        found = self.memo.get(key)
        if found is None:
            stored = (node in self.stored and node not in self.own) or node.op is ops.BUFFER
            found = self.memo[key] = self.load(node, idx, mask) if stored else self.body(node, idx, mask)
        return found

    def load(self, node: UOp, idx: Indices, mask: UOp) -> UOp:
        if mask is FALSE or 0 in node.shape:
            return const(0, node.dtype)
        source = self.inputs.get(node)
        if source is None:
            name = f"in{len(self.inputs)}"
            source = self.inputs[node] = UOp(ops.PARAM, node.dtype, (), (name, node.shape, False))
        return UOp(ops.LOAD, node.dtype, (source, mask, *idx))

    def body(self, node: UOp, idx: Indices, mask: UOp) -> UOp:
        """Return the element computed, whether or not the node has a buffer."""
        op = node.op
        src = node.src
        if op in ops.ALU_OPS:
            if op is ops.WHERE:
                return where(*[self.value(s, idx, mask) for s in src])
            return alu(op, *[self.value(s, idx, mask) for s in src])
        match op:
            case ops.CAST:
                return cast(self.value(src[0], idx, mask), node.dtype)
            case ops.BITCAST:
                return UOp(op, node.dtype, (self.value(src[0], idx, mask),))
            case ops.CONST:
                return node
            case ops.VAR:
                return index_value(UOp(ops.VAR, dtypes.index, (), node.arg), node.dtype)
            case ops.IOTA:
                return index_value(idx[0], node.dtype)
            case ops.CONTIGUOUS:
                return self.value(src[0], idx, mask)
            case ops.EXPAND:
                return self.value(
                    src[0],
                    tuple([ZERO if n == 1 else i for n, i in zip(src[0].shape, idx, strict=True)]),
                    mask,
                )
            case ops.PERMUTE:
                moved: list[UOp] = [ZERO] * len(idx)
                for i, axis in zip(idx, node.arg, strict=True):
                    moved[axis] = i
                return self.value(src[0], tuple(moved), mask)
            case ops.SHRINK:
                return self.value(
                    src[0], tuple([ishift(i, b) for i, (b, _) in zip(idx, node.arg, strict=True)]), mask
                )
            case ops.FLIP:
                flipped = [
                    ishift(combine(((i, -1),), -1), n) if a in node.arg else i
                    for a, (i, n) in enumerate(zip(idx, node.shape, strict=True))
                ]
                return self.value(src[0], tuple(flipped), mask)
            case ops.RESHAPE:
                return self.value(src[0], reshape_indices(idx, node.shape, src[0].shape), mask)
            case ops.PAD:
                return self.pad(node, idx, mask)
            case ops.GATHER:
                return self.gather(node, idx, mask)
            case ops.REDUCE_AXIS:
                return self.reduce(node, idx, mask)
        raise InternalError(f"{op} cannot be lowered inside a kernel")

    def pad(self, node: UOp, idx: Indices, mask: UOp) -> UOp:
        src = node.src[0]
        moved = tuple([ishift(i, -before) for i, (before, _) in zip(idx, node.arg, strict=True)])
        inside = all_of(*[in_bounds(i, n) for i, n in zip(moved, src.shape, strict=True)])
        if inside is FALSE or 0 in src.shape:
            return const(0, node.dtype)
        value = self.value(src, moved, all_of(mask, inside))
        if inside is TRUE or zero_outside(value, inside):
            return value
        return where(inside, value, const(0, node.dtype))

    def gather(self, node: UOp, idx: Indices, mask: UOp) -> UOp:
        source, *index_nodes = node.src
        rank = len(index_nodes[0].shape)
        inside = TRUE
        moved = []
        for axis, i in enumerate(index_nodes):
            position = self.value(i, idx[:rank], mask)
            size = source.shape[axis]
            if size == 0:
                return const(0, node.dtype)
            if position.op is ops.CONST:
                index = combine((), position.arg)
                inside = all_of(inside, in_bounds(index, size))
                if inside is FALSE:
                    return const(0, node.dtype)
                moved.append(index)
                continue
            if position.op is ops.CAST and position.src[0].dtype is dtypes.index:
                index = position.src[0]  # an index computed from ranges alone: no need to go through a value
                inside = all_of(inside, in_bounds(index, size))
                moved.append(index)
                continue
            inside = all_of(inside, value_in_bounds(position, size))
            moved.append(UOp(ops.IVALUE, dtypes.index, (position,), (0, upper(size) - 1)))
        value = self.value(source, (*moved, *idx[rank:]), all_of(mask, inside))
        if inside is TRUE or zero_outside(value, inside):
            return value
        return where(inside, value, const(0, node.dtype))

    def reduce(self, node: UOp, idx: Indices, mask: UOp) -> UOp:
        op, axes = node.arg
        src = node.src[0]
        used = union(idx) | mask.ranges
        inner = list(idx)
        opened = []
        for axis in axes:
            size = src.shape[axis]
            if size == 0:
                return const(ops.identity(op, node.dtype), node.dtype)
            r = self.fresh(size, used)
            inner[axis] = r
            if r is not ZERO:
                used = used | {r}
                opened.append(r)
        value = self.value(src, tuple(inner), mask)
        if op is ops.ADD and value.op in (ops.WHERE, ops.CAST, ops.MUL):
            for r in list(opened):
                closed = closed_sum(value, r, index_value, value_in_bounds)
                if closed is not None:
                    value = closed
                    opened.remove(r)
        return reduce(op, value, opened)


def reduce(op: ops.Op, value: UOp, ranges: Sequence[UOp]) -> UOp:
    """Return REDUCE over the ranges: those that the value does not vary with leave it where that is exact.

    n integers of one value are n times it (they wrap alike); folding equal values by minimum, maximum, AND or
    OR gives that value.  A sum of n equal floats is rounded n times and the product once, so it stays.
    """
    live = [r for r in ranges if r.op is ops.RANGE]
    if (live and value.dtype.kind != "float") or op in (ops.MAXIMUM, ops.MINIMUM):
        kept = []
        for r in live:
            if r in value.ranges:
                kept.append(r)
            else:
                repeated = _repeated(op, value, r.src[0] if r.src else r.arg[1])
                if repeated is None:
                    kept.append(r)
                else:
                    value = repeated
        live = kept
    if not live:
        return value
    return UOp(ops.REDUCE, value.dtype, (value, *live), op)


def _repeated(op: ops.Op, value: UOp, count: int | UOp) -> UOp | None:
    """Return the fold of `count` equal values, or None where no short form is exact."""
    dtype = value.dtype
    if op in (ops.MAXIMUM, ops.MINIMUM, ops.AND, ops.OR) or (dtype.kind == "bool" and op is not ops.XOR):
        return value  # sums of bool are disjunctions, products conjunctions
    if op is ops.ADD:
        if isinstance(count, UOp):
            return alu(ops.MUL, value, index_value(count, dtype)) if count.vmax <= dtype.max else None
        wrapped = count & ((1 << dtype.bits) - 1)
        if dtype.kind == "int" and wrapped > dtype.max:
            wrapped -= 1 << dtype.bits
        return alu(ops.MUL, value, const(wrapped, dtype))
    if op is ops.XOR and isinstance(count, int):
        return value if count % 2 else const(ops.identity(op, dtype), dtype)
    return None


def index_value(index: UOp, dtype: dtypes.DType) -> UOp:
    """Return an index expression as a value of `dtype`."""
    c = constant(index)
    return const(c, dtype) if c is not None else UOp(ops.CAST, dtype, (index,))


def value_in_bounds(position: UOp, size: int | UOp) -> UOp:
    """Return the mask 0 <= position < size for an integer value."""
    dtype = position.dtype
    mask = TRUE
    if dtype.kind == "int":
        mask = alu(ops.CMPLE, const(0, dtype), position)
    if isinstance(size, UOp):
        wide = position if size.vmax <= dtype.max else cast(position, dtypes.int64)
        mask = all_of(mask, alu(ops.CMPLT, wide, index_value(size, wide.dtype)))
    elif size <= dtype.max:
        mask = all_of(mask, alu(ops.CMPLT, position, const(size, dtype)))
    return mask


def zero_outside(value: UOp, mask: UOp) -> bool:
    """Whether a value is certainly 0 where `mask` is false, because its load is masked."""
    while value.op is ops.CAST:
        value = value.src[0]
    if value.op is not ops.LOAD:
        return False
    have = value.src[1]
    parts = have.src if have.op is ops.ALL else (have,)
    return all(m in parts for m in (mask.src if mask.op is ops.ALL else (mask,)))


def reshape_indices(idx: Indices, shape: Sequence[int], source: Sequence[int]) -> Indices:
    """Return the indices into `source` of the element at `idx` of its reshape to `shape`.

    Axes that agree from the left are passed through; only the rest goes through the flat index.
    """
    if 0 in source:
        return tuple([ZERO] * len(source))
    # Drop axes of length 1 on both sides first: they hold no information and would hide axes that agree.
    left = [(i, n) for i, n in zip(idx, shape, strict=True) if n != 1]
    right = [n for n in source if n != 1]
    out: list[UOp] = []
    a = b = 0
    while a < len(left) and b < len(right):
        # Take the shortest runs with equal products: they reshape into each other on their own.
        i, j = a + 1, b + 1
        p, q = left[a][1], right[b]
        while p != q:
            try:
                is_less = p < q
            except ShapeError:  # it depends on a variable: what is left reshapes as a whole
                i, j = len(left), len(right)
                break
            if is_less:
                p *= left[i][1]
                i += 1
            else:
                q *= right[j]
                j += 1
        if i - a == 1 and j - b == 1:
            out.append(left[a][0])
        else:
            flat = flatten([x for x, _ in left[a:i]], [n for _, n in left[a:i]])
            strides = [1]
            for n in reversed(right[b + 1 : j]):
                strides.append(strides[-1] * n)
            for stride in reversed(strides):
                if type(stride) is not int:
                    raise ShapeError(
                        f"the reshape of {shape_text(source)} to {shape_text(shape)} divides by "
                        f"{size_text(stride)}, which is only bound at launch; keep the symbolic axis first"
                    )
                q_index, flat = divmod_(flat, stride)
                out.append(q_index)
        a, b = i, j
    rest = iter(out)
    return tuple([ZERO if n == 1 else next(rest) for n in source])
