"""`linearize`: a scheduled kernel as a verified linear program."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from ..codegen.legalize import Legalizer
from ..codegen.program import Program
from ..errors import ScheduleError
from ..ir import dtypes, ops
from ..ir.index import TRUE, range_size
from ..ir.ops import Op
from ..ir.sizes import upper
from ..ir.uop import UOp, const, toposort
from ..ir.verify import verify_program
from ..optimize.apply import Scheduled
from ..optimize.schedule import PARALLEL
from ..registry.backend import Argument
from ..registry.capabilities import Capabilities
from .grid import map_axes
from .images import LANES, images_of
from .local import placement, size_in_bytes
from .place import Placer
from .translate import UNLOOPED, Translator, needs_int64


def linearize(
    scheduled: Scheduled,
    capabilities: Capabilities,
    translation: dict[UOp, UOp] | None = None,
    fast_math: bool = False,
) -> Program:
    """Return the linear program of a scheduled kernel for a target.

    Parameters
    ----------
    scheduled, capabilities
        What to linearize, and what the target can do.
    translation
        Filled, if given, with what each scheduled node became: for those who show where a uop comes from.
    fast_math
        Allow the shorter formulas of `docs/accuracy.md`.

    Raises
    ------
    ScheduleError
        If the schedule cannot be carried out on this target.
    VerifyError
        If the result is ill-formed, which is a bug of ours.
    """
    nodes = scheduled.nodes
    flat: dict[UOp, UOp] = {}
    index = dtypes.int64 if needs_int64(nodes, flat) else dtypes.int32
    name = kernel_name(scheduled)
    scheduled, grid = map_axes(scheduled, capabilities, index)
    params = sorted([u for u in scheduled.kernel.nodes if u.op is ops.PARAM], key=_argument_order)
    images = images_of(scheduled.schedule.images, params, capabilities)
    legalize = Legalizer(capabilities, fast_math)
    translate = Translator(legalize, index, scheduled.order, grid, flat, images)
    unlooped = (*UNLOOPED, *[k for k in PARALLEL if k in capabilities.axis_kinds])
    phase: list[UOp] = []
    if scheduled.phases:
        phase.append(UOp(ops.VAR, index, (), (_phase_name(scheduled), 0, len(scheduled.phases) - 1)))
        body = []
        done = 0
        for n, count in enumerate(scheduled.phases):
            part = replace(scheduled, stores=scheduled.stores[done : done + count])
            again = Translator(legalize, index, scheduled.order, grid, flat, images)
            block = Placer(part, again, unlooped, bool(capabilities.async_copies)).run()
            body += guarded(block, UOp(ops.CMPEQ, dtypes.bool_, (phase[0], const(n, index))))
            done += count
    else:
        body = Placer(scheduled, translate, unlooped, bool(capabilities.async_copies)).run()
    if grid.guard is not TRUE:
        body = guarded(body, translate.mask(grid.guard))
    local_bytes = check_local(body, capabilities)
    if translation is not None:
        translation.update(translate.memo)
        translation.update({reduction: array for reduction, (array, _) in translate.accumulators.items()})
    kernel = scheduled.kernel
    params += scheduled.scratch
    variables = kernel.variables
    linear_variables = [*[translate.position(u) for u in variables], *phase]
    places = [images[p].uop if p in images else p for p in params]
    uops = (*places, *linear_variables, *grid.special.values(), *body)
    verify_program(uops, where=f"linearize {name}")
    arguments = (
        *[
            Argument(p.arg[0], "image", p.dtype.name, (*images[p].uop.arg[1], LANES), p.arg[2])
            if p in images
            else Argument(p.arg[0], "buffer", p.dtype.name, tuple([upper(n) for n in p.arg[1]]), p.arg[2])
            for p in params
        ],
        *[Argument(u.arg[0], "variable", "int64") for u in linear_variables],
    )
    threads = [r for r in scheduled.order if r.arg[2] == "thread"]
    launch = grid.launch(range_size(threads[0]) if threads else 1)._replace(local_bytes=local_bytes)
    if scheduled.phases:
        launch = launch._replace(phases=_chunks(scheduled, threads[0]), scratch=len(scheduled.scratch))
    if any(u.op is ops.STORE and u.arg == "stream" for u in body):
        launch = launch._replace(aligned=len(kernel.stores))
    return Program(name, uops, arguments, launch, kernel.flops, kernel.bytes)


def _phase_name(scheduled: Scheduled) -> str:
    """Return a name for the phase's number that no variable of the kernel has."""
    name = "phase"
    while any(u.arg[0] == name for u in scheduled.kernel.variables):
        name += "_"
    return name


def _chunks(scheduled: Scheduled, thread: UOp) -> tuple[int, ...]:
    """Return the number of chunks of each phase: 1 for one without the thread axis."""
    found, done = [], 0
    for count in scheduled.phases:
        stores = scheduled.stores[done : done + count]
        found.append(range_size(thread) if any(thread in s.ranges for s in stores) else 1)
        done += count
    return tuple(found)


def guarded(body: list[UOp], condition: UOp) -> list[UOp]:
    """Return a body that runs where the condition holds."""
    block = UOp(ops.IF, dtypes.void, (condition,))
    before = [u for u in toposort([condition]) if u.op.effect is not ops.Effect.DEFINE]
    return [*before, block, *body, UOp(ops.ENDIF, dtypes.void, (block,))]


def check_local(body: Sequence[UOp], capabilities: Capabilities) -> int:
    """Return the bytes of local memory that a block has; none without blocks: that is the stack.

    The stack is where arrays of accumulators are, too.

    Raises
    ------
    ScheduleError
        If it is more than the target gives.
    """
    blocks = "block" in capabilities.axis_kinds
    spaces = ("local",) if blocks else ("local", "register")
    sizes = {u: size_in_bytes(u) for u in body if u.op is ops.LOCAL and u.arg[2] in spaces}
    total = placement(sizes).total if blocks else sum(sizes.values())
    limit = capabilities.limits.local_bytes
    if limit and total > limit:
        text = ", ".join(f"{u.arg[0]} {n}" for u, n in sizes.items())
        raise ScheduleError(
            f"the kernel keeps {total} bytes in local memory ({text}); {capabilities.target} has {limit}"
        )
    return total if blocks else 0


def _argument_order(param: UOp) -> tuple[bool, int]:
    name = param.arg[0]
    return (not param.arg[2], int(name.lstrip("outin")))


def kernel_name(scheduled: Scheduled) -> str:
    """Return an identifier that tells a kernel's kind, shape and schedule, such as "sum_64x128_3f2a91".

    Kind and shape are the kernel's own, whatever the schedule makes of its reductions.
    """
    nodes = scheduled.kernel.nodes
    folds: list[Op] = [u.arg for u in nodes if u.op is ops.REDUCE]
    if not folds:
        kind = "map"
    elif len(folds) == 1 and any(
        u.op is ops.REDUCE and u.arg is ops.ADD and u.src[0].op in (ops.MUL, ops.WMMA) for u in nodes
    ):
        kind = "dot"
    else:
        words = {ops.ADD: "sum", ops.MUL: "prod", ops.MAXIMUM: "max", ops.MINIMUM: "min"}
        kind = "_".join(dict.fromkeys(words.get(f, f.name.lower()) for f in folds))
    sizes = [str(n) if type(n) is int else "n" for n in scheduled.kernel.outputs[0].shape]
    shape = "x".join(sizes) or "scalar"
    position: dict[UOp, int] = {}
    text = [str(scheduled.schedule)]
    for u in scheduled.kernel.nodes:
        text.append(f"{u.op.name} {u.dtype.name} {u.arg} {[position[s] for s in u.src]}")
        position[u] = len(position)
    digest = hashlib.sha256("\n".join(text).encode()).hexdigest()[:8]
    return f"{kind}_{shape}"[:48].rstrip("_x") + f"_{digest}"
