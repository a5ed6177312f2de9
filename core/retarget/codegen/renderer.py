"""`Renderer`: what backends derive renderers from.  Its methods implement hooks, which the driver calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ..ir.uop import UOp
    from ..registry.capabilities import Capabilities
    from .driver import EmitContext


class Renderer:
    """Base of all renderers.

    A subclass marks methods named after hooks with `@hookimpl`; the driver calls them once per uop with
    operands that are already rendered.  What an operand is (text, an SSA name) is up to the renderer; the
    core never looks inside. A renderer holds no state of one rendering: that lives in the `EmitContext`,
    whose `state` it makes.

    Attributes
    ----------
    target
        The target that it renders for.
    unroll
        "pragma": `unroll` ranges go through begin_loop/end_loop like other loops.  "replay": the driver
        repeats the body with the range rendered as a constant.
    names_values
        Whether the driver gives names (through `bind`) to values that are used more than once or outside
        their block, and writes others in place.  False where every hook already returns a name, as in SSA
        forms.
    language
        What the source is written in, as Pygments calls it ("text": nothing that can be highlighted).
    """

    unroll: Literal["pragma", "replay"] = "pragma"
    names_values: bool = True
    language: str = "c"

    def __init__(self, target: str, capabilities: Capabilities) -> None:
        self.target = target
        self.capabilities = capabilities

    def new_state(self, ctx: EmitContext) -> Any:
        """Return the renderer's own state for one rendering (kept in `ctx.state`)."""
        return None

    def bind(self, ctx: EmitContext, uop: UOp, value: Any) -> Any:
        """Emit a definition that names `value` and return the name as an operand."""
        raise NotImplementedError(f"{type(self).__name__} sets names_values but has no bind()")

    def identity(self) -> str:
        """Return what else, besides the code of the hooks, changes the rendered text; part of cache keys."""
        return self.target
