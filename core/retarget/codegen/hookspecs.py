"""The hooks, in call order: all that a plugin can add to, wrap or replace between a kernel and machine code.

`ctx` is the emission context of one kernel, `uop` the micro-operation (`.op`, `.dtype`, `.src`, `.arg`), and
`operands` what the hooks returned for `uop.src`, in order: opaque to the core, a string for a C-family
renderer.  "First result" means that implementations are asked from the last registered (extension plugins) to
the first (the backend's own renderer) until one returns something other than None.  An implementation may
take fewer arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from ..ir.uop import UOp

hookspec = pluggy.HookspecMarker("retarget")


# Kernels: before there are uops -----------------------------------------------------------------------------


@hookspec(firstresult=True)
def claim_kernel(kernel: Any, target: str) -> Any:
    """Take a whole kernel, for example to a vendor's library.

    When: when the plan of a graph is made, before the kernel is scheduled.
    How often: once per kernel of a plan, in each process: a plan with claimed kernels is not stored.
    Who wins: first result.
    Returns: an executable for the kernel (outputs' handles first, then inputs'), or None to let it be
    generated.
    """


@hookspec(firstresult=True)
def choose_schedule(kernel: Any, target: str) -> Any:
    """Choose the schedule of a kernel instead of the tuned ones and the built-in heuristics.

    When: after fusion, before the schedule is applied.
    How often: once per kernel and target.
    Who wins: first result; a schedule that the caller pinned is not asked about.  Where all answer None, a
    schedule that `retarget tune` kept wins over the heuristics.
    Returns: a schedule, or its one-line text.
    """


# Declarations: what a kernel takes and keeps ----------------------------------------------------------------


@hookspec(firstresult=True)
def define_buffer(ctx: Any, uop: UOp) -> Any:
    """Declare a buffer: a parameter, or local memory.

    When: before the uops that use the buffer.
    How often: once per buffer of a kernel.
    Who wins: first result.
    Returns: the rendered pointer.
    """


@hookspec(firstresult=True)
def define_var(ctx: Any, uop: UOp) -> Any:
    """Declare an integer parameter that is bound at launch.

    When: before the uops that use the variable.
    How often: once per variable of a kernel.
    Who wins: first result.
    Returns: the rendered value.
    """


@hookspec(firstresult=True)
def define_register(ctx: Any, uop: UOp) -> Any:
    """Declare a register array or an accumulator.

    When: before the loop that fills it.
    How often: once per register array of a kernel.
    Who wins: first result.
    Returns: the rendered storage.
    """


# Values: one call per uop -----------------------------------------------------------------------------------


@hookspec(firstresult=True)
def render_special(ctx: Any, uop: UOp) -> Any:
    """Render a position in the launch: a block, thread, warp or chunk index.

    When: at the index's first use in program order.
    How often: once per index of a kernel.
    Who wins: first result.
    Returns: the rendered value.
    """


@hookspec(firstresult=True)
def render_const(ctx: Any, uop: UOp) -> Any:
    """Render a constant.

    When: before the uops that use the constant.
    How often: once per distinct constant of a kernel.
    Who wins: first result.
    Returns: the rendered value.
    """


@hookspec(firstresult=True)
def render_alu(ctx: Any, uop: UOp, operands: tuple[Any, ...]) -> Any:
    """Render arithmetic, comparison, selection or a native function.

    When: at the uop, in program order.
    How often: once per uop, and again for each instance of an unrolled loop that the driver replays, unless
        one with the same operands is visible there.
    Who wins: first result.
    Returns: the rendered value.
    """


@hookspec(firstresult=True)
def render_cast(ctx: Any, uop: UOp, operands: tuple[Any, ...]) -> Any:
    """Render CAST, which keeps the value, or BITCAST, which keeps the bits.

    When: at the uop, in program order.
    How often: once per uop, and again for each instance of an unrolled loop that the driver replays, unless
        one with the same operands is visible there.
    Who wins: first result.
    Returns: the rendered value.
    """


@hookspec(firstresult=True)
def render_vector(ctx: Any, uop: UOp, operands: tuple[Any, ...]) -> Any:
    """Render VECTORIZE, BROADCAST or GEP: vectors from lanes, and lanes from vectors.

    When: at the uop, in program order.
    How often: once per uop, and again for each instance of an unrolled loop that the driver replays, unless
        one with the same operands is visible there.
    Who wins: first result.
    Returns: the rendered value.
    """


@hookspec(firstresult=True)
def render_load(ctx: Any, uop: UOp, operands: tuple[Any, ...]) -> Any:
    """Render a load, with its gate if it has one.

    When: at the uop, in program order.
    How often: once per uop, and again for each instance of an unrolled loop that the driver replays, unless
        one with the same operands is visible there.
    Who wins: first result.
    Returns: the rendered value.
    """


@hookspec(firstresult=True)
def render_store(ctx: Any, uop: UOp, operands: tuple[Any, ...]) -> Any:
    """Render a store, with its gate if it has one.

    When: at the uop, in program order.
    How often: once per uop, and again for each instance of an unrolled loop that the driver replays.
    Who wins: first result.
    Returns: anything but None; nothing uses it.
    """


@hookspec(firstresult=True)
def render_wmma(ctx: Any, uop: UOp, operands: tuple[Any, ...]) -> Any:
    """Render a matrix instruction on fragments.

    When: at the uop, in program order.
    How often: once per uop, and again for each instance of an unrolled loop that the driver replays, unless
        one with the same operands is visible there.
    Who wins: first result.
    Returns: the rendered accumulator fragment.
    """


# Control: loops, conditions, and threads that meet ----------------------------------------------------------


@hookspec(firstresult=True)
def begin_loop(ctx: Any, uop: UOp, operands: tuple[Any, ...]) -> Any:
    """Open a loop.

    When: before the uops of the loop's body.
    How often: once per loop that the driver does not replay.
    Who wins: first result.
    Returns: the rendered loop index.
    """


@hookspec(firstresult=True)
def end_loop(ctx: Any, uop: UOp) -> Any:
    """Close the innermost open loop.

    When: after the uops of the loop's body.
    How often: once per `begin_loop`.
    Who wins: first result.
    Returns: anything but None; nothing uses it.
    """


@hookspec(firstresult=True)
def begin_if(ctx: Any, uop: UOp, operands: tuple[Any, ...]) -> Any:
    """Open a conditional block.

    When: before the guarded uops.
    How often: once per condition.
    Who wins: first result.
    Returns: anything but None; nothing uses it.
    """


@hookspec(firstresult=True)
def end_if(ctx: Any, uop: UOp) -> Any:
    """Close the innermost open conditional block.

    When: after the guarded uops.
    How often: once per `begin_if`.
    Who wins: first result.
    Returns: anything but None; nothing uses it.
    """


@hookspec(firstresult=True)
def render_barrier(ctx: Any, uop: UOp) -> Any:
    """Make the threads of a block wait for each other.

    When: between writes to local memory and the reads that depend on them, and back.
    How often: once per barrier uop.
    Who wins: first result.
    Returns: anything but None; nothing uses it.
    """


@hookspec(firstresult=True)
def render_shuffle(ctx: Any, uop: UOp, operands: tuple[Any, ...]) -> Any:
    """Read a value from another lane of the warp.

    When: at the uop, in program order.
    How often: once per uop, and again for each instance of an unrolled loop that the driver replays.
    Who wins: first result.
    Returns: the rendered value.
    """


# Asynchronous stages: copies that run ahead -----------------------------------------------------------------


@hookspec(firstresult=True)
def stage_copy(ctx: Any, uop: UOp, operands: tuple[Any, ...]) -> Any:
    """Start an asynchronous copy into a stage.

    When: at the uop, in program order.
    How often: once per piece that a thread copies.
    Who wins: first result.
    Returns: anything but None; nothing uses it.
    """


@hookspec(firstresult=True)
def stage_commit(ctx: Any, uop: UOp) -> Any:
    """Close a group of asynchronous copies.

    When: after the last `stage_copy` of a tile.
    How often: once per tile of a multi-buffered stage.
    Who wins: first result.
    Returns: anything but None; nothing uses it.
    """


@hookspec(firstresult=True)
def stage_wait(ctx: Any, uop: UOp) -> Any:
    """Wait until a group of asynchronous copies has arrived.

    When: before the first read of a tile.
    How often: once per tile of a multi-buffered stage.
    Who wins: first result.
    Returns: anything but None; nothing uses it.
    """


# The whole kernel, and after --------------------------------------------------------------------------------


@hookspec
def render_preamble(ctx: Any) -> Any:
    """Contribute text that stands before the kernel: headers, helper functions, extensions.

    When: after all uops of a kernel are rendered.
    How often: once per kernel.
    Who wins: nobody; all results are kept, in call order.
    Returns: the text, or None for nothing.
    """


@hookspec(firstresult=True)
def render_kernel(ctx: Any, body: Any) -> Any:
    """Put the kernel together: preamble, signature and body.

    When: last, after `render_preamble`.
    How often: once per kernel.
    Who wins: first result.
    Returns: the complete source text.
    """


@hookspec
def on_compiled(kernel: Any, source: Any, binary: Any) -> None:
    """Look at what a compiler made.

    When: after a kernel was compiled, also by `rt.compile`; not when a cache had it.
    How often: once per compilation.
    Who wins: nobody; everyone is told.
    Returns: nothing.
    """
