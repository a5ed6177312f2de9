"""Moves: small random changes of a schedule, which may or may not be legal.

A schedule is first written out in full (`spelled`): each range has its axes and `order` names every one, so
that a move touches one thing.  Moves know the kinds of axes and what stages are; they do not know kernels:
whether the result is legal, and any good, is for the compiler and the clock to say.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...errors import ParseError, ScheduleError, UnknownNameError
from ...ir import ops
from ...ir.index import range_size
from ...registry.capabilities import Capabilities
from ...schedule.kernel import Kernel
from ..apply import apply_schedule
from ..schedule import Axis, Schedule, Stage, parse_schedule

#: Most copies of a loop body that unrolled axes may make together: compilers take long for more.
COPIES = 40
#: Attempts at one mutation before it is given up.
_ATTEMPTS = 24
_UNROLLED = ("unroll", "own")
_LETTERS = {"loop": "l", "unroll": "u", "own": "a", "vector": "v", "chunk": "c", "thread": "t"}


@dataclass(slots=True)
class Draft:
    """A schedule being changed."""

    axes: dict[str, list[Axis]]
    order: list[str]
    stages: list[Stage]


class Mutator:
    """Makes legal mutations of a kernel's schedules.

    Attributes
    ----------
    kernel, capabilities
        What the schedules are for.
    illegal
        How many illegal mutations were thrown away.
    """

    def __init__(self, kernel: Kernel, capabilities: Capabilities) -> None:
        self.kernel, self.capabilities = kernel, capabilities
        self.illegal = 0
        self.sizes = {name: range_size(r) for name, r in kernel.ranges.items()}
        self.fixed = {name for name, r in kernel.ranges.items() if r.src}
        reduced = {r.arg[0] for u in kernel.nodes if u.op is ops.REDUCE for r in u.src[1:]}
        stored = [name for name, r in kernel.ranges.items() if all(r in s.ranges for s in kernel.stores)]
        self.outputs = stored
        self.reduced = reduced
        kinds = capabilities.axis_kinds
        self.kinds = ["loop", *[k for k in ("unroll", "vector") if k in kinds]]
        if not capabilities.vector_bits and "vector" in self.kinds:
            self.kinds.remove("vector")
        self.widths = _widths(kernel, capabilities)
        self.parameters = list(
            dict.fromkeys(u.src[0].arg[0] for u in kernel.nodes if u.op is ops.LOAD)
        )  # fmt: skip
        self.read = {
            name: {
                r.arg[0]
                for u in kernel.nodes
                if u.op is ops.LOAD and u.src[0].arg[0] == name
                for r in u.ranges
            }
            for name in self.parameters
        }
        self.values = list(dict.fromkeys(
            u.op.name for u in kernel.nodes if u.op in ops.ALU_OPS and u.dtype.kind == "float"
        ))  # fmt: skip
        self.spaces = [s for s in ("local", "register") if s in capabilities.address_spaces]
        self._moves: list[tuple[int, Callable[[Draft, random.Random], bool]]] = [
            (5, self.resize), (3, self.rekind), (3, self.split), (2, self.merge), (4, self.reorder),
            (2, self.pieces), (2, self.stage), (1, self.unstage), (2, self.restage),
        ]  # fmt: skip

    def mutate(self, schedule: Schedule, rng: random.Random, steps: int = 0) -> Schedule | None:
        """Return a legal schedule some moves away (by default one to three), or None if none was found."""
        for _ in range(_ATTEMPTS):
            draft = spelled(schedule, self.sizes)
            count = steps or rng.choice((1, 1, 1, 2, 2, 3))
            for _ in range(count):
                weights, moves = zip(*self._moves, strict=True)
                (move,) = rng.choices(moves, weights)
                move(draft, rng)
            found = self.finish(schedule, draft)
            if str(found) != str(schedule) and self.legal(found):
                return found
        return None

    def cross(self, one: Schedule, other: Schedule, rng: random.Random) -> Schedule | None:
        """Return a legal schedule with the axes of each range from one of two parents, or None."""
        for _ in range(4):
            a, b = spelled(one, self.sizes), spelled(other, self.sizes)
            taken = [name for name in self.sizes if rng.random() < 0.5]
            axes = {name: (b if name in taken else a).axes[name] for name in self.sizes}
            names = [x.name for each in axes.values() for x in each]
            if len(set(names)) < len(names):
                continue
            order = [n for n in a.order if n in names]
            for n in [n for n in b.order if n in names and n not in order]:
                before = b.order[: b.order.index(n)]
                order.insert(max([order.index(x) + 1 for x in before if x in order], default=0), n)
            donor = rng.choice((a, b))
            stages = [s for s in donor.stages if s.at in names or s.at == "top"]
            found = self.finish(one, Draft(axes, order, stages))
            if str(found) not in (str(one), str(other)) and self.legal(found):
                return found
        return None

    def legal(self, schedule: Schedule) -> bool:
        """Whether a schedule can be applied, and makes no monstrous body."""
        copies = 1
        for _, axes in schedule.splits:
            for a in axes:
                copies *= (a.size or 1) if a.kind in _UNROLLED else 1
                if a.kind == "vector" and a.size:
                    copies *= max(1, a.size // self.widths[0]) if self.widths else 1
        try:
            if copies > COPIES:
                raise ScheduleError(f"{copies} copies of a loop body")
            parse_schedule(str(schedule))  # what is no line cannot be kept
            apply_schedule(self.kernel, schedule)
        except (ScheduleError, UnknownNameError, ParseError):
            self.illegal += 1
            return False
        return True

    def finish(self, base: Schedule, draft: Draft) -> Schedule:
        """Return a draft as a schedule that leaves out what goes without saying; the rest is as in `base`."""
        splits = tuple(
            (name, tuple(axes))
            for name, axes in draft.axes.items()
            if len(axes) > 1 or axes[0].kind != "loop" or axes[0].name != name
        )
        return replace(base, splits=splits, order=tuple(draft.order), stages=tuple(draft.stages))

    # The moves: each returns whether it changed anything ----------------------------------------------------

    def resize(self, draft: Draft, rng: random.Random) -> bool:
        """Give a digit another size: half, twice, a little more or less, or another divisor."""
        found = [(name, n) for name, axes in draft.axes.items() for n, a in enumerate(axes) if a.size]
        if not found:
            return False
        name, n = rng.choice(found)
        axis = draft.axes[name][n]
        size = axis.size or 1
        if axis.kind == "vector":
            choices = self.widths
        else:
            limit = self.sizes[name]
            near = [size // 2, size * 2, size - 1, size + 1, *_divisors(limit, size // 4, size * 4)]
            choices = [x for x in near if 1 < x <= limit]
        choices = [x for x in choices if x != size]
        if not choices:
            return False
        draft.axes[name][n] = replace(axis, size=rng.choice(choices))
        return True

    def rekind(self, draft: Draft, rng: random.Random) -> bool:
        """Change the kind of a digit."""
        found = [
            (name, n)
            for name, axes in draft.axes.items()
            for n, a in enumerate(axes)
            if a.size and a.kind in ("loop", "unroll", "own", "vector")
        ]
        if not found:
            return False
        name, n = rng.choice(found)
        axis = draft.axes[name][n]
        kinds = [*self.kinds, *(["own", "chunk"] if name in self.reduced else [])]
        kind = rng.choice([k for k in kinds if k != axis.kind] or [axis.kind])
        if kind == "chunk" and n > 0:
            return False
        size = axis.size
        if kind == "vector":
            if not self.widths:
                return False
            size = rng.choice(self.widths)
            # One vector axis: the one that was it becomes unrolled.
            for other in draft.axes.values():
                for m, a in enumerate(other):
                    if a.kind == "vector":
                        other[m] = replace(a, kind="unroll")
        elif kind in _UNROLLED and (size or 1) > 16:
            size = rng.choice((2, 4, 8))
        draft.axes[name][n] = replace(axis, kind=kind, size=size)
        return True

    def split(self, draft: Draft, rng: random.Random) -> bool:
        """Cut a digit off the one of a range whose size follows from the others."""
        names = [n for n, axes in draft.axes.items() if self.sizes[n] > 2 and len(axes) < 5]
        names = [n for n in names if n not in self.fixed]
        if not names:
            return False
        name = rng.choice(names)
        axes = draft.axes[name]
        kinds = [*self.kinds, *(["own"] if name in self.reduced else [])]
        kind = rng.choice(kinds)
        has_vector = any(a.kind == "vector" for each in draft.axes.values() for a in each)
        if kind == "vector" and (has_vector or not self.widths):
            kind = rng.choice([k for k in kinds if k != "vector"])
        if kind == "vector":
            size = rng.choice(self.widths)
        elif kind == "loop":
            size = rng.choice(_divisors(self.sizes[name], 2, self.sizes[name] - 1) or [2, 4, 8, 16, 32])
        else:
            size = rng.choice((2, 2, 3, 4, 4, 6, 8))
        if size >= self.sizes[name]:
            return False
        heads = sum(a.kind in ("thread", "chunk", "grid") for a in axes)
        vectors = any(a.kind == "vector" for a in axes)
        position = len(axes) if kind == "vector" else rng.randint(max(1, heads), len(axes) - vectors or 1)
        label = _fresh(draft, name, kind)
        if all(a.size for a in axes):  # the outermost takes what is left
            axes[0] = replace(axes[0], size=None)
        axes.insert(position, Axis(label, size, kind))
        if kind in ("unroll", "own"):
            lanes = [n for n in draft.order if _kind(draft, n) in ("unroll", "own", "vector")]
            at = draft.order.index(rng.choice(lanes)) if lanes else len(draft.order)
        elif kind == "vector":
            at = len(draft.order)
        else:
            outer = axes[position - 1].name
            at = rng.randint(draft.order.index(outer) + 1 if outer in draft.order else 0, len(draft.order))
        draft.order.insert(at, label)
        return True

    def merge(self, draft: Draft, rng: random.Random) -> bool:
        """Take a digit away; the one whose size follows from the others grows by it."""
        split = [(name, axes) for name, axes in draft.axes.items() if len(axes) > 1]
        found = [(name, n) for name, axes in split for n, a in enumerate(axes) if a.size]
        if not found:
            return False
        name, n = rng.choice(found)
        axes = draft.axes[name]
        gone = axes.pop(n)
        if all(a.size for a in axes):
            axes[0] = replace(axes[0], size=None)
        at = draft.order.index(gone.name)
        outside = next((x for x in reversed(draft.order[:at])), "top")
        draft.order.remove(gone.name)
        draft.stages = [
            replace(s, at=outside if s.at == gone.name else s.at,
                    layout=tuple([x for x in s.layout if x != gone.name]))
            for s in draft.stages
        ]  # fmt: skip
        return True

    def reorder(self, draft: Draft, rng: random.Random) -> bool:
        """Move a loop elsewhere in the nest, most often by one place."""
        if len(draft.order) < 2:
            return False
        at = rng.randrange(len(draft.order))
        name = draft.order.pop(at)
        to = at + rng.choice((-1, 1)) if rng.random() < 0.6 else rng.randint(0, len(draft.order))
        draft.order.insert(max(0, min(len(draft.order), to)), name)
        return True

    def pieces(self, draft: Draft, rng: random.Random) -> bool:
        """Change how an output range is cut for threads: other pieces, another range, or none."""
        if "thread" not in self.capabilities.axis_kinds or not self.outputs:
            return False
        threads = self.capabilities.threads
        now = next((n for n, axes in draft.axes.items() if axes[0].kind == "thread"), None)
        choices = [n for n in self.outputs if self.sizes[n] >= threads and n not in self.fixed]
        if not choices or (now is None and threads < 2):
            return False
        target = now if now is not None and rng.random() < 0.7 else rng.choice([*choices, None])
        if now is not None and target != now:
            head, *rest = draft.axes[now]
            draft.order.remove(head.name)
            loop = next((a for a in rest if a.kind == "loop"), None)
            if loop is None:
                draft.axes[now] = [Axis(now if not _taken(draft, now) else head.name), *rest]
                draft.order.insert(0, draft.axes[now][0].name)
            else:
                draft.axes[now] = [replace(a, size=None) if a is loop else a for a in rest]
            draft.stages = [s for s in draft.stages if s.at != head.name]
        if target is None:
            return True
        axes = draft.axes[target]
        inner = 1
        for a in axes:
            inner *= (a.size or 1) if a.kind not in ("thread", "loop") else 1
        steps = max(1, -(-self.sizes[target] // inner))
        count = threads * rng.choice((1, 2, 4, 8, 16))
        each = max(1, -(-steps // count))
        if axes[0].kind == "thread":
            if len(axes) > 1 and axes[1].kind == "loop":
                axes[1] = replace(axes[1], size=each)
            elif each > 1:
                label = _fresh(draft, target, "loop")
                axes.insert(1, Axis(label, each))
                draft.order.insert(1, label)
            return True
        label = _fresh(draft, target, "thread")
        if axes[0].kind != "loop":
            return False
        axes[0] = replace(axes[0], size=each)
        axes.insert(0, Axis(label, None, "thread"))
        draft.order.insert(0, label)
        return True

    def stage(self, draft: Draft, rng: random.Random) -> bool:
        """Add a stage: a tile of a parameter, or an expression's values kept for later passes."""
        staged = {s.what for s in draft.stages}
        tiles = [p for p in self.parameters if p not in staged]
        values = [v for v in self.values if v not in staged]
        if not (tiles or values) or not draft.order or not self.spaces:
            return False
        at = rng.choice(_loops(draft) or ["top"])
        if tiles and (not values or rng.random() < 0.6):
            what = rng.choice(tiles)
            draft.stages.append(Stage(what, at, self._layout(draft, what, at, rng), rng.choice(self.spaces)))
        else:
            space = rng.choice([*self.spaces, "out"])
            draft.stages.append(Stage(rng.choice(values), at, (), space))
        return True

    def unstage(self, draft: Draft, rng: random.Random) -> bool:
        """Drop a stage."""
        if not draft.stages:
            return False
        draft.stages.pop(rng.randrange(len(draft.stages)))
        return True

    def restage(self, draft: Draft, rng: random.Random) -> bool:
        """Fill a stage in another loop, or lay it out otherwise."""
        if not draft.stages:
            return False
        n = rng.randrange(len(draft.stages))
        stage = draft.stages[n]
        at = stage.at
        if rng.random() < 0.6:
            at = rng.choice(_loops(draft) or ["top"])
        layout = self._layout(draft, stage.what, at, rng) if stage.what in self.parameters else ()
        space = stage.space if rng.random() < 0.8 else rng.choice(self.spaces or ["local"])
        draft.stages[n] = replace(stage, at=at, layout=layout, space=space)
        return True

    def _layout(self, draft: Draft, what: str, at: str, rng: random.Random) -> tuple[str, ...]:
        """Return the axes of a tile in the order in which the loops inside `at` walk it, or nothing."""
        if rng.random() < 0.25:
            return ()
        inside = draft.order[draft.order.index(at) + 1 :] if at in draft.order else draft.order
        ranges = {a.name: name for name, axes in draft.axes.items() for a in axes}
        return tuple([n for n in inside if ranges.get(n) in self.read[what]])


def spelled(schedule: Schedule, sizes: dict[str, int]) -> Draft:
    """Return a schedule with axes for each range, and an order that names every axis."""
    given = dict(schedule.splits)
    axes = {name: list(given.get(name, (Axis(name),))) for name in sizes}
    known = {a.name: a for each in axes.values() for a in each}
    order = [n for n in schedule.order if n in known]
    rest = [a for a in known.values() if a.name not in order]
    front = [a.name for a in rest if a.kind in ("grid", "thread")]
    rank = ("chunk", "loop", "unroll", "own", "vector")
    back = sorted(
        [a for a in rest if a.kind not in ("grid", "thread")],
        key=lambda a: rank.index(a.kind) if a.kind in rank else 0,
    )
    return Draft(axes, [*front, *order, *[a.name for a in back]], list(schedule.stages))


def _widths(kernel: Kernel, capabilities: Capabilities) -> list[int]:
    """Return vector widths worth trying, the machine's own first."""
    if not capabilities.vector_bits or "vector" not in capabilities.axis_kinds:
        return []
    bits = [u.dtype.bits for u in kernel.nodes if u.op in (ops.LOAD, ops.STORE, ops.REDUCE) and u.dtype.bits]
    lanes = max(2, capabilities.vector_bits // max([*bits, 8]))
    return [lanes, *[n for n in (lanes // 2, lanes * 2, lanes * 4) if 2 <= n <= 64]]


def _divisors(n: int, low: int, high: int) -> list[int]:
    return [d for d in range(max(2, low), min(high, 256, n) + 1) if n % d == 0]


def _kind(draft: Draft, name: str) -> str:
    return next((a.kind for axes in draft.axes.values() for a in axes if a.name == name), "loop")


def _loops(draft: Draft) -> list[str]:
    return [n for n in draft.order if _kind(draft, n) in ("loop", "thread", "chunk")]


def _taken(draft: Draft, label: str) -> bool:
    return any(a.name == label for axes in draft.axes.values() for a in axes)


def _fresh(draft: Draft, name: str, kind: str) -> str:
    """Return a name for a new axis of a range that no axis has."""
    label, n = f"{name}{_LETTERS[kind]}", 2
    while _taken(draft, label):
        label, n = f"{name}{_LETTERS[kind]}{n}", n + 1
    return label
