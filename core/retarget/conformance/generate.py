"""Seeded random graphs over the whole array namespace.

A graph grows from a few buffers: each step takes arrays that are there and applies one function of the
namespace. Shapes come from a handful of lengths, small, odd, vector-sized, 1 and sometimes 0, so that
operands often fit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import array as rt
from ..array import Array
from ..errors import UserError
from ..ir import dtypes
from ..ir.dtypes import ARRAY_DTYPES, DType, to_numpy
from ..ir.uop import UOp, numel, toposort
from .execute import NOWHERE, Values, placeholder

#: Arrays do not grow beyond this many elements.
LARGEST = 6000
_LENGTHS = (1, 1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 32, 33, 64, 70)
#: Dtypes by how often they are chosen.
_COMMON = {"float32": 12, "int32": 5, "bool": 2, "float64": 2, "float16": 2, "int64": 2}


@dataclass(frozen=True, slots=True)
class Graph:
    """Some graph nodes with the values of the placeholders that they are computed from.

    Attributes
    ----------
    roots
        The outputs, realized together.
    data
        Placeholder -> its values.
    seed
        What `generate` was given, -1 for a graph from elsewhere.
    """

    roots: tuple[UOp, ...]
    data: dict[UOp, Values]
    seed: int = -1

    @property
    def nodes(self) -> list[UOp]:
        """Every node, operands first."""
        return toposort(self.roots)


def random_values(
    rng: np.random.Generator, dtype: DType, shape: Sequence[int], special: bool = False
) -> Values:
    """Return values that most functions are interesting on; `special`: with NaN, zeros and extremes."""
    size = numel(tuple(shape))
    plain = to_numpy(dtype)
    if dtype.kind == "bool":
        values = rng.integers(0, 2, size).astype(bool)
    elif dtype.kind == "float":
        values = (rng.standard_normal(size) * rng.choice([0.5, 1.0, 3.0])).astype(np.float32).astype(plain)
        extremes = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, float(np.float32(2.0**-140)), 1e30]
        if special and size:
            at = rng.random(size) < 0.15
            with np.errstate(over="ignore"):
                values[at] = rng.choice(extremes, int(at.sum())).astype(np.float32).astype(plain)
    else:
        low, high = max(int(dtype.min), -20), min(int(dtype.max), 20)
        values = rng.integers(low, high, size, endpoint=True).astype(plain)
        if special and size:
            at = rng.random(size) < 0.15
            values[at] = rng.choice(np.array([dtype.min, dtype.max, 0, 1], plain), int(at.sum()))
    return values.reshape(shape)


def generate(seed: int, size: int = 16, named: Sequence[DType] = ARRAY_DTYPES) -> Graph:
    """Return the random graph of a seed.

    Parameters
    ----------
    seed
        Decides everything.
    size
        Number of functions applied.
    named
        The dtypes that may be used.
    """
    return _Growth(seed, named).grow(size)


class _Growth:
    """One graph while it grows."""

    def __init__(self, seed: int, named: Sequence[DType]) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.dtypes = tuple(named)
        self.data: dict[UOp, Values] = {}
        self.pool: list[Array] = []
        self.special = self.rng.random() < 0.2
        self.lengths = self.rng.sample(_LENGTHS, 4) + ([0] if self.rng.random() < 0.05 else [])
        common = [d for d in self.dtypes for _ in range(_COMMON.get(d.name, 1))]
        self.main = self.rng.choice(common)
        self.steps: list[tuple[int, Callable[[], Array]]] = [
            (9, self.unary), (14, self.binary), (4, self.compare), (4, self.select), (4, self.cast),
            (3, self.logic), (10, self.reduction), (5, self.normalize), (5, self.product), (14, self.move),
            (9, self.slice), (5, self.pad), (5, self.join), (5, self.gather), (2, self.scan),
            (2, self.window),
            (2, self.made), (2, self.assigned), (2, self.search),
        ]  # fmt: skip

    def grow(self, size: int) -> Graph:
        for _ in range(self.rng.randint(1, 3)):
            self.buffer(self.shape(), self.main)
        weights = [w for w, _ in self.steps]
        applied = attempts = 0
        while applied < size and attempts < 20 * size:
            attempts += 1
            (_, step), *_ = self.rng.choices(self.steps, weights)
            try:
                made = step()
            except UserError:  # operands that the function refuses: take others
                continue
            if 0 in made.shape and 0 not in self.lengths and self.rng.random() < 0.95:
                continue
            if made.size <= LARGEST and made.dtype in self.dtypes and made.ndim <= 5:
                self.pool.append(made)
                applied += 1
        return self.finish()

    def finish(self) -> Graph:
        inner = {n for a in self.pool for n in toposort(a.node.src)}
        ends = [a for a in self.pool if a.node not in inner and a.node.src] or self.pool[-1:]
        ends.sort(key=lambda a: -len(toposort((a.node,))))
        alike = [a for a in self.pool if a.shape == ends[0].shape and a.node.src and a is not ends[0]]
        if alike and self.rng.random() < 0.3:  # outputs of one shape may share a kernel
            ends[1:1] = self.rng.sample(alike, min(2, len(alike)))
        roots = tuple(dict.fromkeys(a.node for a in ends[: self.rng.choice((1, 1, 2, 3))]))
        nodes = set(toposort(roots))
        return Graph(roots, {b: v for b, v in self.data.items() if b in nodes}, self.seed)

    # -- operands -------------------------------------------------------------------------------------------

    def shape(self) -> tuple[int, ...]:
        rank = self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
        shape = [self.rng.choice(self.lengths) for _ in range(rank)]
        while numel(tuple(shape)) > LARGEST // 3:
            shape[self.rng.randrange(rank)] = 2
        return tuple(shape)

    def dtype(self) -> DType:
        return self.main if self.rng.random() < 0.7 else self.rng.choice(self.dtypes)

    def buffer(self, shape: tuple[int, ...], dtype: DType) -> Array:
        node = placeholder(len(self.data), dtype, shape)
        self.data[node] = random_values(self.numbers, dtype, shape, self.special)
        self.pool.append(Array(node, NOWHERE))
        return self.pool[-1]

    def any(self, wanted: Callable[[Array], bool] = lambda a: True) -> Array:
        """Return an array of the pool, recent ones more often, or a new buffer if none is as wanted."""
        found = [a for a in self.pool if wanted(a)]
        if not found or self.rng.random() < 0.05:
            made = self.buffer(self.shape(), self.dtype())
            return made if wanted(made) else self.pick(found)
        return self.pick(found)

    def pick(self, found: Sequence[Array]) -> Array:
        if not found:
            raise UserError("no array of the pool suits")
        return found[-1 - min(int(self.rng.expovariate(0.5)), len(found) - 1)]

    def partner(self, x: Array) -> Array:
        """Return an array that broadcasts with x."""

        def fits(a: Array) -> bool:
            return all(
                m == n or 1 in (m, n) for m, n in zip(reversed(a.shape), reversed(x.shape), strict=False)
            )

        if self.rng.random() < 0.2:
            shape = tuple([n if self.rng.random() < 0.6 else 1 for n in x.shape])
            return self.buffer(
                shape[self.rng.randint(0, len(shape)) :], x.dtype if self.rng.random() < 0.8 else self.dtype()
            )
        return self.pick([a for a in self.pool if fits(a)])

    def floating(self, x: Array) -> Array:
        if x.dtype.kind == "float":
            return x
        return rt.astype(x, self.main if self.main.kind == "float" else dtypes.float32)

    def numeric(self, x: Array) -> Array:
        return rt.astype(x, dtypes.int32) if x.dtype.kind == "bool" else x

    def axes(self, x: Array) -> tuple[int, ...] | None:
        if not x.ndim or self.rng.random() < 0.1:
            return None
        return tuple(sorted(self.rng.sample(range(x.ndim), self.rng.choice([1, 1, 1, min(2, x.ndim)]))))

    # -- steps ----------------------------------------------------------------------------------------------

    def unary(self) -> Array:
        x = self.any()
        if x.dtype.kind == "float" or self.rng.random() < 0.1:
            name = self.rng.choice((
                "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
                "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "sqrt", "abs", "negative",
                "floor", "ceil", "trunc", "round", "square", "sign", "reciprocal", "isnan", "isinf",
                "isfinite", "signbit", "exp", "sigmoid", "gelu", "relu",
            ))  # fmt: skip
            if name == "exp":
                x = rt.minimum(self.floating(x), 8)
        else:
            name = self.rng.choice(("abs", "negative", "square", "sign", "bitwise_invert", "logical_not"))
        result: Array = getattr(rt, name)(x)
        return result

    def binary(self) -> Array:
        x = self.any()
        y = self.partner(x)
        if self.rng.random() < 0.15:
            y = rt.full((), self.rng.choice((0, 1, 2, 3, 7)), dtype=x.dtype)
        if x.dtype.kind == y.dtype.kind == "float" or self.rng.random() < 0.6:
            x, y = self.numeric(x), self.numeric(y)
            name = self.rng.choice((
                "add", "add", "subtract", "multiply", "multiply", "maximum", "minimum", "divide",
                "floor_divide", "remainder", "pow", "atan2", "hypot", "copysign", "logaddexp",
            ))  # fmt: skip
            if name == "pow" and y.dtype.is_int:
                y = rt.remainder(y, rt.full((), 5, dtype=y.dtype))
        else:
            name = self.rng.choice(("add", "multiply", "maximum", "bitwise_and", "bitwise_or", "bitwise_xor"))
        result: Array = getattr(rt, name)(x, y)
        return result

    def compare(self) -> Array:
        x = self.any()
        name = self.rng.choice(("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"))
        result: Array = getattr(rt, name)(x, self.partner(x))
        return result

    def logic(self) -> Array:
        x = self.any(lambda a: a.dtype.is_int)
        if self.rng.random() < 0.5:
            count = rt.remainder(x, rt.full((), x.dtype.bits + 3, dtype=x.dtype))
            shift = rt.bitwise_left_shift if self.rng.random() < 0.5 else rt.bitwise_right_shift
            y = self.partner(x)
            return (
                shift(y, rt.astype(count, y.dtype))
                if y.dtype.is_int and y.dtype.bits > 8
                else shift(x, count)
            )
        y = self.partner(x)
        name = self.rng.choice(("logical_and", "logical_or", "logical_xor"))
        result: Array = getattr(rt, name)(x, y)
        return result

    def select(self) -> Array:
        x = self.any()
        y = self.partner(x)
        condition = self.pick([a for a in self.pool if a.dtype.kind == "bool"] or [x > y])
        return rt.where(condition, x, y)

    def cast(self) -> Array:
        return rt.astype(self.any(), self.rng.choice(self.dtypes))

    def reduction(self) -> Array:
        x = self.any(lambda a: a.ndim > 0)
        name = self.rng.choice(
            ("sum", "sum", "max", "min", "mean", "prod", "any", "all", "var", "std", "count_nonzero")
        )
        if name not in ("any", "all", "count_nonzero"):
            x = self.numeric(x)
        if name == "prod" and x.dtype.kind == "float":
            x = rt.clip(x, 0.5, 1.5)
        result: Array = getattr(rt, name)(x, axis=self.axes(x), keepdims=self.rng.random() < 0.6)
        return result

    def normalize(self) -> Array:
        """Several dependent reductions over one axis."""
        x = self.floating(self.any(lambda a: a.ndim > 0 and 0 not in a.shape))
        axis = self.rng.randrange(x.ndim)
        match self.rng.randrange(5):
            case 0:
                return rt.softmax(x, axis=axis)
            case 1:
                return rt.layer_norm(x, axis=axis)
            case 2:
                return x / (rt.max(rt.abs(x), axis=axis, keepdims=True) + 1.0)
            case 3:
                return x - rt.mean(x, axis=axis, keepdims=True)
        return x / rt.sqrt(rt.sum(x * x, axis=axis, keepdims=True) + 0.5)

    def product(self) -> Array:
        x = self.numeric(self.any(lambda a: a.ndim > 0 and a.size <= LARGEST // 2))
        n = x.shape[-1]
        others = [a for a in self.pool if a.ndim >= 2 and a.shape[-2] == n and a.dtype.kind != "bool"]
        if not others or self.rng.random() < 0.4:
            y = self.buffer((n, self.rng.choice(self.lengths)), x.dtype)
        else:
            y = self.pick(others)
        if x.ndim > 3 or y.ndim > 3:
            raise UserError("the product would have too many axes")
        return rt.matmul(x, y)

    def move(self) -> Array:
        x = self.any()
        match self.rng.randrange(8):
            case 0:
                return rt.permute_dims(x, self.rng.sample(range(x.ndim), x.ndim))
            case 1:
                return rt.flip(x, axis=self.axes(x))
            case 2:
                return rt.reshape(x, self.reshaped(x.shape))
            case 3:
                return rt.expand_dims(x, axis=self.rng.randint(0, x.ndim))
            case 4:
                return rt.broadcast_to(x, (self.rng.choice((2, 3)), *x.shape))
            case 5:
                return rt.roll(
                    x, self.rng.randint(-3, 3), axis=self.rng.randrange(x.ndim) if x.ndim else None
                )
            case 6:
                return rt.tile(x, [self.rng.randint(1, 2) for _ in x.shape])
        return rt.repeat(x, self.rng.randint(1, 3), axis=self.rng.randrange(x.ndim) if x.ndim else None)

    def reshaped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return another shape of as many elements: axes merged, then one split."""
        merged = list(shape)
        if len(merged) > 1 and self.rng.random() < 0.7:
            at = self.rng.randrange(len(merged) - 1)
            merged[at : at + 2] = [merged[at] * merged[at + 1]]
        if merged and self.rng.random() < 0.6:
            at = self.rng.randrange(len(merged))
            n = merged[at]
            factors = [k for k in range(1, n + 1) if n % k == 0] or [1]
            k = self.rng.choice(factors)
            merged[at : at + 1] = [k, n // k]
        return tuple(merged)

    def slice(self) -> Array:
        x = self.any(lambda a: a.ndim > 0)
        key: list[Any] = []
        for n in x.shape:
            match self.rng.choice((0, 1, 2, 2, 3, 4)):
                case 0 if n:
                    key.append(self.rng.randrange(-n, n))
                case 1:
                    key.append(slice(None, None, self.rng.choice((-1, 2, -2, 3))))
                case 2:
                    begin = self.rng.randint(0, n // 2)
                    key.append(
                        slice(begin, self.rng.randint(min(begin + 1, n), n), self.rng.choice((1, 1, 2)))
                    )
                case 3:
                    key += [None, slice(None)] if self.rng.random() < 0.3 else [slice(None)]
                case _:
                    key.append(slice(0, max(1, n // 2)))
        return x[tuple(key)]

    def pad(self) -> Array:
        x = self.any(lambda a: a.ndim > 0)
        widths = [(self.rng.randint(0, 2), self.rng.randint(0, 3)) for _ in x.shape]
        return rt.pad(x, widths, constant_values=self.rng.choice((0, 0, 1)))

    def join(self) -> Array:
        x = self.any(lambda a: a.ndim > 0)
        alike = [a for a in self.pool if a.shape == x.shape]
        arrays = [self.pick(alike) for _ in range(self.rng.randint(1, 2))]
        axis = self.rng.randrange(x.ndim)
        return (
            rt.stack([x, *arrays], axis=axis)
            if self.rng.random() < 0.4
            else rt.concat([x, *arrays], axis=axis)
        )

    def gather(self) -> Array:
        x = self.any(lambda a: a.ndim > 0)
        axis = self.rng.randrange(x.ndim)
        if self.rng.random() < 0.3:
            indices = self.any(lambda a: a.dtype.is_int and a.ndim <= 2)
        else:
            n = x.shape[axis]
            node = placeholder(len(self.data), dtypes.int64 if self.rng.random() < 0.5 else dtypes.int32,
                               self.rng.choice(((), (3,), (5,), (2, 4))))  # fmt: skip
            self.data[node] = self.numbers.integers(-n, max(n, 1), node.shape).astype(to_numpy(node.dtype))
            indices = Array(node, NOWHERE)
        return rt.take(x, indices, axis=axis)

    def scan(self) -> Array:
        x = self.numeric(self.any(lambda a: a.ndim > 0 and a.size < LARGEST // 8))
        return rt.cumulative_sum(x, axis=self.rng.randrange(x.ndim))

    def window(self) -> Array:
        x = self.any(lambda a: a.ndim > 0 and a.size < LARGEST // 4)
        axis = self.rng.randrange(x.ndim)
        return rt.sliding_window(x, self.rng.randint(1, 3), axes=axis)

    def made(self) -> Array:
        n = self.rng.choice(self.lengths)
        match self.rng.randrange(4):
            case 0:
                return rt.arange(n, dtype=self.rng.choice((dtypes.int32, dtypes.int64, dtypes.float32)))
            case 1:
                return rt.linspace(-1.0, 2.0, n)
            case 2:
                return rt.eye(n, k=self.rng.randint(-1, 1))
        x = self.any(lambda a: a.ndim >= 2)
        return (rt.tril if self.rng.random() < 0.5 else rt.triu)(x, k=self.rng.randint(-1, 1))

    def assigned(self) -> Array:
        x = self.any(lambda a: a.ndim > 0 and a.shape[0] > 1)
        made = Array(x.node, x._device)
        made[1:] = x[:-1]
        return made

    def search(self) -> Array:
        x = self.any(lambda a: a.ndim > 0)
        function = rt.argmax if self.rng.random() < 0.5 else rt.argmin
        return function(self.numeric(x), axis=self.rng.randrange(x.ndim), keepdims=self.rng.random() < 0.5)
