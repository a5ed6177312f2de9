"""Renders a linear program as the IR's own text: every hook writes the line of its uop.

Going through the hooks, one line each, lets extension plugins wrap or replace uops here as on any other
target.  Operands are the numbers of the lines that define them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from retarget.codegen.driver import EmitContext
from retarget.codegen.hooks import hookimpl
from retarget.codegen.renderer import Renderer
from retarget.ir.text import format_line
from retarget.ir.uop import UOp


@dataclass(slots=True)
class _State:
    """The number of the next line, and those of the lines that opened blocks."""

    next: int = 0
    open: list[int] = field(default_factory=list)


class NumpyRenderer(Renderer):
    """Writes uops as text; `unroll` loops stay loops, and every value has a number."""

    names_values = False
    language = "text"

    def new_state(self, ctx: EmitContext) -> _State:
        ctx.depth = 0
        return _State()

    def write(self, ctx: EmitContext, uop: UOp, operands: Sequence[int] = ()) -> int:
        """Write the line of a uop and return its number, which is how others refer to it."""
        number: int = ctx.state.next
        ctx.state.next += 1
        ctx.line(format_line(number, uop, operands))
        return number

    @hookimpl
    def define_buffer(self, ctx: EmitContext, uop: UOp) -> int:
        return self.write(ctx, uop)

    define_register = define_var = render_special = render_const = define_buffer
    render_barrier = stage_commit = stage_wait = define_buffer

    @hookimpl
    def render_alu(self, ctx: EmitContext, uop: UOp, operands: Sequence[int]) -> int:
        return self.write(ctx, uop, operands)

    render_cast = render_vector = render_load = render_store = render_wmma = render_alu
    render_shuffle = stage_copy = render_alu

    @hookimpl
    def begin_loop(self, ctx: EmitContext, uop: UOp, operands: Sequence[int]) -> int:
        number = self.write(ctx, uop, operands)
        ctx.state.open.append(number)
        ctx.depth += 1
        return number

    begin_if = begin_loop

    @hookimpl
    def end_loop(self, ctx: EmitContext, uop: UOp) -> int:
        ctx.depth -= 1
        return self.write(ctx, uop, [ctx.state.open.pop()])

    end_if = end_loop

    @hookimpl
    def render_kernel(self, ctx: EmitContext, body: Sequence[str]) -> str:
        return "\n".join([f"# {ctx.program.name}", *ctx.preamble.values(), *body, ""])
