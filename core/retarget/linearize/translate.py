"""Kernel expressions as linear uops: vector types, flat addresses, gates, and only ops that the target has.

Translation knows nothing of loops: the same kernel node always becomes the same linear uop.  Where that uop
is executed is the business of `place`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..codegen.legalize import Legalizer
from ..errors import InternalError, ScheduleError
from ..ir import dtypes, ops
from ..ir.dtypes import DType
from ..ir.index import FALSE, TRUE, combine, conjuncts, constant, flatten, range_size, terms
from ..ir.simplify import gep, vectorize
from ..ir.uop import UOp, const
from .fragments import aligned, elements, runs
from .grid import Grid
from .images import LANES, TEXEL, Image, at_lane, lanes_of, whole_texels

#: Axis kinds that loops of another kind are emitted for: parallel axes are loops on a target without a grid.
_EMITTED = {"own": "unroll", "chunk": "loop", "grid": "loop", "block": "loop", "warp": "loop"}
#: Axis kinds that are elements of a vector.
UNLOOPED = ("vector", "fragment")
_INT32_MAX = (1 << 31) - 1


def vector_range(u: UOp) -> UOp | None:
    """Return the axis of lanes or of a fragment's elements that a kernel expression varies with, if any."""
    for r in u.ranges:
        if r.arg[2] in UNLOOPED:
            return r
    return None


def needs_int64(nodes: list[UOp], flat: dict[UOp, UOp]) -> bool:
    """Whether a flat address or an index expression among these nodes can leave int32.

    `flat` is filled with the flat index of each load and store.
    """
    return any(
        ((u.op is ops.LOAD or u.op is ops.STORE) and _magnitude(flat_index(u, flat)) > _INT32_MAX)
        or (u.dtype is dtypes.index and _magnitude(u) > _INT32_MAX)
        for u in nodes
    )


def flat_index(access: UOp, flat: dict[UOp, UOp]) -> UOp:
    """Return the flat index of a load or a store, from `flat` if it is there."""
    found = flat.get(access)
    if found is None:
        idx = access.src[2:] if access.op is ops.LOAD else access.src[3:]
        found = flat[access] = flatten(idx, access.src[0].arg[1])
    return found


def _magnitude(x: UOp) -> int:
    """Bound every partial sum of an index expression."""
    c, parts = terms(x)
    return abs(c) + sum(abs(k) * max(abs(a.vmin), abs(a.vmax)) for a, k in parts)


class Translator:
    """Translates the expressions of one kernel for one target.

    Parameters
    ----------
    legalize
        Expands elementwise ops into those that the target has.
    index
        int32 or int64: the dtype of index arithmetic.
    order
        Range -> position in the loop nest; sums of index terms follow it, so that their outer parts can be
        hoisted.
    flat
        Flat indices of loads and stores that are known already.
    grid
        What became of parallel axes.
    images
        Parameters that are images.
    """

    def __init__(
        self,
        legalize: Legalizer,
        index: DType,
        order: Mapping[UOp, int],
        grid: Grid | None = None,
        flat: dict[UOp, UOp] | None = None,
        images: Mapping[UOp, Image] | None = None,
    ) -> None:
        self.legalize = legalize
        self.index = index
        self.order = order
        self.grid = grid or Grid()
        self.images = images or {}
        self.memo: dict[UOp, UOp] = dict(self.grid.special)
        self._flat: dict[UOp, UOp] = {} if flat is None else flat
        #: REDUCE -> (accumulator array, kernel indices of its element); filled in as accumulators are placed.
        self.accumulators: dict[UOp, tuple[UOp, tuple[UOp, ...]]] = {}
        #: Array of a stage -> the array of vectors that it became, if whole vectors are all that is accessed.
        self.vectors: dict[UOp, UOp] = {}

    def flat_index(self, access: UOp) -> UOp:
        """Return the flat index of a load or a store."""
        return flat_index(access, self._flat)

    # -- values ----------------------------------------------------------------------------------------------

    def __call__(self, u: UOp) -> UOp:
        """Return the linear uop of a value or mask."""
        found = self.memo.get(u)
        if found is None:
            found = self.memo[u] = self._translate(u)
        return found

    def wide(self, u: UOp, lanes: int) -> UOp:
        """Return the linear uop of `u` with `lanes` lanes, broadcast if it is the same in all of them."""
        return self.broadcast(self(u), lanes)

    def broadcast(self, x: UOp, lanes: int) -> UOp:
        if lanes == 1 or x.dtype.lanes == lanes:
            return x
        return UOp(ops.BROADCAST, x.dtype.vector(lanes), (x,))

    def _translate(self, u: UOp) -> UOp:
        op = u.op
        if op is ops.CONST:
            return u
        if op is ops.LOAD:
            return self.load(u)
        if op is ops.REDUCE:
            found = self.accumulators.get(u)
            if found is not None:
                array, idx = found
                return UOp(ops.LOAD, array.dtype, (array, self.flat(idx, array.arg[1])), 1)
            if u.src[1].arg[2] == "warp" and u.src[1] in self.grid.shuffles:
                return self.shuffle(u)
            if u.src[1].arg[2] != "vector":
                raise InternalError("a reduction is read before it has an accumulator")
            inner = self(u.src[0])
            if inner.dtype.lanes == 1:  # the folded value does not vary with the vector axis
                inner = self.broadcast(inner, range_size(u.src[1]))
            return self.fold(u.arg, inner)
        if op is ops.WMMA:
            dtype = u.dtype.vector(1 if u.src[4].op is not ops.RANGE else range_size(u.src[4]))
            return self.wmma(u, self.broadcast(const(ops.identity(ops.ADD, u.dtype), u.dtype), dtype.lanes))
        if op is ops.GE0 or op is ops.ALL:
            return self.mask(u)
        v = vector_range(u)
        lanes = 1 if v is None else range_size(v)
        dtype = u.dtype.vector(lanes)
        if op is ops.CAST and u.src[0].dtype is dtypes.index:
            return self.legalize(op, dtype, (self.broadcast(self.position(u.src[0]), lanes),))
        if op is ops.WHERE:
            condition = self(u.src[0])
            arms = (self.wide(u.src[1], lanes), self.wide(u.src[2], lanes))
            return self.legalize(op, dtype, (condition, *arms))
        return self.legalize(op, dtype, tuple([self.wide(s, lanes) for s in u.src]))

    def fold(self, op: ops.Op, x: UOp) -> UOp:
        """Return the lanes of `x` folded to a scalar, by halves if the target lacks the dtype."""
        scalar = x.dtype.scalar
        if self.legalize.computes(scalar):
            return UOp(ops.FOLD, scalar, (x,), op)
        while x.dtype.lanes > 1:
            half = x.dtype.lanes // 2
            low, high = (gep(x, tuple(range(n, n + half))) for n in (0, half))
            x = self.legalize(op, scalar.vector(half), (low, high))
        return x

    def shuffle(self, u: UOp) -> UOp:
        """Return a reduction over threads of a warp: each meets its partner at every distance."""
        x = self(u.src[0])
        for r in u.src[1:]:
            distance = self.grid.shuffles[r] * range_size(r) // 2
            while distance >= self.grid.shuffles[r]:
                x = self.legalize(u.arg, x.dtype, (x, UOp(ops.SHUFFLE, x.dtype, (x,), distance)))
                distance //= 2
        return x

    def image_load(self, u: UOp, image: Image) -> UOp:
        """Return the elements of an image that a load reads, lane by lane of whole texels."""
        buffer, mask, *idx = u.src
        if buffer.arg[2]:
            raise ScheduleError(f"image={buffer.arg[0]}: an image that is written cannot be read back")
        v = vector_range(u)
        elements = []
        for n in range(lanes_of(v)):
            here = at_lane(mask, v, n)
            if here is FALSE:
                elements.append(const(0.0, dtypes.float32))
                continue
            x, y, lane = image.coordinates([at_lane(i, v, n) for i in idx], buffer.arg[1])
            gate = () if here is TRUE else (self.mask(here),)
            texel = UOp(ops.IMAGE_LOAD, TEXEL, (image.uop, self.position(x), self.position(y), *gate))
            elements.append(self.lane(texel, lane))
        value = vectorize(elements)
        wanted = u.dtype.vector(len(elements))
        return value if value.dtype is wanted else self.legalize(ops.CAST, wanted, (value,))

    def lane(self, texel: UOp, lane: UOp) -> UOp:
        """Return one lane of a texel; a lane that varies is chosen by comparison."""
        known = constant(lane)
        if known is not None:
            return gep(texel, (known,))
        number = self.position(lane)
        value = gep(texel, (LANES - 1,))
        for n in reversed(range(LANES - 1)):
            here = UOp(ops.CMPEQ, dtypes.bool_, (number, const(n, self.index)))
            value = self.legalize(ops.WHERE, value.dtype, (here, gep(texel, (n,)), value))
        return value

    def image_stores(self, s: UOp, image: Image) -> list[UOp]:
        """Return the stores of whole texels that a store to an image is."""
        buffer, mask, value, *idx = s.src
        v = vector_range(s)
        lanes = [
            (*image.coordinates([at_lane(i, v, n) for i in idx], buffer.arg[1]), at_lane(mask, v, n))
            for n in range(lanes_of(v))
        ]
        texels = whole_texels(lanes, buffer.arg[0])
        wide = self.wide(value, len(lanes))
        if wide.dtype.scalar is not dtypes.float32:
            wide = self.legalize(ops.CAST, dtypes.float32.vector(len(lanes)), (wide,))
        stores = []
        for n, (x, y, here) in enumerate(texels):
            texel = gep(wide, tuple(range(n * LANES, (n + 1) * LANES)))
            gate = () if here is TRUE else (self.mask(here),)
            src = (image.uop, self.position(x), self.position(y), texel, *gate)
            stores.append(UOp(ops.IMAGE_STORE, dtypes.void, src))
        return stores

    def wmma(self, u: UOp, accumulator: UOp) -> UOp:
        """Return a matrix instruction that adds the product of two fragments to a third."""
        fragments = [
            self.wide(x, range_size(axis) if axis.op is ops.RANGE else 1)
            for x, axis in zip(u.src[:2], u.src[2:4], strict=True)
        ]
        return UOp(ops.WMMA, accumulator.dtype, (*fragments, accumulator), u.arg)

    def load(self, u: UOp) -> UOp:
        buffer, mask = u.src[:2]
        if buffer in self.images:
            return self.image_load(u, self.images[buffer])
        if self.scattered(u):
            return self.fragment(u)
        vectors = self.vectors.get(buffer)
        if vectors is not None:
            index = self.vector_index(self.flat_index(u), vectors.dtype.lanes)
            return UOp(ops.LOAD, vectors.dtype, (vectors, index), 1)
        address, lanes, alignment = self.address(self.flat_index(u), mask)
        dtype = u.dtype.vector(lanes)
        if mask is TRUE:
            return UOp(ops.LOAD, dtype, (buffer, address), alignment)
        gate = self.mask(mask)
        if lanes == 1 and gate.dtype.lanes > 1:
            raise InternalError("a vector mask on a scalar address")
        return UOp(ops.LOAD, dtype, (buffer, address, gate), alignment)

    def scattered(self, access: UOp) -> UOp | None:
        """Return the fragment's axis of a load or store that is not one contiguous vector, else None."""
        axis = vector_range(access) if access.op is ops.LOAD else None
        for i in (access.src[1], *access.src[3:]):
            axis = axis or vector_range(i)
        if axis is None or axis.arg[2] != "fragment":
            return None
        base = combine(((self.flat_index(access), 1), (axis, -1)))
        contiguous = axis not in base.ranges and axis not in access.src[1].ranges
        return None if contiguous else axis

    def fragment(self, u: UOp) -> UOp:
        """Return the elements of a fragment, loaded in runs of contiguous ones."""
        axis = vector_range(u)
        assert axis is not None
        loads = elements(u, axis)
        found: list[UOp] = []
        for run in runs(loads, [self.flat_index(x) for x in loads]):
            mask = run.access.src[1]
            gate = () if mask is TRUE else (self.mask(mask),)
            src = (u.src[0], self.position(run.flat), *gate)
            vector = UOp(ops.LOAD, u.dtype.vector(run.length), src, run.alignment)
            found += [vector] if run.length == 1 else [
                UOp(ops.GEP, u.dtype, (vector,), (n,)) for n in range(run.length)
            ]  # fmt: skip
        return UOp(ops.VECTORIZE, u.dtype.vector(len(found)), tuple(found))

    def address(self, flat: UOp, mask: UOp, lanes: int = 0) -> tuple[UOp, int, int]:
        """Return (linear address, lanes of the access, alignment in elements) of a flat index.

        The address is scalar for one contiguous access, and a vector for a gather or scatter.  `lanes` forces
        that many lanes, where the stored value has them and the address does not.
        """
        v = vector_range(flat) or vector_range(mask)
        if v is None and lanes <= 1:
            return self.position(flat), 1, 1
        if v is None:
            raise ScheduleError(
                "a store's value varies with a vector axis that its address does not vary with"
            )
        width = range_size(v)
        _, parts = terms(flat)
        coefficient = 0
        affine = True
        for a, k in parts:
            if a is v:
                coefficient = k
            elif v in a.ranges:
                affine = False
        if affine and coefficient == 1:
            base = combine(((flat, 1), (v, -1)))
            return self.position(base), width, aligned(base, width)
        return self.broadcast(self.position(flat), width), width, 1

    def vector_index(self, flat: UOp, lanes: int) -> UOp:
        """Return the number of a whole vector in an array, from the flat index of its elements."""
        c, parts = terms(flat)
        whole = [(a, k // lanes) for a, k in parts if k % lanes == 0]  # the lanes' own axis is what is left
        return self.position(combine(whole, c // lanes))

    # -- masks -----------------------------------------------------------------------------------------------

    def mask(self, mask: UOp) -> UOp:
        """Return the linear bool of a mask, a vector if any part varies with the vector axis."""
        if mask is TRUE or mask is FALSE:
            return mask
        found: UOp | None = None
        for part in conjuncts(mask):
            term = self._compare(part.src[0]) if part.op is ops.GE0 else self(part)
            if found is None:
                found = term
                continue
            lanes = max(found.dtype.lanes, term.dtype.lanes)
            found = UOp(
                ops.AND,
                dtypes.bool_.vector(lanes),
                (self.broadcast(found, lanes), self.broadcast(term, lanes)),
            )
        assert found is not None
        return found

    def _compare(self, x: UOp) -> UOp:
        """Return x >= 0 as people write it: positive terms on one side, negative ones on the other."""
        c, parts = terms(x)
        positive = combine([(a, k) for a, k in parts if k > 0])
        negative = combine([(a, -k) for a, k in parts if k < 0])
        if not terms(negative)[1]:
            op, left, right = ops.CMPLE, combine((), -c), positive
        elif c >= -1 or not terms(positive)[1]:
            op, left, right = ops.CMPLT, negative, combine(((positive, 1),), c + 1)
        else:
            op, left, right = ops.CMPLE, combine(((negative, 1),), -c), positive
        a, b = self.position(left), self.position(right)
        lanes = max(a.dtype.lanes, b.dtype.lanes)
        return UOp(op, dtypes.bool_.vector(lanes), (self.broadcast(a, lanes), self.broadcast(b, lanes)))

    # -- index arithmetic ------------------------------------------------------------------------------------

    def flat(self, idx: tuple[UOp, ...], shape: tuple[int, ...]) -> UOp:
        """Return the linear flat index into an array."""
        return self.position(flatten(idx, shape))

    def position(self, x: UOp) -> UOp:
        """Return the linear integer of an index expression."""
        found = self.memo.get(x)
        if found is None:
            found = self.memo[x] = self._position(x)
        return found

    def _position(self, x: UOp) -> UOp:
        op = x.op
        index = self.index
        match op:
            case ops.RANGE:
                name, size, kind = x.arg
                if kind in UNLOOPED:
                    return UOp(
                        ops.VECTORIZE, index.vector(size), tuple([const(i, index) for i in range(size)])
                    )
                kind = _EMITTED.get(kind, kind)
                return UOp(
                    ops.RANGE,
                    index,
                    () if size is not None else (self.position(x.src[0]),),
                    (name, size, kind),
                )
            case ops.VAR:
                return UOp(op, index, (), x.arg)
            case ops.AFFINE:
                return self._affine(x)
            case ops.IMUL:
                return self._int(ops.MUL, self.position(x.src[0]), self.position(x.src[1]))
            case ops.IDIV | ops.IMOD:
                return self._divide(op, x)
            case ops.IVALUE:
                inner = self(x.src[0])
                return self.legalize(ops.CAST, index.vector(inner.dtype.lanes), (inner,))
        raise InternalError(f"{op} is not index arithmetic")

    def _affine(self, x: UOp) -> UOp:
        """Return the sum with its terms in loop order, outermost first, and the constant last."""
        c, parts = terms(x)
        order = self.order
        parts.sort(key=lambda part: max([order.get(r, -1) for r in part[0].ranges], default=-1))
        total: UOp | None = None
        for positive in (True, False):
            for a, k in parts:
                if (k > 0) is not positive:
                    continue
                atom = self.position(a)
                if abs(k) != 1:
                    atom = self._int(ops.MUL, atom, const(abs(k), self.index))
                if total is None:
                    total = atom if k > 0 else self._int(ops.SUB, const(c, self.index), atom)
                    c = c if k > 0 else 0
                else:
                    total = self._int(ops.ADD if k > 0 else ops.SUB, total, atom)
        if total is None:
            return const(c, self.index)
        if c:
            total = self._int(ops.ADD if c > 0 else ops.SUB, total, const(abs(c), self.index))
        return total

    def _divide(self, op: ops.Op, x: UOp) -> UOp:
        inner, n = x.src[0], x.arg
        value = self.position(inner)
        if n & (n - 1) == 0:  # an arithmetic shift rounds down
            shift = n.bit_length() - 1
            if op is ops.IDIV:
                return self._int(ops.USHR, value, const(shift, self.index))
            return self._int(ops.AND, value, const(n - 1, self.index))
        if inner.vmin >= 0:  # truncation is floor there
            return self._int(ops.TRUNCDIV if op is ops.IDIV else ops.TRUNCMOD, value, const(n, self.index))
        divisor = self.broadcast(const(n, self.index), value.dtype.lanes)
        return self.legalize(ops.FLOORDIV if op is ops.IDIV else ops.MOD, value.dtype, (value, divisor))

    def _int(self, op: ops.Op, a: UOp, b: UOp) -> UOp:
        lanes = max(a.dtype.lanes, b.dtype.lanes)
        return UOp(op, self.index.vector(lanes), (self.broadcast(a, lanes), self.broadcast(b, lanes)))
