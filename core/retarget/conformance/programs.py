"""Linear programs made by hand: hooks and claims that no schedule reaches on every target.

Each is run on the target and by the reference's interpreter, and the two must agree bit for bit, or within
what a claim allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..codegen.program import Program
from ..ir import dtypes, ops
from ..ir.dtypes import DType, as_dtype
from ..ir.ops import OPS, Op
from ..ir.uop import UOp, const
from ..registry.backend import Argument, Launch
from ..registry.capabilities import Capabilities
from .execute import Values
from .generate import random_values
from .matrix import special_values

_INT = dtypes.int32


@dataclass(frozen=True, slots=True)
class Handmade:
    """A program and its inputs.

    Attributes
    ----------
    name
        "hook/begin_if", "function/MAXIMUM/int32".
    program
        The program; its first parameters are written, the others read.
    inputs
        One array for each parameter that is read.
    ulps
        How far the results may be from the interpreter's.
    """

    name: str
    program: Program
    inputs: tuple[Values, ...]
    ulps: float = 0.0


class _Builder:
    """Collects uops: constants and parameters first, each once."""

    def __init__(self) -> None:
        self.params: list[UOp] = []
        self.constants: dict[UOp, None] = {}
        self.body: list[UOp] = []

    def param(self, dtype: DType, size: int, *, written: bool = False) -> UOp:
        count = sum(p.arg[2] == written for p in self.params)
        made = UOp(ops.PARAM, dtype, (), (f"{'out' if written else 'in'}{count}", (size,), written))
        self.params.append(made)
        return made

    def const(self, value: int | float | bool, dtype: DType = _INT) -> UOp:
        made = const(value, dtype)
        self.constants.setdefault(made)
        return made

    def add(self, op: Op, dtype: DType, *src: UOp, arg: object = None) -> UOp:
        made = UOp(op, dtype, src, arg)
        self.body.append(made)
        return made

    def loop(self, size: int, name: str = "i", kind: str = "loop") -> UOp:
        return self.add(ops.RANGE, _INT, arg=(name, size, kind))

    def end(self, loop: UOp) -> None:
        self.add(ops.END, dtypes.void, loop)

    def program(self, name: str, launch: Launch | None = None) -> Program:
        ordered = sorted(self.params, key=lambda p: not p.arg[2])
        arguments = tuple(Argument(p.arg[0], "buffer", p.dtype.name, p.arg[1], p.arg[2]) for p in ordered)
        return Program(name, (*ordered, *self.constants, *self.body), arguments, launch or Launch())


def handmade(caps: Capabilities) -> Iterator[Handmade]:
    """Yield the programs for a target with these capabilities."""
    yield _conditional()
    yield from _vectors(caps)
    yield _local(caps)
    yield _unrolled()
    if {"grid", "block"} <= caps.axis_kinds:
        yield _launched(caps)
    if "warp" in caps.axis_kinds:
        yield _shuffled()
    if caps.images:
        yield _image()
    yield from _functions(caps)
    yield from _conversions(caps)


def _numbers(count: int, dtype: DType = dtypes.float32) -> Values:
    return random_values(np.random.default_rng(count), dtype, (count,))


def _conditional() -> Handmade:
    b = _Builder()
    out, x = b.param(dtypes.float32, 10, written=True), b.param(dtypes.float32, 10)
    zero = b.const(0.0, dtypes.float32)
    i = b.loop(10)
    value = b.add(ops.LOAD, dtypes.float32, x, i, arg=1)
    b.add(ops.STORE, dtypes.void, out, i, zero)
    positive = b.add(ops.CMPLT, dtypes.bool_, zero, value)
    block = b.add(ops.IF, dtypes.void, positive)
    b.add(ops.STORE, dtypes.void, out, i, b.add(ops.ADD, dtypes.float32, value, value))
    b.add(ops.ENDIF, dtypes.void, block)
    b.end(i)
    return Handmade("hook/begin_if", b.program("conditional"), (_numbers(10),))


def _vectors(caps: Capabilities) -> Iterator[Handmade]:
    if "vector" not in caps.axis_kinds or not caps.vector_bits:
        return
    for dtype in (dtypes.float32, dtypes.int8, dtypes.bool_):
        if not caps.storage.get(dtype.name):
            continue
        wide = dtype.vector(4)
        b = _Builder()
        out, folded = b.param(dtype, 12, written=True), b.param(dtype, 3, written=True)
        x = b.param(dtype, 12)
        four = b.const(4)
        i = b.loop(3)
        at = b.add(ops.MUL, _INT, i, four)
        value = b.add(ops.LOAD, wide, x, at, arg=4)
        swapped = b.add(ops.GEP, wide, value, arg=(3, 2, 1, 0))
        lane = b.add(ops.GEP, dtype, value, arg=(2,))
        spread = b.add(ops.BROADCAST, wide, lane)
        mixed = b.add(ops.VECTORIZE, wide, lane, b.add(ops.GEP, dtype, value, arg=(0,)), lane, lane)
        join = ops.OR if dtype.kind == "bool" else ops.ADD
        total = b.add(join, wide, b.add(join, wide, swapped, spread), mixed)
        b.add(ops.STORE, dtypes.void, out, at, total)
        b.add(ops.STORE, dtypes.void, folded, i, b.add(ops.FOLD, dtype, value, arg=join))
        b.end(i)
        yield Handmade(
            f"hook/render_vector/{dtype.name}", b.program(f"vectors_{dtype.name}"), (_numbers(12, dtype),)
        )
        yield _gated(dtype)


def _gated(dtype: DType) -> Handmade:
    """Gates and gathers: scalar and vector gates on contiguous and scattered accesses."""
    wide, index, truth = dtype.vector(4), _INT.vector(4), dtypes.bool_.vector(4)
    b = _Builder()
    outs = [b.param(dtype, 16, written=True) for _ in range(4)]
    x, limit = b.param(dtype, 13), b.const(13)
    four = b.const(4)
    zero = b.add(ops.BROADCAST, wide, b.const(0, dtype))
    lanes = b.add(ops.VECTORIZE, index, *[b.const(n) for n in range(4)])
    limits = b.add(ops.BROADCAST, index, limit)
    i = b.loop(4)
    at = b.add(ops.MUL, _INT, i, four)
    for out in outs:
        b.add(ops.STORE, dtypes.void, out, at, zero)
    places = b.add(ops.ADD, index, b.add(ops.BROADCAST, index, at), lanes)
    inside = b.add(ops.CMPLT, truth, places, limits)
    whole = b.add(ops.CMPLT, dtypes.bool_, i, b.const(3))
    for n, (address, gate) in enumerate(((at, inside), (at, whole), (places, inside), (places, whole))):
        value = b.add(ops.LOAD, wide, x, address, gate, arg=1)
        b.add(ops.STORE, dtypes.void, outs[n], address, value, gate)
    b.end(i)
    return Handmade(f"hook/gates/{dtype.name}", b.program(f"gates_{dtype.name}"), (_numbers(13, dtype),))


def _local(caps: Capabilities) -> Handmade:
    """Local memory where the target has it, else a register array: written by one loop, read by another."""
    space = "local" if "local" in caps.address_spaces else "register"
    b = _Builder()
    out, x = b.param(dtypes.float32, 8, written=True), b.param(dtypes.float32, 8)
    seven = b.const(7)
    array = b.add(ops.LOCAL, dtypes.float32, arg=("tile", (8,), space))
    i = b.loop(8)
    b.add(ops.STORE, dtypes.void, array, i, b.add(ops.LOAD, dtypes.float32, x, i, arg=1))
    b.end(i)
    if caps.barriers and space == "local":
        b.add(ops.BARRIER, dtypes.void)
    j = b.loop(8, "j")
    value = b.add(ops.LOAD, dtypes.float32, array, b.add(ops.SUB, _INT, seven, j), arg=1)
    b.add(ops.STORE, dtypes.void, out, j, value)
    b.end(j)
    return Handmade(f"hook/define_buffer/{space}", b.program("reverse"), (_numbers(8),))


def _unrolled() -> Handmade:
    b = _Builder()
    out, x = b.param(dtypes.float32, 6, written=True), b.param(dtypes.float32, 6)
    zero, zero_at = b.const(0.0, dtypes.float32), b.const(0)
    array = b.add(ops.LOCAL, dtypes.float32, arg=("acc", (), "register"))
    b.add(ops.STORE, dtypes.void, array, zero_at, zero)
    i = b.loop(6, "i", "unroll")
    total = b.add(ops.LOAD, dtypes.float32, array, zero_at, arg=1)
    total = b.add(ops.ADD, dtypes.float32, total, b.add(ops.LOAD, dtypes.float32, x, i, arg=1))
    b.add(ops.STORE, dtypes.void, array, zero_at, total)
    b.add(ops.STORE, dtypes.void, out, i, total)
    b.end(i)
    return Handmade("hook/define_register", b.program("running_sum"), (_numbers(6),))


def _launched(caps: Capabilities) -> Handmade:
    """A grid of blocks: each block reverses its part through local memory, with a barrier between."""
    blocks, threads = 3, 4
    b = _Builder()
    out, x = (b.param(dtypes.float32, blocks * threads, written=w) for w in (True, False))
    last, width = b.const(threads - 1), b.const(threads)
    block = b.add(ops.SPECIAL, _INT, arg=("grid0", blocks))
    thread = b.add(ops.SPECIAL, _INT, arg=("block0", threads))
    at = b.add(ops.ADD, _INT, b.add(ops.MUL, _INT, block, width), thread)
    value = b.add(ops.LOAD, dtypes.float32, x, at, arg=1)
    if caps.barriers and "local" in caps.address_spaces:
        tile = b.add(ops.LOCAL, dtypes.float32, arg=("tile", (threads,), "local"))
        b.add(ops.STORE, dtypes.void, tile, thread, value)
        b.add(ops.BARRIER, dtypes.void)
        value = b.add(ops.LOAD, dtypes.float32, tile, b.add(ops.SUB, _INT, last, thread), arg=1)
    b.add(ops.STORE, dtypes.void, out, at, value)
    launch = Launch(grid=(blocks,), block=(threads,))
    return Handmade("hook/render_special", b.program("reverse_blocks", launch), (_numbers(blocks * threads),))


def _shuffled() -> Handmade:
    b = _Builder()
    out, x = b.param(dtypes.float32, 32, written=True), b.param(dtypes.float32, 32)
    thread = b.add(ops.SPECIAL, _INT, arg=("warp0", 32))
    value = b.add(ops.LOAD, dtypes.float32, x, thread, arg=1)
    for distance in (16, 8, 4, 2, 1):
        value = b.add(ops.ADD, dtypes.float32, value, b.add(ops.SHUFFLE, dtypes.float32, value, arg=distance))
    b.add(ops.STORE, dtypes.void, out, thread, value)
    launch = Launch(grid=(1,), block=(32,))
    return Handmade("hook/render_shuffle", b.program("warp_sum", launch), (_numbers(32),))


def _image() -> Handmade:
    """Texels in reverse order, doubled; those of the first column are 0."""
    height, width = 3, 5
    b = _Builder()
    out, image = (
        UOp(ops.IMAGE, dtypes.float32, (), (name, (height, width), written))
        for name, written in (("out0", True), ("in0", False))
    )
    zero, one, last, bottom = b.const(0), b.const(1), b.const(width - 1), b.const(height - 1)
    y = b.loop(height, "y")
    x = b.loop(width, "x")
    inside = b.add(ops.CMPLE, dtypes.bool_, one, x)
    at = b.add(ops.SUB, _INT, last, x), b.add(ops.SUB, _INT, bottom, y)
    texel = b.add(ops.IMAGE_LOAD, dtypes.float32.vector(4), image, *at, inside)
    right = b.add(ops.CMPLE, dtypes.bool_, zero, x)
    b.add(ops.IMAGE_STORE, dtypes.void, out, x, y, b.add(ops.ADD, texel.dtype, texel, texel), right)
    b.end(x)
    b.end(y)
    arguments = tuple(
        Argument(u.arg[0], "image", "float32", (height, width, 4), u.arg[2]) for u in (out, image)
    )
    program = Program("image", (out, image, *b.constants, *b.body), arguments, Launch())
    return Handmade("hook/images", program, (_numbers(height * width * 4).reshape(height, width, 4),))


def _pairs(dtype: DType) -> tuple[Values, Values]:
    values = special_values(dtype)
    pad = -(len(values) ** 2) % 8
    x, y = np.repeat(values, len(values)), np.tile(values, len(values))
    return np.concatenate([x, x[:pad]]), np.concatenate([y, y[:pad]])


def _functions(caps: Capabilities) -> Iterator[Handmade]:
    """Each function that the target claims to have, called directly."""
    for name, claims in sorted(caps.functions.items()):
        op = OPS[name]
        for dtype_name, ulps in sorted(claims.items()):
            dtype = as_dtype(dtype_name)
            inputs = _pairs(dtype)[: len(op.operands)]
            made = lanewise(f"{name}_{dtype_name}", op, dtype, [dtype] * len(inputs), len(inputs[0]), caps)
            yield Handmade(f"function/{name}/{dtype_name}", made, inputs, ulps)


def _conversions(caps: Capabilities) -> Iterator[Handmade]:
    """Each narrow float that the target claims to convert, both ways."""
    for name in sorted(caps.conversions):
        yield from conversion(name, caps)


def conversion(name: str, caps: Capabilities) -> Iterator[Handmade]:
    """Yield the programs that convert a narrow float to float32 and back with the target's own CAST."""
    narrow = as_dtype(name)
    there, back = _pairs(narrow)[0], _pairs(dtypes.float32)[0]
    for source, target, values in ((narrow, dtypes.float32, there), (dtypes.float32, narrow, back)):
        label = f"{source.name}_{target.name}"
        made = lanewise(label, ops.CAST, target, [source], len(values), caps)
        yield Handmade(f"conversion/{source.name}/{target.name}", made, (values,))


def lanewise(
    name: str, op: Op, dtype: DType, sources: Sequence[DType], size: int, caps: Capabilities
) -> Program:
    """Return a program that applies one op as it is: to vectors where the target has them, and to scalars."""
    widths = [1, 4] if "vector" in caps.axis_kinds and caps.vector_bits else [1]
    b = _Builder()
    outs = [b.param(dtype, size, written=True) for _ in widths]
    inputs = [b.param(d, size) for d in sources]
    for out, width in zip(outs, widths, strict=True):
        step = b.const(width)
        i = b.loop(size // width, f"i{width}")
        at = b.add(ops.MUL, _INT, i, step)
        values = [
            b.add(ops.LOAD, d.vector(width), x, at, arg=1) for d, x in zip(sources, inputs, strict=True)
        ]
        b.add(ops.STORE, dtypes.void, out, at, b.add(op, dtype.vector(width), *values))
        b.end(i)
    return b.program(f"lanes_{name}")


def features(program: Program) -> set[str]:
    """Return what a program uses of what capabilities claim: "storage:float16", "axis:thread" ..."""
    found: set[str] = set()
    for u in program.uops:
        scalar = u.dtype.scalar.name
        if u.dtype.lanes > 1:
            found.add("axis:vector")
        match u.op:
            case ops.PARAM:
                found |= {f"storage:{scalar}", "space:global"}
            case ops.LOCAL:
                found.add(f"space:{u.arg[2]}")
            case ops.RANGE:
                found.add(f"axis:{u.arg[2]}")
            case ops.SPECIAL:
                found.add(f"axis:{u.arg[0].rstrip('0123456789')}")
            case ops.BARRIER:
                found.add("barriers")
            case ops.IMAGE:
                found.add("images")
            case ops.WMMA:
                found.add(f"tensor core:{u.arg}")
            case ops.CAST:
                found |= {f"conversion:{d.scalar.name}" for d in (u.dtype, u.src[0].dtype)}
            case _ if u.op in ops.ALU_OPS:
                found.add(f"function:{u.op.name}:{u.src[-1].dtype.scalar.name}")
                found.add(f"arithmetic:{u.src[-1].dtype.scalar.name}")
    return found


def claims(caps: Capabilities) -> list[str]:
    """Return everything that capabilities claim, in the words of `features`."""
    found = [f"storage:{name}" for name, entry in caps.storage.items() if entry]
    found += [f"arithmetic:{name}" for name, entry in caps.arithmetic.items() if entry]
    found += [f"function:{op}:{name}" for op, table in caps.functions.items() for name in table]
    found += [f"conversion:{name}" for name in sorted(caps.conversions)]
    found += [f"axis:{kind}" for kind in sorted(caps.axis_kinds)]
    found += [f"space:{space}" for space in sorted(caps.address_spaces)]
    found += [f"tensor core:{core.name}" for core in caps.tensor_cores]
    if caps.barriers:
        found.append("barriers")
    if caps.images:
        found.append("images")
    return found
