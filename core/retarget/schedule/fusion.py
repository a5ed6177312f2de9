"""Which graph nodes are stored, and which share a kernel.

Everything fuses into its consumer unless one of these holds; the reasons are kept with the decision.

* It is asked for, or is a CONTIGUOUS, or the source of a COPY to another device.
* It holds a reduction whose result would be recomputed.  A reduction's results are indexed by its *row*
  axes.  They may be used by elementwise operations, broadcast back along axes inside the row axes, and be
  reduced again over those axes (a softmax, a layer norm: one kernel).  Anything else that consumes them reads
  them from memory.
* It is costly and would be evaluated again for each index of a broadcast axis that is not innermost.
* It is costly and feeds several kernels.
* The kernel would grow too deep or take too many buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..ir import ops
from ..ir.sizes import upper_numel as numel  # a size counts as its largest
from ..ir.uop import UOp, toposort

#: A fused expression is cut beyond this many graph nodes on its longest path, which bounds recursion in later
#: passes.
MAX_DEPTH = 120
#: Cost of an elementwise op, for deciding what may be computed twice; a library function costs ten simple
#: ones.
CHEAP = 4
COSTLY = 8
#: A reduction to few results may be repeated by each consumer only below this many consumers' elements.
SMALL = 1024

_FUNCTIONS = frozenset((*ops.UNARY_FUNCTIONS, ops.POW, ops.ATAN2, ops.FLOORDIV, ops.MOD))
_ELEMENTWISE = ops.ALU_OPS | {ops.CAST, ops.BITCAST}
_LEAVES = frozenset({ops.BUFFER, ops.CONST, ops.IOTA, ops.VAR})


@dataclass(frozen=True, slots=True)
class _Row:
    """A fused reduction inside an expression: its row axes (as axes of this node), and what to store to end
    the fusion.

    `limit` is the size of the data that the reduction reads: nodes up to that size may be stored instead of
    it.
    """

    axes: frozenset[int]
    points: tuple[UOp, ...]
    limit: int


@dataclass(slots=True)
class Fusion:
    """The decisions for one graph.

    Attributes
    ----------
    order
        Every node, operands first.
    stored
        Nodes that get a buffer, with the reason, in graph order.
    groups
        Stored nodes that share a kernel, in an order in which they can run.
    """

    order: list[UOp]
    stored: dict[UOp, str] = field(default_factory=dict)
    groups: list[tuple[UOp, ...]] = field(default_factory=list)


def is_view_of_stored(node: UOp) -> UOp | None:
    """Return the node whose buffer `node` shares when it only reshapes it, else None."""
    while node.op is ops.RESHAPE:
        node = node.src[0]
    return node if node.op is ops.BUFFER else None


def fuse(roots: Sequence[UOp], max_buffers: int = 60) -> Fusion:
    """Decide what is stored to compute `roots`, and in which kernels.

    Parameters
    ----------
    roots
        Graph nodes that are asked for; none is a BUFFER.
    max_buffers
        Most buffers that one kernel may read.
    """
    fusion = Fusion(toposort(roots))
    _decide(fusion, roots, max_buffers)
    if len(fusion.stored) == 1:
        fusion.groups = [tuple(fusion.stored)]
        return fusion
    _split_shared(fusion)
    fusion.stored = {n: fusion.stored[n] for n in fusion.order if n in fusion.stored}
    _group(fusion, roots)
    return fusion


def _decide(fusion: Fusion, roots: Sequence[UOp], max_buffers: int) -> None:
    stored = fusion.stored
    for r in roots:
        stored[r] = "asked for"
    rows: dict[UOp, _Row | None] = {}
    depth: dict[UOp, int] = {}
    cost: dict[UOp, int] = {}
    buffers: dict[UOp, frozenset[UOp]] = {}

    def store(node: UOp, reason: str) -> None:
        while node.op is ops.RESHAPE and node not in stored:
            node = node.src[0]  # a reshape is free: store what it reshapes
        if node.op not in _LEAVES:
            stored.setdefault(node, reason)
            rows[node], depth[node], cost[node], buffers[node] = None, 0, 0, frozenset((node,))

    def end_row(node: UOp, reason: str) -> None:
        row = rows[node]
        if row is not None:
            for p in row.points:
                store(p, reason)
            refresh(node)

    def refresh(node: UOp) -> None:
        """Take up decisions on nodes below that were made after `node` was visited."""
        if node in stored or node.op in _LEAVES:
            return
        for s in node.src:
            if rows[s] is not None and any(p in stored for p in rows[s].points):  # type: ignore[union-attr]
                refresh(s)
        summarize(node)
        rows[node] = None

    def summarize(node: UOp) -> None:
        own = (
            10 if node.op in _FUNCTIONS else 1 if node.op in _ELEMENTWISE or node.op is ops.REDUCE_AXIS else 0
        )
        depth[node] = 1 + max([depth[s] for s in node.src])
        cost[node] = own + sum([cost[s] for s in node.src])
        found: frozenset[UOp] = frozenset()
        for s in node.src:
            found = found | buffers[s] if found else buffers[s]
        buffers[node] = found

    for node in fusion.order:
        op = node.op
        if op in _LEAVES:
            rows[node], depth[node], cost[node] = None, 0, 0
            buffers[node] = frozenset((node,)) if op is ops.BUFFER else frozenset()
            continue
        if op is ops.COPY:
            store(node.src[0], "copied to another device")
            stored.setdefault(node, "a copy from another device")
        elif op is ops.CONTIGUOUS:
            stored.setdefault(node, "contiguous")
        elif op is ops.GATHER:
            if node.src[0].op not in _LEAVES and cost[node.src[0]] + (rows[node.src[0]] is not None) > 0:
                store(node.src[0], "indexed by an array")
            for s in node.src:
                end_row(s, "indexed by an array")
        elif op is ops.EXPAND:
            src = node.src[0]
            grown = [a for a, (n, m) in enumerate(zip(src.shape, node.shape, strict=True)) if n != m]
            kept = [a for a, n in enumerate(src.shape) if n != 1]
            inner = not kept or not grown or grown[0] > kept[-1]
            row = rows[src]
            if row is not None and (not inner or (not kept and numel(node.shape) > SMALL)):
                end_row(src, "its results would be computed again for each index of a broadcast axis")
            elif cost[src] > CHEAP and not inner:
                store(src, "costly, and broadcast along an outer axis")
        elif op is ops.REDUCE_AXIS:
            src = node.src[0]
            row = rows[src]
            live = frozenset(a for a, n in enumerate(node.shape) if n != 1 and a not in node.arg[1])
            if row is not None and row.axes != live:
                end_row(src, "a reduction inside another one")
        elif op in ops.MOVEMENT_OPS and op is not ops.PERMUTE and not (op is ops.RESHAPE and _axis_map(node)):
            end_row(node.src[0], f"moved by {op}")

        different = {rows[s].axes for s in node.src if rows[s] is not None}  # type: ignore[union-attr]
        if len(different) > 1:
            for s in node.src:
                end_row(s, "two reductions with different row axes")
        summarize(node)
        if depth[node] > MAX_DEPTH:
            for s in node.src:
                if depth[s] >= MAX_DEPTH:
                    store(s, "the expression is too deep")
            summarize(node)
        if len(buffers[node]) > max_buffers:
            for s in sorted(node.src, key=lambda s: -len(buffers[s])):
                store(s, "the kernel would take too many buffers")
                summarize(node)
                if len(buffers[node]) <= max_buffers:
                    break
        rows[node] = _row_of(node, rows)
        if node in stored:
            store_reason = stored[node]
            rows[node], depth[node], cost[node], buffers[node] = None, 0, 0, frozenset((node,))
            stored[node] = store_reason


def _axis_map(node: UOp) -> dict[int, int]:
    """Return source axis -> axis for a RESHAPE that only adds or drops axes of length 1, else {}."""
    a = [(i, n) for i, n in enumerate(node.src[0].shape) if n != 1]
    b = [(i, n) for i, n in enumerate(node.shape) if n != 1]
    if [n for _, n in a] != [n for _, n in b]:
        return {}
    return {i: j for (i, _), (j, _) in zip(a, b, strict=True)} or {-1: -1}


def _row_of(node: UOp, rows: dict[UOp, _Row | None]) -> _Row | None:
    """Return the fused reduction that `node` holds after its operands' rows were reconciled."""
    op = node.op
    if op is ops.REDUCE_AXIS:
        inner = rows[node.src[0]]
        axes = frozenset(a for a, n in enumerate(node.shape) if n != 1 and a not in node.arg[1])
        limit = max(_largest_operand(node.src[0]), numel(node.shape))
        return _Row(axes, (node,), max(limit, inner.limit) if inner else limit)
    found = [rows[s] for s in node.src if rows[s] is not None]
    if not found:
        return None
    row = found[0]
    assert row is not None
    limit = max(r.limit for r in found if r is not None)
    if op is ops.PERMUTE:
        return _Row(frozenset(i for i, a in enumerate(node.arg) if a in row.axes), row.points, limit)
    if op is ops.RESHAPE:
        axis_map = _axis_map(node)
        return _Row(frozenset(axis_map[a] for a in row.axes), row.points, limit)
    if op is ops.EXPAND:
        return _Row(row.axes, row.points, limit)
    if numel(node.shape) <= limit:
        return _Row(row.axes, (node,), limit)
    points = tuple(dict.fromkeys(p for r in found if r is not None for p in r.points))
    return _Row(row.axes, points, limit)


def _largest_operand(node: UOp) -> int:
    """Return the size of the largest operand below the elementwise operations and broadcasts of `node`."""
    largest, stack, seen = 0, [node], set()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op in _ELEMENTWISE or (n.op in ops.MOVEMENT_OPS and n.op is not ops.SHRINK):
            stack.extend(n.src)
        elif n.op is not ops.CONST:
            largest = max(largest, numel(n.shape))
    return largest


def _split_shared(fusion: Fusion) -> None:
    """Store costly expressions that several kernels would each compute."""
    stored = fusion.stored
    sinks: dict[UOp, frozenset[UOp]] = {}
    users: dict[UOp, list[UOp]] = {}
    for node in fusion.order:
        for s in node.src:
            users.setdefault(s, []).append(node)
    cost: dict[UOp, int] = {}
    for node in fusion.order:
        own = (
            10
            if node.op in _FUNCTIONS
            else 1
            if node.op in _ELEMENTWISE
            else 12
            if node.op is ops.REDUCE_AXIS
            else 0
        )
        cost[node] = own + sum(0 if s in stored or s.op in _LEAVES else cost[s] for s in node.src)
    for node in reversed(fusion.order):
        found: set[UOp] = set()
        for u in users.get(node, ()):
            found |= {u} if u in stored else sinks[u]
        sinks[node] = frozenset(found)
        if (
            len(found) > 1
            and cost[node] > COSTLY
            and node not in stored
            and node.op in _ELEMENTWISE | {ops.REDUCE_AXIS}
        ):
            shapes = {s.shape for s in found}
            if len(shapes) > 1 or not all(stored[s] == "asked for" for s in found):
                stored[node] = "costly, and used by several kernels"


def _group(fusion: Fusion, roots: Sequence[UOp]) -> None:
    """Put outputs of one shape that share operands into one kernel, if no other stands between them."""
    stored = fusion.stored
    direct: dict[UOp, frozenset[UOp]] = {}  # stored nodes that a node's expression reads
    for node in fusion.order:
        found: frozenset[UOp] = frozenset()
        for s in node.src:
            part = frozenset((s,)) if s in stored or s.op is ops.BUFFER else direct[s]
            found = found | part if found else part
        direct[node] = found
    behind: dict[UOp, frozenset[UOp]] = {}  # all stored nodes that must have run before
    for node in stored:
        found = frozenset(d for d in direct[node] if d in stored)
        for d in direct[node]:
            found |= behind.get(d, frozenset())
        behind[node] = found
    taken: set[UOp] = set()
    asked = [r for r in dict.fromkeys(roots) if r.op is not ops.COPY]
    for node in stored:
        if node in taken:
            continue
        group = [node]
        if stored[node] == "asked for" and node.op is not ops.COPY:
            for other in asked:
                if (
                    other in taken
                    or other is node
                    or other.shape != node.shape
                    or stored.get(other) != "asked for"
                ):
                    continue
                together = {*group, other}
                if not (direct[other] & direct[node] or other in direct[node] or node in direct[other]):
                    continue
                between = [x for m in together for x in behind[m] if x not in together]
                if any(behind[x] & together for x in between):
                    continue
                group.append(other)
        taken.update(group)
        fusion.groups.append(tuple(sorted(group, key=fusion.order.index) if len(group) > 1 else group))
    _order_groups(fusion, behind)


def _order_groups(fusion: Fusion, behind: dict[UOp, frozenset[UOp]]) -> None:
    """Put groups into an order in which each runs after those that it reads."""
    if all(len(g) == 1 for g in fusion.groups):
        return  # stored nodes are already in graph order
    group_of = {n: g for g in fusion.groups for n in g}
    done: dict[tuple[UOp, ...], None] = {}
    for g in fusion.groups:
        stack = [g]
        while stack:
            top = stack[-1]
            if top in done:
                stack.pop()
                continue
            waiting = [
                group_of[d] for n in top for d in fusion.stored if d in behind[n] and group_of[d] is not top
            ]
            waiting = [w for w in dict.fromkeys(waiting) if w not in done]
            if waiting:
                stack.extend(waiting)
            else:
                done[top] = None
                stack.pop()
    fusion.groups = list(done)
