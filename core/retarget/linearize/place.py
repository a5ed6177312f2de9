"""Put a scheduled kernel's expressions into loops: where each loop opens, where accumulators live, what is
hoisted.

A *statement* is a store, or one step of a reduction.  Its *path* is the loops that it must stand in, in
schedule order: the free ranges of what it stores.  Consecutive statements share open loops as far as their
paths agree, unless such a loop produced something that the statement reads.  Inside that frame three rules
decide everything:

* Pure values are computed in the outermost open loop in which their operands are defined, so that invariant
  code is hoisted as it is emitted; an accumulator's value is read as far out as it stands once it is
  complete.
* An accumulator lives just outside the first loop, in schedule order, that is one of its reduction ranges, or
  a reader's loop on which it does not depend, or a range that two readers bind in different passes.  Its free
  ranges further in become its dimensions.
* Before a loop is opened, everything that lives at that level is computed, dependencies first; independent
  reductions of one level share their loops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..errors import InternalError, ScheduleError
from ..ir import dtypes, ops
from ..ir.index import FALSE, TRUE, all_of, conjuncts, flatten, iconst, ishift, less_than, range_size
from ..ir.uop import UOp, const
from ..optimize.apply import Scheduled, in_iteration
from ..optimize.stages import Staged, Turned
from .barriers import FENCE, synchronize
from .fragments import elements, runs
from .lanes import transposed
from .translate import UNLOOPED, Translator, vector_range

_FAR = 1 << 30


@dataclass(slots=True, eq=False)
class _Frame:
    """An open loop: its body so far, and the values that were computed in it."""

    range: UOp | None
    instance: int
    body: list[_Item] = field(default_factory=list)
    placed: list[UOp] = field(default_factory=list)
    reductions: list[UOp] = field(default_factory=list)  # whose accumulators live in this body
    stages: list[Staged] = field(default_factory=list)  # whose values hold while this loop runs one iteration


#: A body holds uops and the frames of inner loops.
_Item = UOp | _Frame


@dataclass(slots=True, eq=False)
class _Accumulator:
    """Where a reduction's partial results are kept while its loops run."""

    array: UOp
    dims: list[UOp]
    loops: set[int] = field(default_factory=set)  # instances of the loops that produce it


class Placer:
    """One linearization.  `run` returns the flat list of uops, without parameters' definitions in front."""

    def __init__(
        self,
        kernel: Scheduled,
        translate: Translator,
        unlooped: Collection[str] = UNLOOPED,
        asynchronous: bool = False,
    ) -> None:
        self.kernel = kernel
        self.asynchronous = asynchronous  # whether the target copies to local memory in the background
        self.unlooped = frozenset(unlooped)  # kinds of axes that have no loop
        self.order = kernel.order
        self.translate = translate
        self.root = _Frame(None, 0)
        self.stack: list[_Frame] = [self.root]
        self.level: dict[UOp, int] = {}
        self.reads_of: dict[UOp, frozenset[UOp]] = {}  # uop -> temporary arrays that its value was read from
        self.instances = 0
        self.accumulators: dict[UOp, _Accumulator] = {}
        self.finished: set[UOp] = set()
        self.settled: dict[UOp, int] = {}  # arrays of finished reductions -> level at which they stand
        self.innermost_reader: dict[UOp, int] = {}
        self.bound_by: dict[UOp, dict[UOp, UOp | None]] = {}
        self.turned: set[Staged] = set()  # tiles with slots whose loop has run
        self.everywhere = {n for r, n in self.order.items() if r.arg[2] in self.unlooped}
        self.stage_of = {s.array: s for s in kernel.stages}
        self.filled: set[UOp] = set()  # arrays of stages whose values hold now
        self._stages: dict[tuple[UOp, bool], tuple[Staged, ...]] = {}
        self._reductions: dict[UOp, tuple[UOp, ...]] = {}
        self._behind: dict[UOp, frozenset[UOp]] = {}

    def run(self) -> list[UOp]:
        stores = self.kernel.stores
        for s in stores:  # see every reader first, so that each accumulator is placed far enough out
            self.needed(_values(s), self.path(s.ranges), {}, note=True)
        for stage in self.kernel.stages:
            if stage.array.op is not ops.LOCAL:
                continue
            if stage.turned and stage.turned.whole:  # declared where it is filled
                self.translate.vectors[stage.array] = _of_vectors(stage.array, len(stage.turned.stores))
            else:
                self.root.body.append(stage.array)
        for together in _together(stores):  # reductions that they need share their loops
            values = [v for s in together for v in _values(s)]
            self.statement(self.path(together[0].ranges), values, partial(self.store_all, together))
        while len(self.stack) > 1:
            self.close()
        shared = frozenset([
            t.array for t in self.kernel.stages if t.shared and not t.private and t.slots == 1
        ])  # fmt: skip
        if shared:
            synchronize(self.root.body, shared)
        out: list[UOp] = []
        _flatten(self.root, out)
        barrier = UOp(ops.BARRIER, dtypes.void)
        return [barrier if u is FENCE else u for u in out] if self.turned else out

    # -- loops -----------------------------------------------------------------------------------------------

    def path(self, ranges: Iterable[UOp]) -> list[UOp]:
        """Return the loops among `ranges` in schedule order; vector and parallel axes have none."""
        order, unlooped = self.order, self.unlooped
        return sorted([r for r in ranges if r.arg[2] not in unlooped], key=order.__getitem__)

    def open(self, r: UOp) -> None:
        loop = self.translate.position(r)
        for s in loop.src:
            self.place(s)
        self.instances += 1
        frame = _Frame(loop, self.instances)
        self.stack[-1].body.append(frame)
        self.stack.append(frame)
        self.level[loop] = len(self.stack) - 1
        frame.placed.append(loop)

    def close(self) -> None:
        frame = self.stack.pop()
        for u in frame.placed:
            self.level.pop(u, None)
        # Their values are gone with the loop instance: a reader in another one computes them again.
        for r in frame.reductions:
            self.finished.discard(r)
            self.settled.pop(self.accumulators[r].array, None)
        for stage in frame.stages:
            self.filled.discard(stage.array)
            self.settled.pop(self.translate.vectors.get(stage.array, stage.array), None)

    def go_to(self, path: Sequence[UOp], avoid: frozenset[int] | set[int] = frozenset()) -> None:
        """Close and open loops until exactly `path` is open, keeping what agrees and is not to be avoided."""
        keep = self.common(path, avoid)
        while len(self.stack) - 1 > keep:
            self.close()
        for r in path[keep:]:
            self.open(r)

    def common(self, path: Sequence[UOp], avoid: frozenset[int] | set[int]) -> int:
        n = 0
        position = self.translate.position
        for frame, r in zip(self.stack[1:], path, strict=False):
            if frame.range is not position(r) or frame.instance in avoid:
                break
            n += 1
        return n

    # -- placing values --------------------------------------------------------------------------------------

    def place(self, u: UOp) -> UOp:
        """Make the value of a linear uop available here, computed as far out as its operands allow."""
        level = self.level
        if u in level or u.op.effect is ops.Effect.DEFINE:
            return u
        deepest = 0
        reads: frozenset[UOp] = frozenset()
        for s in u.src:
            if s not in level:
                self.place(s)
            n = level.get(s, 0)
            if n > deepest:
                deepest = n
            r = self.reads_of.get(s)
            if r:
                reads = reads | r if reads else r
        if u.op is ops.LOAD:
            buffer = u.src[0]
            if buffer.op is ops.LOCAL or buffer.arg[2]:
                reads = reads | {buffer}
                deepest = max(deepest, self.settled.get(buffer, len(self.stack) - 1))
        elif u.op is ops.RANGE:
            if self.stage_of:
                raise ScheduleError(
                    f"a stage depends on loop {u.arg[0]}, which is not open where the stage is filled; "
                    f"put that loop outside the stage's in `order`: {self.kernel.schedule}"
                )
            raise InternalError(f"loop {u.arg[0]} is used outside itself")
        frame = self.stack[deepest]
        if deepest == len(self.stack) - 1:
            frame.body.append(u)
        else:
            frame.body.insert(len(frame.body) - 1, u)  # before the loop that is open inside this one
        frame.placed.append(u)
        level[u] = deepest
        if reads:
            self.reads_of[u] = reads
        else:
            self.reads_of.pop(u, None)
        return u

    def emit(self, u: UOp) -> None:
        """Append an effect here, after its operands."""
        for s in u.src:
            self.place(s)
        self.stack[-1].body.append(u)
        if u.op is ops.STORE:
            self.forget_reads(u.src[0])

    def forget_reads(self, array: UOp) -> None:
        """Values that were read from `array` are stale: compute them again when they are next used."""
        for u, arrays in list(self.reads_of.items()):
            if array in arrays:
                del self.reads_of[u]
                self.level.pop(u, None)

    # -- what statements need --------------------------------------------------------------------------------

    def reductions(self, u: UOp) -> tuple[UOp, ...]:
        """Return the looped reductions that an expression reads directly, in a fixed order."""
        found = self._reductions.get(u)
        if found is None:
            if u.op is ops.REDUCE and u.src[1].arg[2] not in self.unlooped:
                found = (u,)
            else:
                merged: dict[UOp, None] = {}
                stage = self.stage_of.get(u.src[0]) if u.op is ops.LOAD else None
                for s in u.src if stage is None else (*u.src, stage.fill.src[2]):
                    for r in self.reductions(s):
                        merged[r] = None
                found = tuple(merged)
            self._reductions[u] = found
        return found

    def stages(self, u: UOp, deep: bool = False) -> tuple[Staged, ...]:
        """Return the stages that an expression reads, in a fixed order; (deep) inside reductions too."""
        found = self._stages.get((u, deep))
        if found is None:
            merged: dict[Staged, None] = {}
            if deep or not (u.op is ops.REDUCE and u.src[1].arg[2] not in self.unlooped):
                for s in u.src:
                    for stage in self.stages(s, deep):
                        merged[stage] = None
            own = self.stage_of.get(u.src[0]) if u.op is ops.LOAD else None
            if own is not None:
                if deep or own.kept:  # the first reader of a kept value computes it
                    for stage in self.stages(own.fill.src[2], deep):
                        merged[stage] = None
                merged[own] = None
            found = self._stages[u, deep] = tuple(merged)
        return found

    def behind(self, r: UOp) -> frozenset[UOp]:
        """Return the reductions that must be complete before a step of `r` can be taken."""
        found = self._behind.get(r)
        if found is None:
            direct = self.reductions(r.src[0])
            found = frozenset(direct).union(*[self.behind(d) for d in direct])
            self._behind[r] = found
        return found

    def needed(
        self, values: Sequence[UOp], path: Sequence[UOp], binding: dict[UOp, UOp], note: bool = False
    ) -> list[UOp]:
        """Return the unfinished reductions behind `values`, those that others need first.

        On the way, note for each how far out its readers force it: `path` is the loops of the statement that
        reads it, `binding` says for each range which reduction's pass binds it there.
        """
        out: list[UOp] = []
        seen: set[UOp] = set()
        order = self.order

        def visit(values: Sequence[UOp], path: Sequence[UOp], binding: dict[UOp, UOp]) -> None:
            for value in values:
                for r in self.reductions(value):
                    if r in self.finished:
                        continue
                    limit = next((order[x] for x in path if x not in r.ranges), _FAR)
                    if limit < self.innermost_reader.get(r, _FAR):
                        self.innermost_reader[r] = limit
                    if note:
                        first = self.bound_by.setdefault(r, {x: binding.get(x) for x in r.ranges})
                        for x in r.ranges:
                            if first[x] is not binding.get(x) and x.arg[2] not in self.unlooped:
                                self.innermost_reader[r] = min(self.innermost_reader.get(r, _FAR), order[x])
                    if r in seen:
                        if note:
                            visit_body(r, binding)
                        continue
                    seen.add(r)
                    visit_body(r, binding)
                    out.append(r)

        def visit_body(r: UOp, binding: dict[UOp, UOp]) -> None:
            inner = self.path(r.src[0].ranges.union(r.src[1:]))
            visit((r.src[0],), inner, {**binding, **dict.fromkeys(r.src[1:], r)})

        visit(values, path, binding)
        return out

    def home(self, r: UOp) -> tuple[list[UOp], list[UOp]]:
        """Return (loops around the accumulator of `r`, its dimensions)."""
        order = self.order
        first = min([order[x] for x in r.src[1:] if x.arg[2] != "vector"])
        first = min(first, self.innermost_reader.get(r, _FAR))
        free = self.path(r.ranges)
        return [x for x in free if order[x] < first], [x for x in free if order[x] >= first]

    # -- statements ------------------------------------------------------------------------------------------

    def statement(self, path: list[UOp], values: Sequence[UOp], finish: Callable[[], None]) -> None:
        """Open the loops of `path`, compute at each level what lives there, then call `finish` inside."""
        need = self.needed(values, path, {})
        homes = {r: self.home(r) for r in need}
        produced = {i for v in values for r in self.reductions(v) if r in self.accumulators
                    for i in self.accumulators[r].loops}  # fmt: skip
        keep = self.common(path, produced)
        for outer, _ in homes.values():
            if outer == path[: len(outer)]:
                keep = min(keep, len(outer))
        tiles, kept, level = self.stages_of(values, path)
        for t in tiles:
            if t.array not in self.filled:
                keep = min(keep, level[t] - (t.slots > 1))  # slots are filled before their loop opens
        while len(self.stack) - 1 > keep:
            self.close()
        while True:
            depth = len(self.stack) - 1
            for t in tiles:
                if level[t] == depth and t.array not in self.filled and t.slots == 1:
                    self.fill_tile(t, path[:depth])
            rings = [t for t in tiles if t.slots > 1 and t.array not in self.filled]
            if ring := [t for t in rings if level[t] == depth]:
                self.fill_ahead(ring, path[:depth])
            here = [r for r in need if r not in self.finished and homes[r][0] == path[:depth]]
            while here:
                waiting = set(here)
                group = [r for r in here if not (self.behind(r) & waiting)]
                for r in group:
                    self.start(r)
                for r in group:
                    self.step(r)
                self.go_to(path[:depth])
                here = [r for r in here if r not in self.finished]
            if depth == len(path):
                break
            if ring := [t for t in rings if level[t] == depth + 1]:
                self.fill_first(ring, path[:depth])
            self.open(path[depth])
        for t in kept:
            if t.array not in self.filled:
                self.fill_kept(t, path, level[t])
        finish()

    def stages_of(
        self, values: Sequence[UOp], path: list[UOp]
    ) -> tuple[list[Staged], list[Staged], dict[Staged, int]]:
        """Return (tiles to fill on the way into `path`, kept expressions read in it, the level of each).

        A tile that only a reduction below reads is filled here if its loop is on the path: the reduction's
        accumulator must not be declared before loops that the copy would have to close.
        """
        if not self.stage_of:
            return [], [], {}
        order = self.order
        direct = {t for v in values for t in self.stages(v)}
        positions = {order[x] for x in path} | self.everywhere
        every = list(dict.fromkeys(t for v in values for t in self.stages(v, True)))
        tiles = [t for t in every if not t.kept and (t in direct or t.at < 0 or t.at in positions)]
        level = {t: sum(order[x] <= t.at for x in path) for t in every}
        return tiles, [t for t in every if t.kept and t in direct], level

    def fill_tile(self, stage: Staged, path: list[UOp]) -> None:
        """Copy a tile inside the loops of `path`."""
        loops = [x for x in stage.loops if x.arg[2] != "vector"]
        turned, array = stage.turned, self.translate.vectors.get(stage.array, stage.array)
        if array is not stage.array:
            self.go_to(path)
            self.stack[-1].body.append(array)
        copy = partial(self.store, stage.fill) if turned is None else partial(self.turn, stage.fill, turned)
        self.statement(path + loops, _values(stage.fill), copy)
        self.go_to(path)
        self.mark_filled(stage, len(path))
        self.settled[array] = len(path)

    def turn(self, fill: UOp, turned: Turned) -> None:
        """Copy one block of a turned tile: its rows are loaded, transposed in registers, and stored."""
        translate = self.translate
        array, n = fill.src[0], len(turned.stores)
        rows = [in_iteration(fill, turned.rows, iconst(row)).src[2] for row in range(n)]
        values = transposed([self.place(translate.wide(row, n)) for row in rows])
        for value, idx in zip(values, turned.stores, strict=True):
            flat = flatten(idx, array.arg[1])
            vectors = translate.vectors.get(array)
            if vectors is None:
                address, _, _ = translate.address(flat, TRUE)
                self.emit(UOp(ops.STORE, dtypes.void, (array, address, value)))
            else:
                address = translate.vector_index(flat, n)
                self.emit(UOp(ops.STORE, dtypes.void, (vectors, address, value)))

    def fill_first(self, ring: list[Staged], path: list[UOp]) -> None:
        """Start the copies of the first iterations of the loop that goes through the slots of some tiles."""
        slots = {t.slots for t in ring}
        if len(slots) > 1:
            raise ScheduleError(
                f"tiles that are filled in one loop have {sorted(slots)} slots; give them as many"
            )
        again = any(t in self.turned for t in ring)
        if ring[0].shared and (path or again):  # others may still read what the last run of the loop left
            self.stack[-1].body.append(FENCE)
        self.turned.update(ring)
        for n in range(ring[0].slots - 1):
            self.copies(ring, path, iconst(n))

    def fill_ahead(self, ring: list[Staged], path: list[UOp]) -> None:
        """Wait for this iteration's tiles, and start the copies of a later one into the free slots."""
        slots, loop = ring[0].slots, ring[0].loop
        assert loop is not None
        if self.asynchronous:
            self.stack[-1].body.append(UOp(ops.STAGE_WAIT, dtypes.void, (), slots - 2))
        if ring[0].shared:
            self.stack[-1].body.append(FENCE)
        self.copies(ring, path, ishift(loop, slots - 1))
        for t in ring:
            self.mark_filled(t, len(path))
            self.settled[t.array] = len(path)

    def copies(self, ring: list[Staged], path: list[UOp], turn: UOp) -> None:
        """Copy the tiles of one iteration, as one group."""
        for t in ring:
            assert t.loop is not None
            due = less_than(turn, t.loop.src[0] if t.loop.src else range_size(t.loop))
            if due is not FALSE:
                fill = in_iteration(t.fill, t.loop, turn)
                loops = [x for x in t.loops if x.arg[2] != "vector"]
                self.statement(path + loops, (*_values(fill), due), partial(self.copy, fill, due))
                self.go_to(path)
        if self.asynchronous:
            self.stack[-1].body.append(UOp(ops.STAGE_COMMIT, dtypes.void))

    def copy(self, fill: UOp, due: UOp) -> None:
        """Start one copy to a slot, or make it where that is not possible; what a mask keeps out is 0."""
        translate = self.translate
        array, here, value, *to = fill.src
        load = value if value.op is ops.LOAD else value.src[0]  # converted on the way
        buffer, mask, *source = load.src
        v = vector_range(fill)
        place, lanes, _ = translate.address(flatten(to, array.arg[1]), TRUE)
        origin, found, _ = translate.address(flatten(source, buffer.arg[1]), TRUE)
        whole = place.dtype.lanes == origin.dtype.lanes == 1 and lanes == found
        by_lane = v is not None and v in mask.ranges
        plain = value is load and buffer not in translate.images
        if not (self.asynchronous and plain and whole) or by_lane:
            due_load = load.replace((buffer, all_of(mask, due), *source))
            value = due_load if value is load else value.replace((due_load,))
            self.store(UOp(ops.STORE, dtypes.void, (array, all_of(here, due), value, *to)))
            return
        start = UOp(ops.STAGE_COPY, dtypes.void, (array, place, buffer, origin), lanes)
        for s in start.src:
            self.place(s)
        gate = translate.mask(all_of(mask, here, due))
        if gate is TRUE:
            self.stack[-1].body.append(start)
        else:
            block = UOp(ops.IF, dtypes.void, (self.place(gate),))
            self.stack[-1].body += [block, start, UOp(ops.ENDIF, dtypes.void, (block,))]
        outside = [m for m in conjuncts(mask) if m not in conjuncts(here)]
        if outside:
            others = UOp(ops.NOT, dtypes.bool_, (translate.mask(all_of(*outside)),))
            inside = all_of(here, due)
            if inside is not TRUE:
                others = UOp(ops.AND, dtypes.bool_, (translate.mask(inside), others))
            zero = translate.broadcast(const(ops.identity(ops.ADD, array.dtype), array.dtype), lanes)
            self.emit(UOp(ops.STORE, dtypes.void, (array, place, zero, others)))
        self.forget_reads(array)

    def fill_kept(self, stage: Staged, path: list[UOp], level: int) -> None:
        """Store a kept expression, in the loops of its first reader."""
        if self.path(stage.fill.ranges) != path:
            raise ScheduleError(f"the first reader of {stage.array.arg[0]} does not run over the same loops")
        self.store(stage.fill)
        self.mark_filled(stage, level)

    def mark_filled(self, stage: Staged, level: int) -> None:
        self.filled.add(stage.array)
        self.stack[level].stages.append(stage)

    def start(self, r: UOp) -> None:
        """Declare the accumulator of a reduction and set it to the identity."""
        outer, dims = self.home(r)
        v = vector_range(r)
        dtype = r.dtype.vector(1 if v is None else range_size(v))
        known = self.accumulators.get(r)
        name = known.array.arg[0] if known else f"acc{len(self.accumulators)}"
        array = UOp(ops.LOCAL, dtype, (), (name, tuple([range_size(d) for d in dims]), "register"))
        self.accumulators[r] = _Accumulator(array, dims)
        self.translate.accumulators[r] = (array, tuple(dims))
        self.go_to(outer)
        self.stack[-1].body.append(array)
        self.stack[-1].reductions.append(r)
        self.go_to(outer + dims)
        identity = self.translate.broadcast(const(ops.identity(r.arg, r.dtype), r.dtype), dtype.lanes)
        self.emit(
            UOp(ops.STORE, dtypes.void, (array, self.translate.flat(tuple(dims), array.arg[1]), identity))
        )
        self.go_to(outer)

    def step(self, r: UOp) -> None:
        """Emit the loops of a reduction: fold its value into the accumulator."""
        value = r.src[0]
        path = self.path(value.ranges.union(r.src[1:]))
        parts = value.src if self.multiplies(r) else value.src[:2] if self.instructs(r) else (value,)
        self.statement(path, parts, lambda: self.fold(r))
        self.finished.add(r)
        self.settled[self.accumulators[r].array] = len(self.home(r)[0])
        ranges = {self.translate.position(x) for x in r.src[1:] if x.arg[2] != "vector"}
        self.accumulators[r].loops.update(f.instance for f in self.stack if f.range in ranges)

    def multiplies(self, r: UOp) -> bool:
        """Whether a step of `r` is a multiply-accumulate, which may be fused: it only gains accuracy."""
        return r.arg is ops.ADD and r.src[0].op is ops.MUL and r.dtype in (dtypes.float32, dtypes.float64)

    def instructs(self, r: UOp) -> bool:
        """Whether a step of `r` is a matrix instruction, which adds to the accumulator itself."""
        return r.arg is ops.ADD and r.src[0].op is ops.WMMA

    def fold(self, r: UOp) -> None:
        translate = self.translate
        accumulator = self.accumulators[r]
        array = accumulator.array
        index = translate.flat(tuple(accumulator.dims), array.arg[1])
        before = UOp(ops.LOAD, array.dtype, (array, index), 1)
        lanes = array.dtype.lanes
        if self.multiplies(r):
            a, b = r.src[0].src
            after = translate.legalize(
                ops.MULACC, array.dtype, (translate.wide(a, lanes), translate.wide(b, lanes), before)
            )
        elif self.instructs(r):
            after = translate.wmma(r.src[0], before)
        else:
            after = translate.legalize(r.arg, array.dtype, (before, translate.wide(r.src[0], lanes)))
        self.emit(UOp(ops.STORE, dtypes.void, (array, index, after)))

    def store_all(self, stores: Sequence[UOp]) -> None:
        """Emit stores of one statement."""
        for s in stores:
            self.store(s)

    def store(self, s: UOp) -> None:
        """Emit the store of an output."""
        translate = self.translate
        if s.src[0] in translate.images:
            for texel in translate.image_stores(s, translate.images[s.src[0]]):
                self.emit(texel)
            return
        buffer, mask, value = s.src[:3]
        v = translate.scattered(s)
        if v is not None:
            self.store_fragment(s, v)
            return
        v = vector_range(s)
        flat = translate.flat_index(s)
        address, lanes, alignment = translate.address(flat, mask, 1 if v is None else range_size(v))
        src = (buffer, address, translate.wide(value, lanes))
        streams = buffer.op is ops.PARAM and buffer.arg[0] in self.kernel.schedule.streams
        whole = mask is TRUE and lanes > 1 and alignment == lanes
        how = "stream" if streams and whole else alignment if lanes > 1 else None
        self.emit(UOp(ops.STORE, dtypes.void, src if mask is TRUE else (*src, translate.mask(mask)), how))


    def store_fragment(self, s: UOp, axis: UOp) -> None:
        """Emit the stores of a fragment, one for each run of contiguous elements."""
        translate = self.translate
        buffer, dtype = s.src[0], s.src[2].dtype
        value = translate.wide(s.src[2], range_size(axis))
        stores = elements(UOp(s.op, s.dtype, (buffer, s.src[1], const(0, dtype), *s.src[3:])), axis)
        for run in runs(stores, [translate.flat_index(x) for x in stores]):
            mask = run.access.src[1]
            numbers = tuple(range(run.first, run.first + run.length))
            lanes = UOp(ops.GEP, dtype.vector(run.length), (value,), numbers)
            src = (buffer, translate.position(run.flat), lanes)
            gate = () if mask is TRUE else (translate.mask(mask),)
            self.emit(UOp(ops.STORE, dtypes.void, (*src, *gate), run.alignment))


def _values(store: UOp) -> tuple[UOp, ...]:
    """Return what must be computed before a store: its value, its mask and its indices."""
    return (store.src[2], store.src[1], *store.src[3:])


def _together(stores: Sequence[UOp]) -> list[list[UOp]]:
    """Return the stores in groups of neighbours that have the same ranges."""
    groups: list[list[UOp]] = []
    for s in stores:
        if groups and groups[-1][0].ranges == s.ranges:
            groups[-1].append(s)
        else:
            groups.append([s])
    return groups


def _of_vectors(array: UOp, lanes: int) -> UOp:
    """Return an array of vectors for one whose last dimension is a vector's lanes."""
    name, shape, space = array.arg
    return UOp(ops.LOCAL, array.dtype.vector(lanes), (), (name, (*shape[:-1], shape[-1] // lanes), space))


def _flatten(frame: _Frame, out: list[UOp]) -> None:
    for item in frame.body:
        if isinstance(item, UOp):
            out.append(item)
        else:
            assert item.range is not None
            out.append(item.range)
            _flatten(item, out)
            out.append(UOp(ops.END, dtypes.void, (item.range,)))
