"""Writing linear programs by hand in tests, and comparing what a kernel stores with NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from retarget.codegen.program import Program
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType, to_numpy
from retarget.ir.ops import Op
from retarget.ir.uop import UOp, const
from retarget.registry.backend import Argument, Launch

Array = np.ndarray[Any, Any]


class Build:
    """Appends uops to a linear program, and keeps the arrays for its parameters."""

    def __init__(self, index: DType = dtypes.int32) -> None:
        self.index = index
        self.uops: list[UOp] = []
        self.arguments: list[Argument] = []
        self.arrays: list[Array] = []
        self.expected: dict[str, Array] = {}

    def __call__(self, op: Op, dtype: DType, *src: UOp, arg: Any = None) -> UOp:
        node = UOp(op, dtype, src, arg)
        problem = op.rule(dtype, src, arg)
        assert problem is None, f"{op} {problem}"
        self.uops.append(node)
        return node

    def const(self, value: float, dtype: DType | None = None) -> UOp:
        node = const(value, dtype or self.index)
        self.uops.append(node)
        return node

    def input(self, name: str, array: Array, dtype: DType | None = None) -> UOp:
        """A parameter that is read."""
        dtype = dtype or dtypes.as_dtype(array.dtype)
        self.arguments.append(Argument(name, "buffer", dtype.name, array.shape))
        self.arrays.append(array)
        return self(ops.PARAM, dtype, arg=(name, array.shape, False))

    def output(self, name: str, expected: Array, dtype: DType | None = None) -> UOp:
        """A parameter that is to hold `expected` after the launch; every byte of it is 0x55 before."""
        dtype = dtype or dtypes.as_dtype(expected.dtype)
        self.arguments.append(Argument(name, "buffer", dtype.name, expected.shape, True))
        self.arrays.append(
            np.full(expected.nbytes, 0x55, np.uint8).view(expected.dtype).reshape(expected.shape)
        )
        self.expected[name] = expected
        return self(ops.PARAM, dtype, arg=(name, expected.shape, True))

    def variable(self, name: str, lowest: int, highest: int) -> UOp:
        self.arguments.append(Argument(name, "variable", self.index.name))
        return self(ops.VAR, self.index, arg=(name, lowest, highest))

    def local(self, name: str, dtype: DType, shape: tuple[int, ...], space: str = "register") -> UOp:
        return self(ops.LOCAL, dtype, arg=(name, shape, space))

    def range(self, name: str, size: int | UOp, kind: str = "loop") -> UOp:
        if isinstance(size, UOp):
            return self(ops.RANGE, self.index, size, arg=(name, None, kind))
        return self(ops.RANGE, self.index, arg=(name, size, kind))

    def end(self, *loops: UOp) -> None:
        for loop in loops:
            self(ops.END, dtypes.void, loop)

    def alu(self, op: Op, *src: UOp | int) -> UOp:
        first = next(s for s in src if isinstance(s, UOp))
        nodes = [s if isinstance(s, UOp) else self.const(s, first.dtype) for s in src]
        dtype = nodes[-1].dtype
        return self(op, dtypes.bool_.vector(dtype.lanes) if op in ops.COMPARISONS else dtype, *nodes)

    def add(self, x: UOp, y: UOp | int) -> UOp:
        return self.alu(ops.ADD, x, y)

    def mul(self, x: UOp, y: UOp | int) -> UOp:
        return self.alu(ops.MUL, x, y)

    def cast(self, x: UOp, dtype: DType) -> UOp:
        return self(ops.CAST, dtype.vector(x.dtype.lanes), x)

    def bitcast(self, x: UOp, dtype: DType) -> UOp:
        return self(ops.BITCAST, dtype.vector(x.dtype.lanes), x)

    def broadcast(self, x: UOp, lanes: int) -> UOp:
        return x if lanes == 1 else self(ops.BROADCAST, x.dtype.vector(lanes), x)

    def load(self, buffer: UOp, at: UOp, lanes: int = 1, gate: UOp | None = None, align: int = 1) -> UOp:
        lanes = max(lanes, at.dtype.lanes, buffer.dtype.lanes)
        gates = () if gate is None else (gate,)
        return self(ops.LOAD, buffer.dtype.scalar.vector(lanes), buffer, at, *gates, arg=align)

    def store(self, buffer: UOp, at: UOp, value: UOp, gate: UOp | None = None, align: int = 1) -> None:
        gates = () if gate is None else (gate,)
        self(ops.STORE, dtypes.void, buffer, at, value, *gates, arg=align)

    def program(self, name: str = "kernel", **launch: Any) -> Program:
        return Program(name, tuple(self.uops), tuple(self.arguments), Launch(**launch))


def same(found: Array, wanted: Array) -> bool:
    """Whether two arrays have the same bits, but for the payload of NaNs."""
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    if found.dtype.kind != "f":
        return found.tobytes() == wanted.tobytes()
    number = ~np.isnan(wanted)
    bits = f"u{found.itemsize}"
    return bool((np.isnan(found) == ~number).all() and (found.view(bits) == wanted.view(bits))[number].all())


def samples(dtype: DType, count: int, seed: int) -> Array:
    """Return values of a dtype, first its edge cases."""
    rng = np.random.default_rng(seed)
    kind = to_numpy(dtype)
    values: Array
    if dtype.kind == "bool":
        return rng.random(count) < 0.5
    if dtype.is_int:
        values = rng.integers(0, 256, (count, dtype.itemsize), dtype=np.uint8).view(kind)[:, 0].copy()
        edges = [dtype.min, dtype.max, 0, 1, dtype.max // 2, 2, 3]
    else:
        values = (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)).astype(kind)
        edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -1.5, 2.5, 1e-45, 3e38]
    with np.errstate(all="ignore"):
        edge_values = np.array(edges).astype(kind) if dtype.is_float else np.array(edges, dtype=kind)
    values[: len(edges)] = edge_values[:count]
    return rng.permutation(values)
