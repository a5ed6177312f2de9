"""The oracle: graph-level UOps evaluated op by op with NumPy, independent of every lowering.

It is as precise as is practical, so that a compiled result may be judged by its distance from it: each op
rounds once (see `semantics`), and float reductions accumulate in a wider type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from retarget.errors import InternalError
from retarget.ir import ops
from retarget.ir.dtypes import to_numpy
from retarget.ir.ops import Op
from retarget.ir.uop import UOp, toposort

from .semantics import ELEMENTWISE, constant, index_value, quiet, reduce

Array = np.ndarray[Any, Any]
Variables = Mapping[str, int]


def evaluate(
    roots: Sequence[UOp], buffers: Callable[[UOp], Array], variables: Variables | None = None
) -> list[Array]:
    """Return the values of graph nodes.

    Parameters
    ----------
    roots
        Graph nodes.
    buffers
        Gives the array, of the node's dtype and shape, that a BUFFER node stands for.
    variables
        Values of the variables that sizes or VAR nodes refer to.

    Returns
    -------
    list of ndarray
        One new, contiguous array for each root.
    """
    bound = variables or {}
    order = toposort(roots)
    uses = Counter(s for u in order for s in u.src)
    uses.update(roots)
    values: dict[UOp, Array] = {}
    with quiet():
        for u in order:
            values[u] = _evaluate_node(u, [values[s] for s in u.src], buffers, bound)
            for s in u.src:
                uses[s] -= 1
                if not uses[s]:
                    del values[s]
    return [np.array(values[u], order="C") for u in roots]


def _evaluate_node(u: UOp, src: list[Array], buffers: Callable[[UOp], Array], variables: Variables) -> Array:
    if "g" not in u.op.levels:
        raise InternalError(f"{u.op} does not stand in a graph")
    shape = tuple(index_value(n, variables) for n in u.shape)
    if u.op is ops.BUFFER:
        result = buffers(u)
    elif u.op in ELEMENTWISE:
        result = np.asarray(ELEMENTWISE[u.op](u.dtype, *src))
    else:
        result = np.asarray(_STRUCTURAL[u.op](u, src, shape, variables))
    if result.dtype != to_numpy(u.dtype) or result.shape != shape:
        raise InternalError(f"{u.op} gave {result.dtype}{result.shape} where the graph says {u.dtype}{shape}")
    return result


def _const(u: UOp, src: list[Array], shape: tuple[int, ...], variables: Variables) -> Any:
    return constant(u.arg, u.dtype)


def _var(u: UOp, src: list[Array], shape: tuple[int, ...], variables: Variables) -> Any:
    return to_numpy(u.dtype).type(variables[u.arg[0]])


def _iota(u: UOp, src: list[Array], shape: tuple[int, ...], variables: Variables) -> Any:
    return ELEMENTWISE[ops.CAST](u.dtype, np.arange(shape[0], dtype=np.int64))


def _same(u: UOp, src: list[Array], shape: tuple[int, ...], variables: Variables) -> Any:
    return src[0]


def _reduce_axis(u: UOp, src: list[Array], shape: tuple[int, ...], variables: Variables) -> Any:
    op, axes = u.arg
    return reduce(op, u.dtype, src[0], tuple(axes))


def _gather(u: UOp, src: list[Array], shape: tuple[int, ...], variables: Variables) -> Any:
    x, indices = src[0], np.broadcast_arrays(*src[1:])
    inside = np.ones(indices[0].shape, bool)
    for i, n in zip(indices, x.shape, strict=False):
        inside &= (i >= 0) & (i < n)
    result = np.zeros(shape, x.dtype)
    result[inside] = x[tuple(i[inside].astype(np.int64) for i in indices)]
    return result


def _reshape(u: UOp, src: list[Array], shape: tuple[int, ...], variables: Variables) -> Any:
    return src[0].reshape(shape)


def _permute(u: UOp, src: list[Array], shape: tuple[int, ...], variables: Variables) -> Any:
    return src[0].transpose(u.arg)


def _expand(u: UOp, src: list[Array], shape: tuple[int, ...], variables: Variables) -> Any:
    return np.broadcast_to(src[0], shape)


def _pad(u: UOp, src: list[Array], shape: tuple[int, ...], variables: Variables) -> Any:
    result = np.zeros(shape, src[0].dtype)
    result[tuple(slice(before, before + n) for (before, _), n in zip(u.arg, src[0].shape, strict=True))] = (
        src[0]
    )
    return result


def _shrink(u: UOp, src: list[Array], shape: tuple[int, ...], variables: Variables) -> Any:
    window = [slice(index_value(b, variables), index_value(e, variables)) for b, e in u.arg]
    return src[0][tuple(window)]


def _flip(u: UOp, src: list[Array], shape: tuple[int, ...], variables: Variables) -> Any:
    return np.flip(src[0], tuple(u.arg))


#: Every graph op that is neither elementwise nor BUFFER: (node, operands, shape, variables) -> value.
_STRUCTURAL: dict[Op, Callable[[UOp, list[Array], tuple[int, ...], Variables], Any]] = {
    ops.CONST: _const, ops.VAR: _var, ops.IOTA: _iota, ops.REDUCE_AXIS: _reduce_axis, ops.GATHER: _gather,
    ops.CONTIGUOUS: _same, ops.COPY: _same, ops.RESHAPE: _reshape, ops.PERMUTE: _permute, ops.EXPAND: _expand,
    ops.PAD: _pad, ops.SHRINK: _shrink, ops.FLIP: _flip,
}  # fmt: skip

#: The graph ops that `evaluate` knows.
KNOWN_OPS = frozenset({ops.BUFFER, *ELEMENTWISE, *_STRUCTURAL})
