"""`LLVMRenderer`: linear programs as LLVM IR text.

An operand is the text of an LLVM value (`%add.3`, `7`, `splat (i32 8)`); its type follows from the dtype of
the uop that it was made for.  How dtypes are carried:

* bool is `i1` as a value and `i8` in memory;
* floats narrower than 32 bits are integers of their size: only a CAST makes a `half` of one, for an instant;
* vectors are LLVM vectors.

A kernel is two functions.  `@name` has the CPU's launch signature and only unpacks it.  `@name.body` takes
each buffer as a `noalias` parameter, which says as much about aliasing as metadata on every load would, in
less text.

Integer arithmetic on literals is done here: unrolled loops are replayed with literal indices, and only an
array that is indexed by nothing but literals becomes registers.  Where the bounds of an index expression
follow from those of loops and variables, the arithmetic is marked `nsw`, so that address computations can
be simplified.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from retarget.codegen.hooks import hookimpl
from retarget.codegen.intervals import Bounds, interval
from retarget.codegen.renderer import Renderer
from retarget.errors import CompileError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType
from retarget.ir.ops import Op
from retarget.ir.uop import UOp, wrap

from .registers import Element, Registers

if TYPE_CHECKING:
    from retarget.codegen.driver import EmitContext

#: Op -> instruction or intrinsic, by the kind of its operands.
_INSTRUCTIONS: dict[Op, dict[str, str]] = {
    ops.ADD: {"bool": "or", "int": "add", "uint": "add", "float": "fadd"},
    ops.SUB: {"int": "sub", "uint": "sub", "float": "fsub"},
    ops.MUL: {"bool": "and", "int": "mul", "uint": "mul", "float": "fmul"},
    ops.FDIV: {"float": "fdiv"},
    ops.TRUNCDIV: {"int": "sdiv", "uint": "udiv"},
    ops.TRUNCMOD: {"int": "srem", "uint": "urem"},
    ops.AND: {"bool": "and", "int": "and", "uint": "and"},
    ops.OR: {"bool": "or", "int": "or", "uint": "or"},
    ops.XOR: {"bool": "xor", "int": "xor", "uint": "xor"},
    ops.USHL: {"int": "shl", "uint": "shl"},
    ops.USHR: {"int": "ashr", "uint": "lshr"},
    ops.CMPLT: {"bool": "icmp ult", "int": "icmp slt", "uint": "icmp ult", "float": "fcmp olt"},
    ops.CMPLE: {"bool": "icmp ule", "int": "icmp sle", "uint": "icmp ule", "float": "fcmp ole"},
    ops.CMPEQ: {"bool": "icmp eq", "int": "icmp eq", "uint": "icmp eq", "float": "fcmp oeq"},
    ops.CMPNE: {"bool": "icmp ne", "int": "icmp ne", "uint": "icmp ne", "float": "fcmp une"},
    ops.MAXIMUM: {"bool": "or", "int": "@llvm.smax", "uint": "@llvm.umax"},
    ops.MINIMUM: {"bool": "and", "int": "@llvm.smin", "uint": "@llvm.umin"},
    ops.NEG: {"float": "fneg"},
    ops.SQRT: {"float": "@llvm.sqrt"},
    ops.FLOOR: {"float": "@llvm.floor"},
    ops.CEIL: {"float": "@llvm.ceil"},
    ops.TRUNC: {"float": "@llvm.trunc"},
    ops.RINT: {"float": "@llvm.roundeven"},
    ops.MULACC: {"float": "@llvm.fmuladd"},  # one instruction where there is one, else two; never a call
}

#: (from kind, to kind) -> instruction, where the width does not matter.
_CASTS: dict[tuple[str, str], str] = {
    ("bool", "int"): "zext", ("bool", "uint"): "zext", ("bool", "float"): "uitofp", ("int", "float"):
    "sitofp", ("uint", "float"): "uitofp", ("float", "int"): "fptosi", ("float", "uint"): "fptoui",
}  # fmt: skip

#: What each op gives for integers; the result is wrapped to the dtype afterwards.
_INTEGER: dict[Op, Callable[..., int]] = {
    ops.ADD: lambda x, y: x + y, ops.SUB: lambda x, y: x - y, ops.MUL: lambda x, y: x * y,
    ops.NEG: lambda x: -x, ops.NOT: lambda x: ~x,
    ops.AND: lambda x, y: x & y, ops.OR: lambda x, y: x | y, ops.XOR: lambda x, y: x ^ y,
    ops.USHL: lambda x, n: x << n, ops.USHR: lambda x, n: x >> n,
    ops.TRUNCDIV: lambda x, y: abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1),
    ops.TRUNCMOD: lambda x, y: abs(x) % abs(y) * (-1 if x < 0 else 1),
    ops.CMPLT: lambda x, y: x < y, ops.CMPLE: lambda x, y: x <= y,
    ops.CMPEQ: lambda x, y: x == y, ops.CMPNE: lambda x, y: x != y,
    ops.MAXIMUM: max, ops.MINIMUM: min,
}  # fmt: skip

#: The right operand that leaves the left one as it is.
_NEUTRAL: dict[Op, int] = {
    ops.ADD: 0, ops.SUB: 0, ops.OR: 0, ops.XOR: 0, ops.USHL: 0, ops.USHR: 0, ops.MUL: 1, ops.TRUNCDIV: 1,
}  # fmt: skip
_BOOL_NEUTRAL: dict[Op, int] = {ops.ADD: 0, ops.OR: 0, ops.XOR: 0, ops.MUL: 1, ops.AND: 1}

_ALIGNMENT = 64  # of local arrays, in bytes


class _Carried(NamedTuple):
    """A register that a block changes: its value before, and the line of a phi that is not finished."""

    element: Element
    before: str
    line: int = -1


@dataclass(frozen=True, slots=True)
class _Condition:
    """An open condition: the block before, the label after it, and the registers that it changes."""

    before: str
    after: str
    carried: tuple[_Carried, ...] = ()


@dataclass(frozen=True, slots=True)
class _Loop:
    """An open loop: the labels and operands that its end needs."""

    index: str
    type: str
    end: str
    body: str
    latch: str
    exit: str
    #: The block before, if the loop may have no iteration.
    guard: str | None
    carried: tuple[_Carried, ...]


@dataclass(slots=True)
class _State:
    """The state of one rendering.

    `block` is the label of the block that is being written, `bounds` the known bounds of integer values by
    their text, `parameters` the types of the parameters met so far, by name, and `zeros` the size in bytes of
    the constant that loads with a false gate read.
    """

    registers: Registers
    block: str = "entry"
    allocas: list[str] = field(default_factory=list)
    loops: list[_Loop] = field(default_factory=list)
    conditions: list[_Condition] = field(default_factory=list)
    bounds: dict[str, Bounds] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    zeros: int = 0


# -- text of types and literals ------------------------------------------------------------------------------


@functools.cache
def value_type(dtype: DType) -> str:
    """Return the LLVM type that values of `dtype` have."""
    if dtype.lanes > 1:
        return f"<{dtype.lanes} x {value_type(dtype.scalar)}>"
    if dtype.kind == "bool":
        return "i1"
    return {"float32": "float", "float64": "double"}.get(dtype.name, f"i{dtype.bits}")


@functools.cache
def memory_type(dtype: DType) -> str:
    """Return the LLVM type that `dtype` has in memory."""
    return value_type(dtypes.uint8.vector(dtype.lanes) if dtype.kind == "bool" else dtype)


@functools.cache
def _mangled(dtype: DType) -> str:
    """Return how intrinsics spell the type that `dtype` has in memory: "f32", "v8i16"."""
    scalar = f"f{dtype.bits}" if dtype.kind == "float" and dtype.bits >= 32 else f"i{dtype.bits}"
    return scalar if dtype.lanes == 1 else f"v{dtype.lanes}{scalar}"


def literal(value: bool | int | float, dtype: DType) -> str:
    """Return a scalar constant; floats are exact, as the bits of a double, and narrow ones as an integer."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.kind != "float":
        return str(int(value))
    if dtype.bits >= 32:
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    import numpy as np

    return str(int(np.asarray(value, dtypes.to_numpy(dtype)).view(f"uint{dtype.bits}")))


@functools.cache
def _call(name: str, dtype: DType, count: int) -> str:
    """Return a call of an intrinsic, with a place for each operand."""
    kind = value_type(dtype)
    return f"call {kind} {name}.{_mangled(dtype)}({', '.join([f'{kind} %s'] * count)})"


@functools.cache
def _pattern(op: Op, dtype: DType) -> tuple[str, str] | None:
    """Return the prefix of a result's name and the instruction for an op of the table on `dtype`."""
    instruction = _INSTRUCTIONS.get(op, {}).get(dtype.kind)
    if instruction is None or _is_narrow(dtype):
        return None
    count = len(op.operands)
    if instruction.startswith("@"):
        return instruction.removeprefix("@llvm."), _call(instruction, dtype, count)
    return op.name.lower(), f"{instruction} {value_type(dtype)} {', '.join(['%s'] * count)}"


def _splat(text: str, dtype: DType) -> str:
    """Return a constant of `dtype` whose every lane is the scalar constant `text`."""
    return text if dtype.lanes == 1 else f"splat ({value_type(dtype.scalar)} {text})"


def _zero(dtype: DType) -> str:
    return "zeroinitializer" if dtype.lanes > 1 else literal(0, dtype)


def _is_constant(text: str) -> bool:
    return text[0] != "%"


def _integer(text: str) -> int | None:
    """Return the value of a scalar integer or bool constant, None for anything else."""
    if text[0] in "-0123456789":
        return int(text)
    return {"true": 1, "false": 0}.get(text)


# -- the renderer --------------------------------------------------------------------------------------------


class LLVMRenderer(Renderer):
    """Renders for any CPU that LLVM knows; what differs between CPUs is the target machine's business.

    Helper methods for extensions: `define`, `intrinsic` and `binary`.

    Attributes
    ----------
    branches
        Whether a load with a gate is a branch around it; else it reads zeros from elsewhere.
    """

    unroll = "replay"
    names_values = False
    language = "llvm"
    branches = False

    def new_state(self, ctx: EmitContext) -> _State:
        return _State(Registers.of(ctx.program.uops))

    def identity(self) -> str:
        converts = ",".join(sorted(self.capabilities.conversions))
        return f"{self.target} {self.capabilities.vector_bits} {converts}"

    # helpers

    def define(self, ctx: EmitContext, prefix: str, text: str) -> str:
        """Append an instruction and return the name of its value.

        The dot keeps names apart from those of parameters, arrays and loops, which are C identifiers.
        """
        name = f"%{ctx.fresh(prefix + '.')}"
        ctx.line(f"{name} = {text}")
        return name

    def intrinsic(self, ctx: EmitContext, name: str, dtype: DType, operands: Sequence[str]) -> str:
        """Append a call of an intrinsic that takes and gives values of `dtype`, such as "@llvm.sqrt"."""
        return self.define(
            ctx, name.removeprefix("@llvm."), _call(name, dtype, len(operands)) % tuple(operands)
        )

    def binary(self, ctx: EmitContext, op: Op, dtype: DType, operands: Sequence[str]) -> str | None:
        """Append an op of the table on operands of `dtype`; None where the table has none."""
        pattern = _pattern(op, dtype)
        return None if pattern is None else self.define(ctx, pattern[0], pattern[1] % tuple(operands))

    # declarations

    @hookimpl
    def define_buffer(self, ctx: EmitContext, uop: UOp) -> str:
        if uop.op is ops.LOCAL:
            return self._array(ctx, uop)
        name, _, writable = uop.arg
        ctx.state.names.add(name)
        ctx.state.parameters[name] = "ptr noalias" if writable else "ptr noalias readonly"
        return f"%{name}"

    @hookimpl
    def define_register(self, ctx: EmitContext, uop: UOp) -> str:
        registers: Registers = ctx.state.registers
        if uop not in registers.promoted:
            return self._array(ctx, uop)
        name = unique(ctx, uop.arg[0])
        registers.declare(uop, name)
        return name

    @hookimpl
    def define_var(self, ctx: EmitContext, uop: UOp) -> str:
        name, low, high = uop.arg
        ctx.state.names.add(name)
        ctx.state.parameters[name] = value_type(uop.dtype)
        ctx.state.bounds[f"%{name}"] = (low, high)
        return f"%{name}"

    def _array(self, ctx: EmitContext, uop: UOp) -> str:
        """Reserve an array in the entry block, where an `alloca` is taken once and can become registers."""
        name, shape, _ = uop.arg
        pointer = "%" + unique(ctx, name)
        size = math.prod(n for n in shape if n)
        kind = memory_type(uop.dtype)
        ctx.state.allocas.append(f"{pointer} = alloca [{size} x {kind}], align {_ALIGNMENT}")
        return pointer

    # values

    @hookimpl
    def render_const(self, ctx: EmitContext, uop: UOp) -> str:
        return literal(uop.arg, uop.dtype)

    @hookimpl
    def render_alu(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str | None:
        op, dtype = uop.op, uop.dtype
        if op is ops.WHERE:
            return self._where(ctx, uop, operands)
        if dtype.lanes == 1 and dtype.kind in ("int", "uint", "bool") and uop.src[0].dtype.kind != "float":
            return self._scalar_integer(ctx, uop, operands)
        return self._plain(ctx, op, uop.src[0].dtype, operands)

    def _scalar_integer(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str | None:
        """Render scalar integer arithmetic, folding literals.

        Where bounds show that signed arithmetic does not wrap, say so, and keep the bounds of the result.
        """
        op, dtype = uop.op, uop.dtype
        known = [_bounds(ctx, x) for x in operands]
        if any(x is not None and x[0] == x[1] for x in known):
            folded = _fold_integers(op, dtype, operands, known)
            if folded is not None:
                return folded
        if dtype.kind != "int" or len(known) != 2 or None in known:
            return self._plain(ctx, op, uop.src[0].dtype, operands)
        x, y = [each for each in known if each is not None]
        result = interval(op, x, y)
        if result is None or not (dtype.min <= result[0] and result[1] <= dtype.max):
            return self._plain(ctx, op, dtype, operands)
        instruction = _INSTRUCTIONS[op][dtype.kind]
        if op in (ops.TRUNCDIV, ops.TRUNCMOD):
            instruction = "u" + instruction[1:]
        else:
            instruction += " nuw nsw" if x[0] >= 0 and y[0] >= 0 and result[0] >= 0 else " nsw"
        value = self.define(ctx, op.name.lower(), f"{instruction} {value_type(dtype)} {', '.join(operands)}")
        ctx.state.bounds[value] = result
        return value

    def _plain(self, ctx: EmitContext, op: Op, dtype: DType, operands: Sequence[str]) -> str | None:
        kind = value_type(dtype)
        if op is ops.NEG and dtype.is_int:
            return self.define(ctx, "neg", f"sub {kind} {_zero(dtype)}, {operands[0]}")
        if op is ops.NOT:
            ones = _splat("true" if dtype.kind == "bool" else "-1", dtype)
            return self.define(ctx, "not", f"xor {kind} {operands[0]}, {ones}")
        return self.binary(ctx, op, dtype, operands)

    def _where(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str:
        condition, x, y = operands
        chosen = _integer(condition)
        if chosen is not None:
            return x if chosen else y
        return self._select(ctx, uop.src[0].dtype, condition, uop.dtype, x, y)

    def _select(self, ctx: EmitContext, mask: DType, condition: str, dtype: DType, x: str, y: str) -> str:
        kind = value_type(dtype)
        return self.define(ctx, "where", f"select {value_type(mask)} {condition}, {kind} {x}, {kind} {y}")

    @hookimpl
    def render_cast(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str | None:
        x, source, dtype = operands[0], uop.src[0].dtype, uop.dtype
        if source is dtype:
            return x
        if uop.op is ops.BITCAST:
            return self._bitcast(ctx, x, source, dtype)
        if source.is_int and dtype.is_int:
            return self._resize(ctx, x, source, dtype)
        if _is_narrow(source) or _is_narrow(dtype):
            return self._cast_half(ctx, x, source, dtype)
        if source.is_float and dtype.is_float:
            instruction: str | None = "fpext" if dtype.bits > source.bits else "fptrunc"
        else:
            instruction = _CASTS.get((source.kind, dtype.kind))
        if instruction is None:
            return None
        return self._convert(ctx, instruction, x, value_type(source), value_type(dtype))

    def _convert(self, ctx: EmitContext, instruction: str, x: str, source: str, target: str) -> str:
        return x if source == target else self.define(ctx, "cast", f"{instruction} {source} {x} to {target}")

    def _resize(self, ctx: EmitContext, x: str, source: DType, dtype: DType) -> str:
        value = _integer(x) if dtype.lanes == 1 else None
        if value is not None:
            return str(wrap(value, dtype))
        extend = "sext" if source.kind == "int" else "zext"
        instruction = extend if dtype.bits > source.bits else "trunc"
        result = self._convert(ctx, instruction, x, value_type(source), value_type(dtype))
        bounds = _bounds(ctx, x) if dtype.lanes == 1 else None
        if bounds is not None and dtype.min <= bounds[0] and bounds[1] <= dtype.max:
            ctx.state.bounds[result] = bounds
        return result

    def _bitcast(self, ctx: EmitContext, x: str, source: DType, dtype: DType) -> str:
        if source.kind == "bool":
            return self._convert(ctx, "zext", x, value_type(source), value_type(dtype))
        if dtype.kind == "bool":
            return self._truth(ctx, x, dtype)
        return self._convert(ctx, "bitcast", x, value_type(source), value_type(dtype))

    def _cast_half(self, ctx: EmitContext, x: str, source: DType, dtype: DType) -> str | None:
        """Convert between float16 and float32, and from float16 to float64; others would round twice."""
        narrow, wide = (source, dtype) if source.bits < dtype.bits else (dtype, source)
        if narrow.name != "float16" or "float16" not in self.capabilities.conversions or not wide.is_float:
            return None
        half = "half" if narrow.lanes == 1 else f"<{narrow.lanes} x half>"
        single = value_type(dtypes.float32.vector(narrow.lanes))
        if source is narrow:
            x = self._convert(ctx, "bitcast", x, value_type(source), half)
            x = self._convert(ctx, "fpext", x, half, single)
            return self._convert(ctx, "fpext", x, single, value_type(dtype))
        if wide.bits != 32:
            return None
        x = self._convert(ctx, "fptrunc", x, single, half)
        return self._convert(ctx, "bitcast", x, half, value_type(dtype))

    @hookimpl
    def render_vector(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str | None:
        dtype, kind = uop.dtype, value_type(uop.dtype)
        if uop.op is ops.FOLD:
            return self._fold(ctx, uop.arg, uop.src[0].dtype, operands[0])
        if uop.op is ops.GEP:
            return self._lanes(ctx, uop.src[0].dtype, operands[0], uop.arg, *operands[1:])
        if uop.op is ops.BROADCAST:
            return self._broadcast(ctx, dtype, operands[0])
        scalar = value_type(dtype.scalar)
        constants = [x if _is_constant(x) else "poison" for x in operands]
        vector = f"<{', '.join(f'{scalar} {x}' for x in constants)}>"
        for lane, x in enumerate(operands):
            if not _is_constant(x):
                element = f"{scalar} {x}, i64 {lane}"
                vector = self.define(ctx, "vector", f"insertelement {kind} {vector}, {element}")
        return vector

    def _broadcast(self, ctx: EmitContext, dtype: DType, x: str) -> str:
        if _is_constant(x):
            return _splat(x, dtype)
        kind, scalar = value_type(dtype), value_type(dtype.scalar)
        mask = f"<{dtype.lanes} x i32> zeroinitializer"
        first = self.define(ctx, "lane", f"insertelement {kind} poison, {scalar} {x}, i64 0")
        return self.define(ctx, "splat", f"shufflevector {kind} {first}, {kind} poison, {mask}")

    def _lanes(self, ctx: EmitContext, dtype: DType, x: str, lanes: Sequence[int], y: str = "poison") -> str:
        """Return lanes of a vector `x`, or of `x` and `y`, whose lanes count on from those of `x`."""
        kind = value_type(dtype)
        if dtype.lanes == 1:
            return x if len(lanes) == 1 else self._broadcast(ctx, dtype.vector(len(lanes)), x)
        if len(lanes) == 1:
            at, lane = divmod(lanes[0], dtype.lanes)
            return self.define(ctx, "lane", f"extractelement {kind} {(x, y)[at]}, i64 {lane}")
        mask = f"<{len(lanes)} x i32> <{', '.join(f'i32 {n}' for n in lanes)}>"
        return self.define(ctx, "lanes", f"shufflevector {kind} {x}, {kind} {y}, {mask}")

    def _fold(self, ctx: EmitContext, op: Op, dtype: DType, x: str) -> str | None:
        """Fold the lower half with the upper half until one lane is left."""
        lanes = dtype.lanes
        if lanes & (lanes - 1):
            raise CompileError(f"cannot fold {dtype} in halves: {lanes} lanes are not a power of two")
        value: str | None = x
        while lanes > 1 and value is not None:
            wide, lanes = dtype.vector(lanes), lanes // 2
            half = dtype.vector(lanes)
            low = self._lanes(ctx, wide, value, range(lanes))
            high = self._lanes(ctx, wide, value, range(lanes, 2 * lanes))
            if dtype.is_float and op in (ops.MAXIMUM, ops.MINIMUM):
                value = self._nan_extremum(ctx, op, half, low, high)
            else:
                value = self.binary(ctx, op, half, (low, high))
        return value

    def _nan_extremum(self, ctx: EmitContext, op: Op, dtype: DType, x: str, y: str) -> str | None:
        """Return the larger (smaller) float, NaN if either is one: x > y ? x : y gives y where y is NaN."""
        if _is_narrow(dtype):
            return None
        kind, mask = value_type(dtype), value_type(dtypes.bool_.vector(dtype.lanes))
        order = "ogt" if op is ops.MAXIMUM else "olt"
        first = self.define(ctx, "cmp", f"fcmp {order} {kind} {x}, {y}")
        larger = self.define(ctx, "where", f"select {mask} {first}, {kind} {x}, {kind} {y}")
        nan = self.define(ctx, "cmp", f"fcmp uno {kind} {x}, {x}")
        return self.define(ctx, "where", f"select {mask} {nan}, {kind} {x}, {kind} {larger}")

    # memory

    @hookimpl
    def render_load(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str:
        """Render a load.  A false gate makes it read zeros from elsewhere, unless an instruction takes masks.

        LLVM's own expansion, a branch for each lane, was measured to be up to 1.5 times as slow to run, and
        twice as slow to compile.
        """
        if uop.src[0] in ctx.state.registers.promoted:
            return self._load_register(ctx, uop, operands)
        dtype, (buffer, index) = uop.dtype, uop.src[:2]
        kind, align = memory_type(dtype), self._alignment(buffer, uop)
        pointer = self.pointer(buffer)
        gate = operands[2] if len(operands) > 2 and operands[2] != "true" else None
        if gate == "false":
            return _zero(dtype)
        address = self._address(ctx, buffer, index, operands[0], operands[1], gated=gate is not None)
        scattered = index.dtype.lanes > 1
        if gate is not None:
            gates = uop.src[2].dtype
            if gates.lanes > 1 and not scattered:
                if self._has_masks(dtype):
                    return self._masked_load(ctx, dtype, pointer, address, align, gate)
                address = self._lane_addresses(ctx, dtype, pointer, address)
                scattered = True
            if self.branches and scattered:
                mask = gate if gates.lanes > 1 else self._broadcast(ctx, gates.vector(dtype.lanes), gate)
                return self._gather(ctx, dtype, pointer, address, align, mask)
            if self.branches:
                load = f"load {kind}, {pointer} {address}, align {align}"
                return self._conditional_load(ctx, dtype, load, gate)
            address = self._or_zeros(ctx, gates, gate, dtype, address, scattered)
        if scattered:
            return self._gather(ctx, dtype, pointer, address, align)
        return self._loaded(ctx, dtype, f"load {kind}, {pointer} {address}, align {align}")

    def pointer(self, buffer: UOp) -> str:
        """Return the type of pointers to the elements of a parameter or an array."""
        return "ptr"

    def _or_zeros(
        self, ctx: EmitContext, gates: DType, gate: str, dtype: DType, address: str, scattered: bool
    ) -> str:
        """Return an address, or addresses, where the gate holds, and that of zeros elsewhere."""
        ctx.state.zeros = max(ctx.state.zeros, dtype.itemsize * dtype.lanes)
        pointers = f"<{dtype.lanes} x ptr>" if scattered else "ptr"
        zeros = "splat (ptr @zeros)" if scattered else "@zeros"
        choice = f"{value_type(gates)} {gate}, {pointers} {address}, {pointers} {zeros}"
        return self.define(ctx, "address", f"select {choice}")

    def _conditional_load(self, ctx: EmitContext, dtype: DType, load: str, gate: str) -> str:
        """Load in a block of its own; 0 where it is not run."""
        before = ctx.state.block
        self._begin_block(ctx, gate)
        value = self._loaded(ctx, dtype, load)
        loaded = ctx.state.block
        self._end_block(ctx)
        cases = f"[ {_zero(dtype)}, %{before} ], [ {value}, %{loaded} ]"
        return self.define(ctx, "load", f"phi {value_type(dtype)} {cases}")

    def _load_register(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str:
        value = self._register(ctx, Element(operands[0], int(operands[1]), uop.src[0]))
        if len(operands) == 2 or operands[2] == "true":
            return value
        return self._select(ctx, uop.src[2].dtype, operands[2], uop.dtype, value, _zero(uop.dtype))

    def _register(self, ctx: EmitContext, element: Element) -> str:
        """Return the value of an element of a register array; 0 where it has none yet."""
        value: str = ctx.state.registers.get(element, lambda: _zero(element.declared.dtype))
        return value

    def _store_register(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str:
        element = Element(operands[0], int(operands[1]), uop.src[0])
        value = operands[2]
        if len(operands) > 3 and operands[3] != "true":
            dtype, before = element.declared.dtype, self._register(ctx, element)
            value = self._select(ctx, uop.src[3].dtype, operands[3], dtype, value, before)
        ctx.state.registers.put(element, value)
        return ""

    def _masked_load(
        self, ctx: EmitContext, dtype: DType, pointer: str, address: str, align: int, gate: str
    ) -> str:
        kind, masks = memory_type(dtype), f"<{dtype.lanes} x i1>"
        name = f"@llvm.masked.load.{_mangled(dtype)}.{_mangled_pointer(pointer)}"
        declare(ctx, f"declare {kind} {name}({pointer}, i32, {masks}, {kind})")
        arguments = f"{pointer} {address}, i32 {align}, {masks} {gate}, {kind} zeroinitializer"
        return self._loaded(ctx, dtype, f"call {kind} {name}({arguments})")

    def _gather(
        self,
        ctx: EmitContext,
        dtype: DType,
        pointer: str,
        addresses: str,
        align: int,
        mask: str = "",
    ) -> str:
        """Load each lane from its address; with a mask, 0 where it is not set."""
        kind, pointers, masks = memory_type(dtype), f"<{dtype.lanes} x {pointer}>", f"<{dtype.lanes} x i1>"
        name = f"@llvm.masked.gather.{_mangled(dtype)}.v{dtype.lanes}{_mangled_pointer(pointer)}"
        declare(ctx, f"declare {kind} {name}({pointers}, i32, {masks}, {kind})")
        chosen, other = (mask, "zeroinitializer") if mask else ("splat (i1 true)", "poison")
        arguments = f"{pointers} {addresses}, i32 {align}, {masks} {chosen}, {kind} {other}"
        return self._loaded(ctx, dtype, f"call {kind} {name}({arguments})")

    def _loaded(self, ctx: EmitContext, dtype: DType, instruction: str) -> str:
        """Append a load; bytes that are bools become bits."""
        value = self.define(ctx, "load", instruction)
        return self._truth(ctx, value, dtype) if dtype.kind == "bool" else value

    @hookimpl
    def render_store(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str:
        buffer, value = uop.src[0], operands[2]
        if buffer in ctx.state.registers.promoted:
            return self._store_register(ctx, uop, operands)
        dtype = uop.src[2].dtype
        kind = memory_type(dtype)
        gate = operands[3] if len(operands) > 3 and operands[3] != "true" else None
        if gate == "false":
            return ""
        if dtype.kind == "bool":
            value = self._convert(ctx, "zext", value, value_type(dtype), kind)
        address = self._address(ctx, buffer, uop.src[1], operands[0], operands[1], gated=gate is not None)
        align, pointer = self._alignment(buffer, uop), self.pointer(buffer)
        scattered = uop.src[1].dtype.lanes > 1
        if gate is not None and not scattered and uop.src[3].dtype.lanes > 1 and self._too_wide(dtype):
            address = self._lane_addresses(ctx, dtype, pointer, address)
            scattered = True
        if scattered:
            pointers, masks = f"<{dtype.lanes} x {pointer}>", f"<{dtype.lanes} x i1>"
            mask = "splat (i1 true)" if gate is None else gate
            if gate is not None and uop.src[3].dtype.lanes == 1:
                mask = self._broadcast(ctx, dtypes.bool_.vector(dtype.lanes), gate)
            name = f"@llvm.masked.scatter.{_mangled(dtype)}.v{dtype.lanes}{_mangled_pointer(pointer)}"
            declare(ctx, f"declare void {name}({kind}, {pointers}, i32, {masks})")
            ctx.line(f"call void {name}({kind} {value}, {pointers} {address}, i32 {align}, {masks} {mask})")
        elif gate is not None and uop.src[3].dtype.lanes > 1:
            masks = value_type(uop.src[3].dtype)
            name = f"@llvm.masked.store.{_mangled(dtype)}.{_mangled_pointer(pointer)}"
            declare(ctx, f"declare void {name}({kind}, {pointer}, i32, {masks})")
            ctx.line(f"call void {name}({kind} {value}, {pointer} {address}, i32 {align}, {masks} {gate})")
        else:
            if gate is not None:
                self._begin_block(ctx, gate)
            past = ""
            if uop.arg == "stream":
                size = dtype.itemsize * dtype.lanes
                align, past = min(size & -size, _ALIGNMENT), ", !nontemporal !0"
            ctx.line(f"store {kind} {value}, {pointer} {address}, align {align}{past}")
            if gate is not None:
                self._end_block(ctx)
        return ""

    def _address(
        self, ctx: EmitContext, buffer: UOp, index: UOp, pointer: str, at: str, *, gated: bool
    ) -> str:
        """Return a pointer, or a vector of them.  A gated access may compute one that is out of bounds."""
        if at == "0":
            return pointer
        inbounds = "" if gated else " inbounds"
        base = f"{self.pointer(buffer)} {pointer}"
        text = f"getelementptr{inbounds} {memory_type(buffer.dtype)}, {base}, {value_type(index.dtype)} {at}"
        address: str = ctx.once(text, lambda: self.define(ctx, "address", text))
        return address

    def _lane_addresses(self, ctx: EmitContext, dtype: DType, pointer: str, address: str) -> str:
        """Return the addresses of the lanes of a contiguous access."""
        offsets = ", ".join(f"i64 {lane}" for lane in range(dtype.lanes))
        lanes = f"{pointer} {address}, <{dtype.lanes} x i64> <{offsets}>"
        return self.define(ctx, "address", f"getelementptr {memory_type(dtype.scalar)}, {lanes}")

    def _has_masks(self, dtype: DType) -> bool:
        """Whether the target loads contiguous lanes under a mask: AVX2 does from 32 bits, AVX-512 always."""
        return self.capabilities.vector_bits >= (256 if dtype.bits >= 32 else 512) and not self._too_wide(
            dtype
        )

    def _too_wide(self, dtype: DType) -> bool:
        """Whether a vector takes more than one register.

        LLVM 22 splits a masked access of such a vector, and drops the mask of a part whose lanes are all off.
        """
        return dtype.lanes * dtype.bits > max(self.capabilities.vector_bits, 128)

    def _alignment(self, buffer: UOp, uop: UOp) -> int:
        """Return the alignment in bytes of an access: parameters may point anywhere, arrays are ours."""
        return buffer.dtype.itemsize if buffer.op is not ops.LOCAL else proved_alignment(buffer, uop)

    def _truth(self, ctx: EmitContext, x: str, dtype: DType) -> str:
        """Return the bool values of bytes."""
        zero = _zero(dtypes.uint8.vector(dtype.lanes))
        return self.define(ctx, "true", f"icmp ne {memory_type(dtype)} {x}, {zero}")

    # control

    @hookimpl
    def begin_loop(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str:
        """Open a loop that tests at its end; one that may be empty is guarded."""
        name, size, axis = uop.arg
        state, kind = ctx.state, value_type(uop.dtype)
        label = unique(ctx, name)
        index = f"%{label}"
        if axis == "thread":
            start, end = (self._convert(ctx, "trunc", x, "i64", kind) for x in ("%chunk.begin", "%chunk.end"))
        else:
            start, end = "0", operands[0] if size is None else str(size)
        body, latch, leave = f"{label}.body", f"{label}.latch", f"{label}.exit"
        count = _integer(end)
        before = state.block
        guard = None if count is not None and count > 0 else before
        if guard is None:
            ctx.line(f"br label %{body}")
        else:
            some = self.define(ctx, "cmp", f"icmp slt {kind} {start}, {end}")
            ctx.line(f"br i1 {some}, label %{body}, label %{leave}")
        self._label(ctx, body)
        ctx.depth += 1
        ctx.line(f"{index} = phi {kind} [ {start}, %{before} ], [ {index}.next, %{latch} ]")
        carried = tuple([self._carry(ctx, e, before) for e in state.registers.changed(ctx.position)])
        loop = _Loop(index, kind, end, body, latch, leave, guard, carried)
        highest = size if size is not None else (_bounds(ctx, operands[0]) or (0, 0))[1]
        if highest > 0:
            state.bounds[index] = (0, highest - 1)
        state.loops.append(loop)
        return index

    def _carry(self, ctx: EmitContext, element: Element, before: str) -> _Carried:
        """Begin the phi of a register at the head of a loop; the end of the loop finishes it."""
        value = self._register(ctx, element)
        phi = f"phi {value_type(element.declared.dtype)} [ {value}, %{before} ]"
        ctx.state.registers.put(element, self.define(ctx, element.array, phi))
        return _Carried(element, value, len(ctx.lines) - 1)

    def _merge(self, ctx: EmitContext, carried: Sequence[_Carried], before: str, changed: str) -> None:
        """Join the values that registers had in the block `before` with those that they have in `changed`."""
        for each in carried:
            now = self._register(ctx, each.element)
            if now != each.before:
                kind = value_type(each.element.declared.dtype)
                phi = f"phi {kind} [ {each.before}, %{before} ], [ {now}, %{changed} ]"
                ctx.state.registers.put(each.element, self.define(ctx, each.element.array, phi))

    @hookimpl
    def end_loop(self, ctx: EmitContext, uop: UOp) -> str:
        loop: _Loop = ctx.state.loops.pop()
        for each in loop.carried:
            ctx.lines[each.line] += f", [ {self._register(ctx, each.element)}, %{loop.latch} ]"
        ctx.line(f"br label %{loop.latch}")
        self._label(ctx, loop.latch)
        ctx.line(f"{loop.index}.next = add nuw nsw {loop.type} {loop.index}, 1")
        more = self.define(ctx, "cmp", f"icmp slt {loop.type} {loop.index}.next, {loop.end}")
        ctx.line(f"br i1 {more}, label %{loop.body}, label %{loop.exit}")
        ctx.depth -= 1
        self._label(ctx, loop.exit)
        if loop.guard is not None:
            self._merge(ctx, loop.carried, loop.guard, loop.latch)
        return ""

    @hookimpl
    def begin_if(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str:
        changed = ctx.state.registers.changed(ctx.position)
        self._begin_block(ctx, operands[0], [_Carried(e, self._register(ctx, e)) for e in changed])
        return ""

    @hookimpl
    def end_if(self, ctx: EmitContext, uop: UOp) -> str:
        self._end_block(ctx)
        return ""

    def _begin_block(self, ctx: EmitContext, condition: str, carried: Sequence[_Carried] = ()) -> None:
        then, after = ctx.fresh("then."), ctx.fresh("after.")
        ctx.state.conditions.append(_Condition(ctx.state.block, after, tuple(carried)))
        ctx.line(f"br i1 {condition}, label %{then}, label %{after}")
        self._label(ctx, then)
        ctx.depth += 1

    def _end_block(self, ctx: EmitContext) -> None:
        condition: _Condition = ctx.state.conditions.pop()
        changed = ctx.state.block
        ctx.line(f"br label %{condition.after}")
        ctx.depth -= 1
        self._label(ctx, condition.after)
        self._merge(ctx, condition.carried, condition.before, changed)

    def _label(self, ctx: EmitContext, label: str) -> None:
        ctx.line(f"{label}:")
        ctx.state.block = label

    # the whole kernel

    @hookimpl
    def render_kernel(self, ctx: EmitContext, body: Sequence[str]) -> str:
        state: _State = ctx.state
        name = ctx.program.name
        loads, passed, taken = [], [], []
        positions = {"buffer": 0, "variable": 0}
        for argument in ctx.program.arguments:
            at = positions[argument.kind]
            positions[argument.kind] += 1
            kind = state.parameters.get(argument.name)
            if kind is None:
                continue  # an argument that the program does not use
            array, held = ("%buffers", "ptr") if argument.kind == "buffer" else ("%variables", "i64")
            loads.append(f"  %{argument.name}.at = getelementptr {held}, ptr {array}, i64 {at}")
            loads.append(f"  %{argument.name} = load {held}, ptr %{argument.name}.at")
            value, plain = f"%{argument.name}", kind.split()[0]
            if plain != held:
                value = f"%{argument.name}.cut"
                loads.append(f"  {value} = trunc {held} %{argument.name} to {plain}")
            passed.append(f"{plain} {value}")
            taken.append(f"{kind} %{argument.name}")
        width = self.capabilities.vector_bits
        prelude = list(ctx.preamble.values())
        if state.zeros:
            zeros = f"[{state.zeros} x i8] zeroinitializer"
            prelude.append(f"@zeros = private unnamed_addr constant {zeros}, align {_ALIGNMENT}")
        taken += ["i64 %chunk.begin", "i64 %chunk.end"]
        streams = any(u.op is ops.STORE and u.arg == "stream" for u in ctx.program.uops)
        return "\n".join([
            f"; {name} for {self.target}",
            *prelude,
            "",
            f"define void @{name}(ptr %buffers, ptr %variables, i64 %begin, i64 %end) #0 {{",
            *loads,
            f"  call void @{name}.body({', '.join([*passed, 'i64 %begin', 'i64 %end'])})",
            "  ret void",
            "}",
            "",
            f"define internal void @{name}.body({', '.join(taken)}) #0 {{",
            "entry:",
            *(f"  {line}" for line in state.allocas),
            *body,
            # What went past the caches has to be seen by whoever is told that this piece is done.
            *(["  fence seq_cst"] if streams else []),
            "  ret void",
            "}",
            "",
            *(["!0 = !{i32 1}"] if streams else []),
            # Without "no-builtins", loops that copy or clear would become calls of memcpy and memset.
            f'attributes #0 = {{ noinline nounwind "no-builtins" "prefer-vector-width"="{width}"'
            f' "min-legal-vector-width"="{width}" }}',
            "",
        ])  # fmt: skip


# -- small helpers -------------------------------------------------------------------------------------------


def _is_narrow(dtype: DType) -> bool:
    """Whether `dtype` is a float that is carried as an integer."""
    return dtype.kind == "float" and dtype.bits < 32


def unique(ctx: EmitContext, name: str) -> str:
    """Return `name`, numbered if it was used before: bodies are replayed, and passes share names of loops."""
    if name in ctx.state.names:
        return ctx.fresh(name + ".")
    ctx.state.names.add(name)
    return name


def declare(ctx: EmitContext, text: str) -> None:
    """Put a line before the kernel, once."""
    ctx.preamble.setdefault(text, text)


def _mangled_pointer(pointer: str) -> str:
    """Return how intrinsics spell a type of pointers: "p0"."""
    return f"p{pointer.partition('(')[2].rstrip(')') or 0}"


def proved_alignment(buffer: UOp, uop: UOp) -> int:
    """Return the alignment in bytes of an access to memory that is itself aligned."""
    dtype = buffer.dtype
    size = dtype.itemsize * dtype.lanes
    known = size & -size
    return min(known if dtype.lanes > 1 else known * (uop.arg or 1), _ALIGNMENT)


def _bounds(ctx: EmitContext, x: str) -> Bounds | None:
    """Return the bounds of a scalar integer, if any are known; those of a literal are the literal, twice."""
    bounds: dict[str, Bounds] = ctx.state.bounds
    found = bounds.get(x)
    if found is None and x[0] != "%":
        value = _integer(x)
        if value is not None:
            found = bounds[x] = (value, value)
    return found


def _fold_integers(
    op: Op, dtype: DType, operands: Sequence[str], known: Sequence[Bounds | None]
) -> str | None:
    """Return the result as text where it is a constant or one of the operands."""
    compute = _INTEGER.get(op)
    if compute is None:
        return None
    values = [None if x is None or x[0] != x[1] else x[0] for x in known]
    if None not in values:
        result = compute(*values)
        if dtype.kind != "bool":
            return str(wrap(result, dtype))
        return literal(result != 0 if op is ops.ADD else bool(result & 1), dtype)
    if len(operands) == 2:
        (x, y), (left, right) = operands, values
        if left is not None and op in ops.COMMUTATIVE:
            x, y, left, right = y, x, right, left
        if right is None:
            return None
        neutral = (_BOOL_NEUTRAL if dtype.kind == "bool" else _NEUTRAL).get(op)
        if op not in ops.COMPARISONS and right == neutral:
            return x
        if right == 0 and (op is ops.MUL or op is ops.AND):
            return y
    return None
