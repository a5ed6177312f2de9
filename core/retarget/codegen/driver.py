"""The emission driver: walks a linear program and calls one hook per uop with operands that are already
rendered.

The driver owns what all targets share: which hook an op goes to, the scopes in which rendered values are
visible, when a value gets a name, the replay of unrolled loops, and provenance.  It knows nothing about any
language.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import CompileError, InternalError
from ..ir import dtypes, ops
from ..ir.ops import Op
from ..ir.uop import UOp, const
from ..registry.backend import Source
from .hooks import ResolvedHooks
from .program import Program
from .renderer import Renderer

#: Op -> (hook, whether the hook takes operands).
HOOK_OF: dict[Op, tuple[str, bool]] = {
    ops.PARAM: ("define_buffer", False), ops.LOCAL: ("define_buffer", False), ops.VAR: ("define_var", False),
    ops.SPECIAL: ("render_special", False), ops.CONST: ("render_const", False),
    ops.CAST: ("render_cast", True), ops.BITCAST: ("render_cast", True),
    ops.BROADCAST: ("render_vector", True), ops.VECTORIZE: ("render_vector", True),
    ops.GEP: ("render_vector", True), ops.FOLD: ("render_vector", True),
    ops.LOAD: ("render_load", True), ops.STORE: ("render_store", True), ops.WMMA: ("render_wmma", True),
    ops.RANGE: ("begin_loop", True), ops.END: ("end_loop", False), ops.IF: ("begin_if", True),
    ops.ENDIF: ("end_if", False), ops.BARRIER: ("render_barrier", False),
    ops.SHUFFLE: ("render_shuffle", True),
    ops.IMAGE: ("define_buffer", False), ops.IMAGE_LOAD: ("render_load", True),
    ops.IMAGE_STORE: ("render_store", True),
    ops.STAGE_COPY: ("stage_copy", True), ops.STAGE_COMMIT: ("stage_commit", False),
    ops.STAGE_WAIT: ("stage_wait", False),
}  # fmt: skip
HOOK_OF.update(dict.fromkeys(ops.ALU_OPS, ("render_alu", True)))

_OPENS = frozenset({ops.RANGE, ops.IF})
_CLOSES = frozenset({ops.END, ops.ENDIF})
_STATEMENTS = frozenset({
    ops.STORE, ops.IMAGE_STORE, ops.BARRIER, ops.STAGE_COPY, ops.STAGE_COMMIT, ops.STAGE_WAIT,
    *_OPENS, *_CLOSES,
})  # fmt: skip
_PURE = frozenset({
    *ops.ALU_OPS, ops.CAST, ops.BITCAST, ops.BROADCAST, ops.VECTORIZE, ops.GEP, ops.FOLD, ops.WMMA
})  # fmt: skip
_NEVER_NAMED = frozenset({ops.PARAM, ops.IMAGE, ops.LOCAL, ops.VAR, ops.SPECIAL, ops.CONST, ops.RANGE})


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who wrote one line: a uop's position in the program (-1: not one uop's), a hook, its plugins."""

    position: int
    op: str
    hook: str
    plugins: tuple[str, ...]


class EmitContext:
    """The state of one rendering, handed to every hook.

    Attributes
    ----------
    program, target
        What is rendered, and for what.
    renderer
        The backend's renderer; an extension may call its helper methods.
    state
        The renderer's own state.
    lines
        The body so far; add to it with `line`.
    depth
        Nesting depth: `line` indents by it.  The hooks that open and close blocks change it.
    preamble
        Ordered set of texts that must precede the kernel (types, helper functions): key -> text.
    """

    def __init__(self, program: Program, renderer: Renderer, hooks: ResolvedHooks, provenance: bool) -> None:
        self.program = program
        self.target = renderer.target
        self.renderer = renderer
        self.hooks = hooks
        self.lines: list[str] = []
        self.depth = 1
        self.preamble: dict[str, str] = {}
        self.position = -1
        self.hook = ""
        self.op = ""
        self.provenance: list[Provenance] | None = [] if provenance else None
        self._counters: dict[str, int] = {}
        self._known: dict[Any, Any] = {}
        #: For each open block, the keys that it added to `_known`.
        self._learnt: list[list[Any]] = [[]]
        self.state = renderer.new_state(self)

    def line(self, text: str) -> None:
        """Append one line of the body at the current depth."""
        self.lines.append("  " * self.depth + text)
        if self.provenance is not None:
            names = tuple(e.plugin for e in self.hooks.explain(self.hook, self.op, None)) if self.hook else ()
            self.provenance.append(Provenance(self.position, self.op, self.hook, names))

    def fresh(self, prefix: str) -> str:
        """Return an identifier that this rendering has not used: `prefix` and a number."""
        n = self._counters.get(prefix, 0)
        self._counters[prefix] = n + 1
        return f"{prefix}{n}"

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` emitted for a key, calling it only if that is not visible here already.

        For values that depend on nothing but their key: a replayed body asks for many of them again.
        """
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = make()
            self._learnt[-1].append(key)
        return found


def emit(program: Program, renderer: Renderer, hooks: ResolvedHooks, *, provenance: bool = False) -> Source:
    """Render a program.

    Parameters
    ----------
    program
        A verified linear program.
    renderer
        The target's renderer.
    hooks
        The resolved hook chains of the target: the renderer and the extension plugins over it.
    provenance
        Whether to record, for each line of the text, which uop, hook and plugins wrote it.

    Raises
    ------
    CompileError
        If no plugin renders one of the ops.
    """
    ctx = EmitContext(program, renderer, hooks, provenance)
    _Driver(ctx).run()
    ctx.position, ctx.op, ctx.hook = -1, "", "render_preamble"
    for part in hooks.chain("render_preamble", None, None)(ctx):
        ctx.preamble.setdefault(part, part)
    ctx.hook = "render_kernel"
    body_start = len(ctx.lines)
    text = hooks.chain("render_kernel", None, None)(ctx, ctx.lines[:body_start])
    if text is None:
        raise CompileError(f"no plugin renders whole kernels for {renderer.target} (hook render_kernel)")
    lines = () if ctx.provenance is None else _by_line(ctx, text, body_start)
    return Source(text, program.name, renderer.target, program.arguments, program.launch, lines)


def _by_line(ctx: EmitContext, text: str, body_size: int) -> tuple[Provenance, ...]:
    """Return who wrote each line of a kernel's text; those around the body are the hooks' that finish it."""

    def finishing(hook: str) -> Provenance:
        return Provenance(-1, "", hook, tuple(step.plugin for step in ctx.hooks.explain(hook)))

    preamble = {line for part in ctx.preamble.values() for line in part.splitlines()}
    around = {hook: finishing(hook) for hook in ("render_preamble", "render_kernel")}
    written = (ctx.provenance or [])[:body_size]
    body = [
        (line.strip(), who)
        for each, who in zip(ctx.lines, written, strict=False)
        for line in each.splitlines()
    ]
    records: list[Provenance] = []
    at = 0
    for line in text.splitlines():
        if at < len(body) and line.strip() == body[at][0]:
            records.append(body[at][1])
            at += 1
        else:
            records.append(around["render_preamble" if not at and line in preamble else "render_kernel"])
    return tuple(records)


class _Step(NamedTuple):
    """What to do at one position of the program, worked out ahead: replayed loops repeat it often."""

    uop: UOp
    hook: Callable[..., Any]
    name: str
    #: Positions of the operands; None where the hook takes none.
    sources: list[int] | None
    statement: bool
    opens: bool
    closes: bool
    replayed: bool
    bound: bool
    reads: bool
    #: Not 0 where the same operands give the same value: then it is the same for steps of one meaning.
    meaning: int


class _Rule(NamedTuple):
    """What all uops of one op and dtype have in common."""

    hook: Callable[..., Any]
    name: str
    takes_operands: bool
    statement: bool
    opens: bool
    closes: bool
    named: bool


class _Driver:
    """One walk over a program.

    Which standing of a uop an operand means depends on blocks alone, so it is known beforehand; the value
    that was rendered last at each position is kept.
    """

    def __init__(self, ctx: EmitContext) -> None:
        self.ctx = ctx
        self.uops = ctx.program.uops
        self.named = ctx.renderer.names_values
        self.rules: dict[tuple[Any, Any], _Rule] = {}
        self.values: list[Any] = [None] * len(self.uops)
        #: Values written in place that read memory and are not consumed yet; named before memory changes.
        self.pending: dict[int, None] = {}
        replay = ctx.renderer.unroll == "replay"
        #: (op, dtype, argument, dtypes of the operands) -> number, for values in replayed loops.
        self.meanings: dict[Any, int] = {}
        self.ends = _matching_ends(self.uops) if replay else {}
        operands, deeper = _resolve(self.uops, ctx.program.name)
        named_at = self._name_values(operands, deeper) if self.named else None
        self.steps: list[_Step] = []
        repeated = 0  # up to which position the body of a replayed loop goes
        for n, u in enumerate(self.uops):
            op = u.op
            rule = self._rule(op, u.dtype, op is ops.LOCAL and u.arg[2] == "register")
            replayed = replay and op is ops.RANGE and u.arg[2] == "unroll" and u.arg[1] is not None
            self.steps.append(_Step(
                u, rule.hook, rule.name, operands[n] if rule.takes_operands else None, rule.statement,
                rule.opens, rule.closes, replayed, rule.named and named_at is not None and named_at[n],
                op is ops.LOAD, self._meaning(u) if n < repeated and not self.named else 0,
            ))  # fmt: skip
            if replayed:
                repeated = max(repeated, self.ends[n])

    def _rule(self, op: Op, dtype: dtypes.DType, register: bool = False) -> _Rule:
        key = (register or op, dtype)
        found = self.rules.get(key)
        if found is None:
            entry = HOOK_OF.get(op)
            if entry is None:
                raise InternalError(f"{op} does not belong in a linear program")
            name, takes_operands = ("define_register", False) if register else entry
            hook = self.ctx.hooks.chain(name, op.name, dtype.scalar.name)
            statement = op in _STATEMENTS
            found = self.rules[key] = _Rule(
                hook, name, takes_operands, statement, op in _OPENS, op in _CLOSES,
                op not in _NEVER_NAMED and not statement,
            )  # fmt: skip
        return found

    def _meaning(self, u: UOp) -> int:
        """Return a number for what a step computes from its operands, 0 if that is not all that counts.

        Loads of what the kernel does not write count as computed.
        """
        op = u.op
        if op not in _PURE and (op is not ops.LOAD or u.src[0].op is not ops.PARAM or u.src[0].arg[2]):
            return 0
        key = (op, u.dtype, u.arg, *[s.dtype for s in u.src])
        return self.meanings.setdefault(key, len(self.meanings) + 1)

    def run(self) -> None:
        self._span(0, len(self.uops))

    def _span(self, start: int, stop: int) -> None:
        ctx, steps, named, values, pending = self.ctx, self.steps, self.named, self.values, self.pending
        known = ctx._known
        n = start
        while n < stop:
            u, hook, name, sources, statement, opens, closes, replayed, bound, reads, same = steps[n]
            if replayed:
                self._replay(u, n)
                n = self.ends[n] + 1
                continue
            ctx.position, ctx.op, ctx.hook = n, u.op.name, name
            if sources is None:
                if statement:
                    self._flush()
                if closes:
                    for key in ctx._learnt.pop():
                        del known[key]
                value = hook(ctx, u)
            else:
                operands = [values[at] for at in sources]
                if same:
                    key = (same, *operands)
                    value = known.get(key)
                    if value is None:
                        value = known[key] = hook(ctx, u, operands)
                        ctx._learnt[-1].append(key)
                else:
                    if pending:
                        for at in sources:
                            if at in pending:
                                del pending[at]
                                reads = True
                        if statement:
                            self._flush()
                    value = hook(ctx, u, operands)
                if opens:
                    ctx._learnt.append([])
            if value is None:
                if not statement:
                    raise CompileError(
                        f"no plugin renders {u.op} of {u.dtype} for {ctx.target} (hook {name}); "
                        f"`retarget explain {name} --target {ctx.target}` lists who was asked"
                    )
            elif bound:
                value = ctx.renderer.bind(ctx, u, value)
            elif named and reads and not statement:
                pending[n] = None
            values[n] = value
            n += 1

    def _replay(self, u: UOp, n: int) -> None:
        """Emit the body of an unrolled loop once for each index, with the range rendered as that constant."""
        hook = self._rule(ops.CONST, u.dtype).hook
        end = self.ends[n]
        for i in range(u.arg[1]):
            self.values[n] = hook(self.ctx, const(i, u.dtype))
            self._span(n + 1, end)

    def _flush(self) -> None:
        """Name the values that read memory and are still to be used, since memory is about to change."""
        values = self.values
        for n in self.pending:
            values[n] = self.ctx.renderer.bind(self.ctx, self.uops[n], values[n])
        self.pending.clear()

    def _name_values(self, operands: list[list[int]], deeper: list[bool]) -> list[bool]:
        """Say for each position whether its value needs a name: used more than once, or inside a deeper loop.

        Scalar integers (indices) are written in place unless their text would grow; everything used exactly
        once in its own block is written in place too.
        """
        uses = [0] * len(self.uops)
        for sources in operands:
            for at in sources:
                uses[at] += 1
        named = []
        size = [1] * len(self.uops)  # of the text where the value is used
        for n, u in enumerate(self.uops):
            written = 1 + sum([size[at] for at in operands[n]])
            is_index = u.dtype.kind in ("int", "uint") and u.dtype.lanes == 1 and u.op in ops.ALU_OPS
            if u.op in _NEVER_NAMED or u.op in _STATEMENTS or u.op is ops.BROADCAST:
                name = False
            elif is_index:
                name = (uses[n] > 1 and written > 7) or written > 40
            else:
                name = uses[n] != 1 or deeper[n] or written > 40
            if not (name or u.op in _NEVER_NAMED):
                size[n] = written
            named.append(name)
        return named


def _resolve(uops: Sequence[UOp], program: str) -> tuple[list[list[int]], list[bool]]:
    """Return the positions of each uop's operands, and whether each uop is used inside a deeper block.

    A uop may stand more than once; its latest standing that is visible counts.
    """
    operands: list[list[int]] = []
    deeper = [False] * len(uops)
    depth_of = [0] * len(uops)
    latest: dict[UOp, int] = {}
    covered: list[list[tuple[UOp, int | None]]] = []  # for each open block, what it covered
    for n, u in enumerate(uops):
        op = u.op
        if op in _CLOSES:
            for s, before in reversed(covered.pop()):
                if before is None:
                    del latest[s]
                else:
                    latest[s] = before
            operands.append([])
            continue
        try:
            sources = [latest[s] for s in u.src]
        except KeyError as error:
            raise InternalError(
                f"{error.args[0].op} is used at {n} of {program} but not visible there"
            ) from None
        operands.append(sources)
        depth = depth_of[n] = len(covered)
        if depth:
            for at in sources:
                if depth_of[at] < depth:
                    deeper[at] = True
            covered[-1].append((u, latest.get(u)))
        latest[u] = n
        if op in _OPENS:
            covered.append([])
    return operands, deeper


def _matching_ends(uops: Sequence[UOp]) -> dict[int, int]:
    """Return the position of the END or ENDIF of each RANGE and IF."""
    stack: list[int] = []
    ends: dict[int, int] = {}
    for n, u in enumerate(uops):
        if u.op in _OPENS:
            stack.append(n)
        elif u.op in _CLOSES:
            ends[stack.pop()] = n
    return ends
