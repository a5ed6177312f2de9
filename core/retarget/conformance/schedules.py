"""Random legal schedules of a kernel: splits that divide and splits that do not, every axis kind, any order,
and stages where they are asked for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from ..errors import InternalError, ScheduleError, UnknownNameError
from ..ir import ops
from ..ir.index import irange, range_size
from ..linearize.linearize import linearize
from ..optimize.apply import apply_schedule
from ..optimize.schedule import Axis, Schedule, Stage
from ..registry.capabilities import Capabilities
from ..schedule.kernel import Kernel

_WIDTHS = (2, 4, 8, 16)
#: Most copies of a loop body that unrolling makes: compilers take minutes for some hundreds.
_UNROLLED = 24
_LETTERS = {"loop": "l", "unroll": "u", "own": "a"}


def random_schedule(
    kernel: Kernel, rng: random.Random, capabilities: Capabilities, stages: bool = False
) -> Schedule:
    """Return a schedule that may or may not be legal for a kernel."""
    reduced = {r for u in kernel.nodes if u.op is ops.REDUCE for r in u.src[1:]}
    kinds = [k for k in ("unroll", "vector") if k in capabilities.axis_kinds]
    if capabilities.vector_bits == 0 and "vector" in kinds:
        kinds.remove("vector")
    splits: list[tuple[str, list[Axis]]] = []
    names: list[str] = []
    vector_left = thread_left = True
    candidates = list(kernel.ranges.items())
    rng.shuffle(candidates)
    free = [n for n, r in candidates if r not in reduced and not r.src]
    key = ""
    if len(free) > 1 and rng.random() < 0.2:  # two ranges as one
        one, other = (kernel.ranges[n] for n in free[:2])
        key = f"{free[0]}*{free[1]}"
        candidates = [(n, r) for n, r in candidates if n not in free[:2]]
        candidates.append((free[0], irange(range_size(one) * range_size(other), key)))
    for name, r in candidates:
        merged = bool(key) and r.arg[0] == key
        axes = [Axis(f"{name}o")]
        size = range_size(r)
        if rng.random() < 0.7:
            own: list[str] = ["own"] if r in reduced else []
            kind = rng.choice([*kinds, "loop", *own])
            if kind == "vector" and vector_left:
                axes.append(Axis(f"{name}v", rng.choice(_WIDTHS), "vector"))
                vector_left = rng.random() < 0.2
            elif kind != "vector":
                axes.append(Axis(f"{name}{_LETTERS[kind]}", rng.choice((2, 3, 4, min(size, 5))), kind))
            if rng.random() < 0.4:
                inner = rng.choice(["loop", *[k for k in kinds if k != "vector"]])
                axes.insert(1, Axis(f"{name}x", rng.choice((2, 3, 4)), inner))
        if thread_left and "thread" in capabilities.axis_kinds and rng.random() < 0.3:
            if r in reduced and rng.random() < 0.5:  # phases: pieces of more than one step
                axes[0] = Axis(f"{name}t", rng.choice((2, 3, 4)), "thread")
                axes.insert(1, Axis(f"{name}o"))
            else:
                axes[0] = Axis(axes[0].name, None, "thread")
            thread_left = False
        if "block" in capabilities.axis_kinds:
            axes = _parallel(name, axes, size, r in reduced, rng, capabilities)
        if len(axes) > 1 and r not in reduced and not r.src and not merged and rng.random() < 0.3:
            axes[0] = replace(axes[0], slides=True)
        if len(axes) > 1 or axes[0].kind != "loop" or merged:
            splits.append((key if merged else name, axes))
            names += [a.name for a in axes if a.kind not in ("thread", "grid")]
        else:
            names.append(name)
    splits = _tamed(splits)
    rng.shuffle(names)
    order = names[: rng.randint(0, len(names))] if rng.random() < 0.5 else names
    chosen = _stages(kernel, rng, names, capabilities) if stages else []
    kept = any(stage.space == "out" for stage in chosen)
    streams = [s.src[0].arg[0] for s in kernel.stores if rng.random() < 0.3] if not kept else []
    return Schedule.of(splits, order, chosen, streams)


def _parallel(
    name: str, axes: list[Axis], size: int, reduced: bool, rng: random.Random, capabilities: Capabilities
) -> list[Axis]:
    """Return the axes of a range with some of them, or some more, for blocks and threads of a grid."""
    axes = list(axes)
    if size == 1:
        return axes
    if not reduced and axes[0].kind == "loop" and rng.random() < 0.4:
        axes[0] = Axis(axes[0].name, None, "grid")
    if rng.random() < 0.4:
        axes.insert(
            rng.randint(1, len(axes)),
            Axis(f"{name}b", rng.choice([n for n in (2, 3, 4, 8, 16) if n < 2 * size]), "block"),
        )
    if "warp" in capabilities.axis_kinds and rng.random() < 0.2:
        axes.insert(rng.randint(1, len(axes)), Axis(f"{name}w", rng.choice((2, 4, 8)), "warp"))
    return axes


def _tamed(splits: list[tuple[str, list[Axis]]]) -> list[tuple[str, list[Axis]]]:
    """Return the splits with ordinary loops for what would unroll to too many copies of a body."""
    copies, found = 1, []
    for name, axes in splits:
        kept = []
        for a in axes:
            if a.kind in ("unroll", "own"):
                copies *= a.size or 1
                a = a if copies <= _UNROLLED else replace(a, kind="loop")
            kept.append(a)
        found.append((name, kept))
    return found


def _stages(kernel: Kernel, rng: random.Random, names: list[str], capabilities: Capabilities) -> list[Stage]:
    """Return some stages: of parameters that are read, or of an expression."""
    found: dict[str, Stage] = {}
    for _ in range(rng.choice((1, 1, 2))):
        for stage in _stage(kernel, rng, names, capabilities):
            found.setdefault(stage.what, stage)
    return list(found.values())


def _stage(kernel: Kernel, rng: random.Random, names: list[str], capabilities: Capabilities) -> list[Stage]:
    """Return at most one stage."""
    if rng.random() < 0.6 or not names:
        return []
    params = [u.arg[0] for u in kernel.nodes if u.op is ops.PARAM and not u.arg[2]]
    expressions = [
        u.op.name for u in kernel.nodes if u.op in ops.UNARY_FUNCTIONS or u.op in (ops.MUL, ops.ADD)
    ]
    spaces = [s for s in ("local", "register") if s in capabilities.address_spaces]
    at = rng.choice([*names, "top"])
    if params and (not expressions or rng.random() < 0.5):
        return [_tile(rng.choice(params), at, names, rng, spaces, capabilities)]
    return [Stage(rng.choice(expressions), at, (), rng.choice([*spaces, "out"]))] if expressions else []


def _tile(
    what: str,
    at: str,
    names: list[str],
    rng: random.Random,
    spaces: Sequence[str],
    capabilities: Capabilities,
) -> Stage:
    """Return a stage of a parameter, perhaps turned, or, where blocks share it, with a width and slots."""
    space = rng.choice(spaces)
    if space != "local" or "block" not in capabilities.axis_kinds:
        vectors = "vector" in capabilities.axis_kinds and capabilities.vector_bits
        turned = rng.choice(_WIDTHS) if vectors and rng.random() < 0.5 else 0
        # A layout may name axes that the tile has no dimension for.
        layout = tuple(rng.sample(names, len(names))) if rng.random() < 0.5 else ()
        return Stage(what, at, layout, space, turned=turned)
    layout = tuple(rng.sample(names, len(names))) if rng.random() < 0.4 else ()
    padding = tuple([rng.choice((0, 0, 1, 4)) for _ in layout]) if rng.random() < 0.6 else ()
    if not any(padding):
        padding = ()
    return Stage(what, at, layout, space, padding, rng.choice((1, 1, 2, 4)), rng.choice((1, 1, 2, 3)))


def legal_schedule(
    kernel: Kernel, seed: int | str, capabilities: Capabilities, attempts: int = 20, stages: bool = False
) -> tuple[Schedule, int]:
    """Return the first legal one of some random schedules, and how many illegal ones came before."""
    rng = random.Random(seed)
    for refused in range(attempts):
        schedule = random_schedule(kernel, rng, capabilities, stages)
        try:
            linearize(apply_schedule(kernel, schedule, capabilities.tensor_cores), capabilities)
        except (ScheduleError, UnknownNameError):
            continue
        except InternalError:
            pass  # the caller runs into it again, and reports it with the schedule
        return schedule, refused
    return Schedule(), attempts
