"""The graphs that levels 1 to 3 render, compile and run: ops times dtypes, and what fusion makes of several.

Cases of one `batch` compute arrays of one shape from the same placeholders, so that they fit one kernel and
one call of the compiler.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import array as rt
from ..array import Array
from ..ir import dtypes, ops
from ..ir.dtypes import DType, to_numpy
from ..ir.ops import Op
from ..ir.uop import UOp, const
from .bounds import largest
from .execute import NOWHERE, Values, placeholder
from .generate import Graph, generate, random_values

#: Outputs of one batched kernel: few enough for any target's limit on arguments.
BATCH = 16


@dataclass(frozen=True, slots=True)
class Case:
    """One graph to check.

    Attributes
    ----------
    name
        What follows the level in the check's name: "alu/ADD/float32".
    make
        Builds the graph.
    batch
        Cases of the same batch run in one kernel; "": alone.
    kernels
        How many kernels fusion has to make of it; 0: any number.
    seed
        Not 0: its kernels run under random schedules of that seed.
    schedule
        A schedule for its kernels.
    """

    name: str
    make: Callable[[], Graph]
    batch: str = ""
    kernels: int = 0
    seed: int = 0
    schedule: str = ""


def special_values(dtype: DType) -> Values:
    """Return the values that most often go wrong: extremes, zeros, infinities, NaN, subnormal numbers."""
    plain = to_numpy(dtype)
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.kind != "float":
        low, high = int(dtype.min), int(dtype.max)
        values = {0, 1, 2, 3, 7, 100, high, high - 1, high // 2 + 1}
        values |= {-1, -2, -7, -100, low, low + 1} if low else set()
        return np.array(sorted(values), dtype=plain)
    normal = 2.0 ** (2 - (1 << (dtype.exponent - 1)))
    tiny = normal * 2.0**-dtype.mantissa
    top = largest(dtype)
    values_f = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.7, 2.0, 1.5707964, 100.3, -7.0, 1e-3,
                12345.678, math.inf, -math.inf, math.nan,
                tiny, -tiny, normal, normal - tiny, top, -top]  # fmt: skip
    with np.errstate(over="ignore"):
        return np.array(values_f).astype(plain if plain.itemsize > 4 else np.float32).astype(plain)


def cases(named: Sequence[DType]) -> Iterator[Case]:
    """Yield every case for a target that has the dtypes `named`."""
    for dtype in named:
        yield from _elementwise(dtype)
    yield from _constants(named)
    yield from _casts(named)
    for dtype in named:
        yield from _reductions(dtype)
    yield from _movement([d for d in named if d.name in _MOVED])
    yield from _fused([d for d in named if d.kind == "float" and d.bits >= 16])
    yield from _shapes()
    yield from _random(named, 32)


# -- elementwise --------------------------------------------------------------------------------------------


@functools.cache
def _grid(dtype: DType) -> tuple[Values, Values]:
    """Return two arrays that hold every pair of special values, and some random ones after them."""
    values = special_values(dtype)
    rng = np.random.default_rng(dtype.bits)
    x = np.concatenate([np.repeat(values, len(values)), random_values(rng, dtype, (19,))])
    y = np.concatenate([np.tile(values, len(values)), random_values(rng, dtype, (19,))])
    return x, y


def _operands(op: Op, dtype: DType) -> Graph | None:
    """Return the graph of an op on the grid, or None where the op does not take the dtype."""
    x, y = _grid(dtype)
    data: dict[UOp, Values] = {}

    def buffer(number: int, values: Values, of: DType) -> UOp:
        node = placeholder(number, of, values.shape)
        data[node] = values
        return node

    a, b = buffer(0, x, dtype), buffer(1, y, dtype)
    match len(op.operands):
        case 1:
            src: tuple[UOp, ...] = (a,)
        case 2 if op in (ops.SHL, ops.SHR):
            counts = (np.arange(len(x)) * 5 % (dtype.bits + 3)).astype(to_numpy(dtype))
            src = (a, buffer(2, counts, dtype))
        case 2 if op is ops.POW and dtype.is_int:
            src = (a, buffer(3, (np.arange(len(x)) % 7).astype(to_numpy(dtype)), dtype))
        case 2:
            src = (a, b)
        case _:
            src = (buffer(4, np.arange(len(x)) % 3 == 0, dtypes.bool_), a, b)
    result = dtypes.bool_ if op in ops.COMPARISONS else dtype
    node = UOp(op, result, src)
    if op.rule(result, src, None) is not None:
        return None
    return Graph((node,), {n: data[n] for n in src})


def _given(graph: Graph) -> Graph:
    return graph


def _elementwise(dtype: DType) -> Iterator[Case]:
    found = []
    for op in ops.OPS.values():
        if op in ops.ALU_OPS and "g" in op.levels:
            graph = _operands(op, dtype)
            if graph is not None:
                found.append((op, graph))
    for n, (op, graph) in enumerate(found):
        yield Case(
            f"alu/{op.name}/{dtype.name}", functools.partial(_given, graph), f"alu {dtype.name} {n // BATCH}"
        )


def _constants(named: Sequence[DType]) -> Iterator[Case]:
    """Literals: every special value, where a constant of its own is what may go wrong."""
    for dtype in named:

        def make(dtype: DType = dtype) -> Graph:
            x = placeholder(0, dtypes.bool_, (9,))
            data = {x: np.arange(9) % 2 == 0}
            values = [const(v, dtype) for v in special_values(dtype).tolist()]
            zero = const(special_values(dtype)[1 if dtype.kind == "float" else 0].item(), dtype)
            roots = [UOp(ops.WHERE, dtype, (x, v, zero)) for v in values if v is not zero]
            return Graph(tuple(dict.fromkeys(roots)), data)

        yield Case(f"const/{dtype.name}", make)


def _casts(named: Sequence[DType]) -> Iterator[Case]:
    for source in named:
        for target in named:
            if source is target:
                continue

            def make(op: Op = ops.CAST, source: DType = source, target: DType = target) -> Graph:
                x = placeholder(0, source, _grid(source)[0].shape)
                return Graph((UOp(op, target, (x,)),), {x: _grid(source)[0]})

            yield Case(f"cast/{source.name}/{target.name}", make, f"cast {source.name}")
            if source.bits == target.bits and "bool" not in (source.kind, target.kind):
                bits = functools.partial(make, ops.BITCAST)
                yield Case(f"bitcast/{source.name}/{target.name}", bits, f"cast {source.name}")


# -- reductions ---------------------------------------------------------------------------------------------

_SHAPE = (5, 6, 37)
_AXES = {"last": (2,), "first": (0,), "all": (0, 1, 2)}


@functools.cache
def _reduced_values(dtype: DType, product: bool) -> Values:
    rng = np.random.default_rng(7)
    if dtype.kind != "float" or (not product and dtype.bits > 8):
        return random_values(rng, dtype, _SHAPE)
    if dtype.bits >= 32:
        return rng.uniform(0.95, 1.05, _SHAPE).astype(to_numpy(dtype))
    # Few elements that do anything, so that narrow types neither overflow nor lose digits.
    values = np.full(_SHAPE, 1.0 if product else 0.0, np.float32)
    at = rng.choice(values.size, 6, replace=False)
    values.reshape(-1)[at] = [2.0, 0.5, -1.0, 2.0, -2.0, 0.5] if product else [1.0, 2.0, -1.0, 1.0, 3.0, -2.0]
    return values.astype(to_numpy(dtype))


def _reductions(dtype: DType) -> Iterator[Case]:
    for where, axes in _AXES.items():
        for op in ops.REDUCE_OPS:
            product = op is ops.MUL
            x = placeholder(int(product), dtype, _SHAPE)
            if op.rule(dtype, (x, x), None) is not None:
                continue

            def make(op: Op = op, x: UOp = x, axes: tuple[int, ...] = axes, product: bool = product) -> Graph:
                data = {x: _reduced_values(dtype, product)}
                return Graph((UOp(ops.REDUCE_AXIS, dtype, (x,), (op, axes)),), data)

            yield Case(
                f"reduce/{op.name}/{dtype.name}/{where}", make, f"reduce {dtype.name} {where} {int(product)}"
            )


# -- movement -----------------------------------------------------------------------------------------------

#: One dtype of each size, and those whose elements backends treat in their own way.
_MOVED = ("bool", "int8", "bfloat16", "float32", "float64")


def _overwritten(x: Array) -> Array:
    made = Array(x.node, x._device)
    made[1:, ::2] = x[:-1, ::2]
    return made


_MOVES: dict[str, Callable[[Array], Array]] = {
    "reshape": lambda x: rt.reshape(x, (20, -1)),
    "reshape-odd": lambda x: rt.reshape(rt.permute_dims(x, (1, 0)), (3, -1)),
    "permute": lambda x: rt.permute_dims(rt.reshape(x, (3, 4, 35)), (2, 0, 1)),
    "transpose": lambda x: rt.permute_dims(x, (1, 0)),
    "expand": lambda x: rt.broadcast_to(x[:, None, :], (12, 3, 35)),
    "expand-last": lambda x: rt.broadcast_to(x[:, :, None], (12, 35, 3)),
    "shrink": lambda x: x[2:9, 5:30],
    "stride": lambda x: x[::3, 1::2],
    "stride-back": lambda x: x[::-2, ::-1],
    "flip": lambda x: rt.flip(x, axis=1),
    "pad": lambda x: rt.pad(x, ((1, 2), (3, 0))),
    "pad-one": lambda x: rt.pad(x, ((0, 1), (2, 2)), constant_values=1),
    "roll": lambda x: rt.roll(x, 5, axis=1),
    "tile": lambda x: rt.tile(x, (2, 3)),
    "repeat": lambda x: rt.repeat(x, 2, axis=1),
    "concat": lambda x: rt.concat([x, x[:3], x[::2]], axis=0),
    "stack": lambda x: rt.stack([x, rt.flip(x, axis=0)], axis=1),
    "triangle": lambda x: rt.tril(x, k=2),
    "window": lambda x: rt.sliding_window(x, 4, axes=1),
    "assign": _overwritten,
}  # fmt: skip


def _movement(named: Sequence[DType]) -> Iterator[Case]:
    shape = (12, 35)
    for dtype in named:
        x = placeholder(0, dtype, shape)
        rows, columns = placeholder(1, dtypes.int32, (7,)), placeholder(2, dtypes.int64, (7,))
        data = {
            x: random_values(np.random.default_rng(3), dtype, shape),
            rows: np.array([0, 11, -1, 5, -12, 3, 3], np.int32), columns: np.array([34, 0, -35, 7, -1, 2, 2]),
        }  # fmt: skip

        def make(move: Callable[[Array], Array], x: UOp = x, data: dict[UOp, Values] = data) -> Graph:
            node = move(Array(x, NOWHERE)).node
            return Graph((UOp(ops.CONTIGUOUS, node.dtype, (node,)),), data)

        for name, move in _MOVES.items():
            yield Case(f"movement/{name}/{dtype.name}", functools.partial(make, move))
        i, j = Array(rows, NOWHERE), Array(columns, NOWHERE)
        keys: dict[str, tuple[Any, ...]] = {
            "rows": (i,), "columns": (slice(None), j), "points": (i, j), "outside": (i * 5,),
        }  # fmt: skip
        for name, key in keys.items():
            yield Case(f"gather/{name}/{dtype.name}", functools.partial(make, operator.itemgetter(key)))


# -- several outputs, several reductions --------------------------------------------------------------------


def _fused(named: Sequence[DType]) -> Iterator[Case]:
    shape = (9, 70)
    expressions: dict[str, tuple[int, Callable[[Array], Sequence[Array]]]] = {
        "multi-output/elementwise": (1, lambda x: [x + 1.0, x * x, rt.maximum(x, 0.0)]),
        "multi-output/reduced": (1, lambda x: [rt.sum(x, axis=1), rt.max(x, axis=1)]),
        "multi-output/shared": (0, lambda x: [rt.exp(x), rt.sum(rt.exp(x), axis=1)]),
        "multi-reduce/softmax": (1, lambda x: [rt.softmax(x, axis=-1)]),
        "multi-reduce/softmax-first": (0, lambda x: [rt.softmax(x, axis=0)]),
        "multi-reduce/layer-norm": (1, lambda x: [rt.layer_norm(x, axis=-1)]),
        "multi-reduce/variance": (1, lambda x: [rt.var(x, axis=1)]),
        "multi-reduce/norm": (1, lambda x: [x / rt.sqrt(rt.sum(x * x, axis=1, keepdims=True) + 1.0)]),
        "multi-reduce/argmax": (0, lambda x: [rt.argmax(x, axis=1)]),
        "multi-reduce/two-axes": (0, lambda x: [rt.sum(x, axis=0) / (rt.sum(rt.abs(x)) + 1.0)]),
        "contraction/matmul": (1, lambda x: [x @ rt.permute_dims(x, (1, 0))]),
        "contraction/vector": (1, lambda x: [x @ x[0]]),
        "scan/cumulative-sum": (0, lambda x: [rt.cumulative_sum(x, axis=1)]),
    }  # fmt: skip
    for dtype in named:
        x = placeholder(0, dtype, shape)
        data = {x: random_values(np.random.default_rng(5), dtype, shape)}
        for name, (kernels, build) in expressions.items():

            def make(
                build: Callable[[Array], Sequence[Array]] = build, x: UOp = x, data: dict[UOp, Values] = data
            ) -> Graph:
                return Graph(tuple([a.node for a in build(Array(x, NOWHERE))]), data)

            yield Case(f"{name}/{dtype.name}", make, kernels=kernels)


def _shapes() -> Iterator[Case]:
    """Shapes at the edge, index widths and schedules that use each kind of axis."""

    def graph(shape: tuple[int, ...], build: Callable[[Array], Array]) -> Callable[[], Graph]:
        def make() -> Graph:
            x = placeholder(0, dtypes.float32, shape)
            values = random_values(np.random.default_rng(2), dtypes.float32, shape)
            return Graph((build(Array(x, NOWHERE)).node,), {x: values})

        return make

    yield Case("shape/scalar", graph((), lambda x: x * 2.0 + 1.0))
    yield Case("shape/one", graph((1, 1), lambda x: rt.sum(x * 2.0)))
    yield Case("shape/empty", graph((0, 3), lambda x: x + 1.0))
    yield Case("shape/empty-sum", graph((0, 3), lambda x: rt.sum(x, axis=0)))
    yield Case("shape/prime", graph((13, 31), lambda x: rt.sum(x * x, axis=0)))
    yield Case(
        "shape/many-axes",
        graph((2, 3, 1, 2, 2, 3, 2), lambda x: rt.sum(rt.flip(x, axis=(0, 4)), axis=(1, 5))),
    )
    yield Case("shape/large", graph((70, 1000), lambda x: x * x + 0.5))
    for kind, text in {
        "thread": "r0=a:t; r1=b,c/8", "unroll": "r1=b,c/5:u", "vector": "r1=b,c/8:v",
        "loop": "r1=b,c/7; order=b,r0,c",
        "thread-masked": "r0=a:t,d/4; r1=b,c/16:v", "own": "r1=b,c/4:a,d/4:v",
    }.items():  # fmt: skip

        def build(x: Array, kind: str = kind) -> Array:
            return rt.sum(x, axis=1) if kind == "own" else x * x + 0.5

        yield Case(f"axis/{kind}", graph((21, 67), build), schedule=text)


def _random(named: Sequence[DType], count: int) -> Iterator[Case]:
    for seed in range(count):
        yield Case(f"random/{seed}", functools.partial(generate, seed, 12, named))
    for seed in range(1, count // 2 + 1):
        yield Case(f"schedule/{seed}", functools.partial(generate, 10_000 + seed, 8, named), seed=seed)
