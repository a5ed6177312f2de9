"""Reduce a failing graph to a small one that still fails: fewer outputs, fewer nodes, shorter axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..errors import InternalError
from ..ir import ops
from ..ir.uop import UOp, numel, toposort
from .execute import Values, placeholder, reference
from .generate import Graph

#: Whether a graph still fails in the way that is being looked at.
Fails = Callable[[Graph], bool]

_MALFORMED = (InternalError, ValueError, IndexError, TypeError, KeyError)


def minimize(graph: Graph, fails: Fails, budget: int = 300) -> Graph:
    """Return a smaller graph that fails too.

    Parameters
    ----------
    graph
        A failing graph.
    fails
        Evaluates a candidate.
    budget
        Most candidates that are tried.
    """
    left = budget
    for node in graph.nodes:  # the first node that fails alone needs nothing that comes after it
        if node.src and left > 0 and len(graph.nodes) > 1:
            left -= 1
            alone = _graph((node,), graph.data)
            if fails(alone):
                graph = alone
                break
    changed = True
    while changed and left > 0:
        changed = False
        for candidate in _candidates(graph):
            if left <= 0:
                break
            left -= 1
            if _well_formed(candidate) and fails(candidate):
                graph, changed = candidate, True
                break
    return graph


def _graph(roots: tuple[UOp, ...], data: Mapping[UOp, Values]) -> Graph:
    used = toposort(roots)
    return Graph(roots, {u: data[u] for u in used if u.op is ops.BUFFER})


def _well_formed(graph: Graph) -> bool:
    try:
        reference(graph.roots, graph.data)
    except _MALFORMED:
        return False
    return True


def _candidates(graph: Graph) -> Iterator[Graph]:
    """Yield smaller graphs, the smallest first."""
    if len(graph.roots) > 1:
        for root in graph.roots:
            yield _graph(tuple([r for r in graph.roots if r is not root]), graph.data)
    inner = [u for u in graph.nodes if u.src and u not in graph.roots]
    values = dict(zip(inner, reference(inner, graph.data), strict=True))
    for node in reversed(inner):
        fresh = placeholder(1000 + graph.nodes.index(node), node.dtype, node.shape)
        yield _replaced(graph, {node: fresh}, {fresh: values[node]})
    for node in reversed(graph.nodes):
        for s in node.src:
            if s.shape == node.shape and s.dtype is node.dtype:
                yield _replaced(graph, {node: s}, {})
    for length in sorted({n for u in graph.data for n in u.shape if n > 1}, reverse=True):
        for shorter in dict.fromkeys((1, 2, 3, length // 2, length - 1)):
            if 0 < shorter < length:
                candidate = _shortened(graph, length, shorter)
                if candidate is not None:
                    yield candidate
    yield from _renumbered(graph)


def _replaced(graph: Graph, instead: dict[UOp, UOp], data: Mapping[UOp, Values]) -> Graph:
    done = dict(instead)
    for u in graph.nodes:
        if u not in done:
            done[u] = u.replace(tuple([done[s] for s in u.src]))
    roots = tuple(dict.fromkeys(done[r] for r in graph.roots))
    roots = tuple([r for r in roots if r.op is not ops.BUFFER]) or roots
    return _graph(roots, {**graph.data, **data})


def _renumbered(graph: Graph) -> Iterator[Graph]:
    """Yield the graph with its placeholders numbered from 0, unless they are."""
    names = {u: placeholder(n, u.dtype, u.shape) for n, u in enumerate(graph.data)}
    if any(u is not v for u, v in names.items()):
        yield _replaced(graph, dict(names), {names[u]: v for u, v in graph.data.items()})


def _shortened(graph: Graph, length: int, shorter: int) -> Graph | None:
    """Return the graph with every axis of one length made shorter, where that keeps it well-formed."""
    done: dict[UOp, UOp] = {}
    data: dict[UOp, Values] = {}
    for u in graph.nodes:
        src = tuple([done[s] for s in u.src])
        arg: Any = u.arg
        if u.op is ops.BUFFER:
            shape = _swap(u.shape, length, shorter)
            done[u] = placeholder(u.arg[0], u.dtype, shape)
            data[done[u]] = graph.data[u][tuple(slice(n) for n in shape)].copy()
            continue
        if u.op in (ops.RESHAPE, ops.EXPAND):
            arg = _swap(u.arg, length, shorter)
        elif u.op is ops.IOTA:
            arg = shorter if u.arg == length else u.arg
        elif u.op is ops.SHRINK:
            arg = tuple(
                [
                    (min(b, n), min(e, n) if e != length else n)
                    for (b, e), n in zip(u.arg, src[0].shape, strict=True)
                ]
            )
        if u.op is ops.RESHAPE and numel(arg) != numel(src[0].shape):
            return None
        done[u] = UOp(u.op, u.dtype, src, arg)
    return _graph(tuple([done[r] for r in graph.roots]), data)


def _swap(shape: tuple[int, ...], length: int, shorter: int) -> tuple[int, ...]:
    return tuple([shorter if n == length else n for n in shape])
