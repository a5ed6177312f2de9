"""`CudaRenderer`: CUDA C as a person would write it, without any header.

Nothing is contracted but MULACC, nothing is flushed, divisions and roots are exact: the compiler's flags see
to it.  float16, bfloat16 and float8 are integers here, converted by the instructions for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from retarget.codegen.cfamily import CFamilyRenderer, Code, Form, Level, State, bare, call, level_of, wrap
from retarget.codegen.driver import EmitContext
from retarget.codegen.hooks import hookimpl
from retarget.errors import CompileError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType
from retarget.ir.ops import Op
from retarget.ir.uop import UOp
from retarget.linearize.local import Placement, placement

from . import vectors
from .gpu import STATIC_SHARED, architecture
from .vectors import Lanes

_FUNCTIONS = {
    ops.EXP: "exp", ops.EXP2: "exp2", ops.EXPM1: "expm1", ops.LOG: "log", ops.LOG2: "log2",
    ops.LOG10: "log10", ops.LOG1P: "log1p", ops.SIN: "sin", ops.COS: "cos", ops.TAN: "tan", ops.ASIN: "asin",
    ops.ACOS: "acos", ops.ATAN: "atan", ops.SINH: "sinh", ops.COSH: "cosh", ops.TANH: "tanh",
    ops.ASINH: "asinh", ops.ACOSH: "acosh", ops.ATANH: "atanh", ops.ERF: "erf",
}  # fmt: skip
_FOLDS: Mapping[Op, Op] = {ops.ADD: ops.OR, ops.MAXIMUM: ops.OR, ops.MUL: ops.AND, ops.MINIMUM: ops.AND}
_EXTREMA = {ops.MAXIMUM: "max", ops.MINIMUM: "min"}
#: Reinterpretations that have a name, by the names of the dtypes.
_BITCASTS = {
    ("float32", "int32"): "__float_as_int({})", ("float32", "uint32"): "__float_as_uint({})",
    ("int32", "float32"): "__int_as_float({})", ("uint32", "float32"): "__uint_as_float({})",
    ("float64", "int64"): "__double_as_longlong({})", ("int64", "float64"): "__longlong_as_double({})",
    ("float64", "uint64"): "(unsigned long long)__double_as_longlong({})",
    ("uint64", "float64"): "__longlong_as_double((long long){})",
}  # fmt: skip
#: Infinities and NaN, which C has no literals for.
_NON_FINITE = {
    "float32": {
        "inf": "__int_as_float(0x7f800000)", "-inf": "__int_as_float(0xff800000)",
        "nan": "__int_as_float(0x7fc00000)",
    },
    "float64": {
        "inf": "__longlong_as_double(0x7ff0000000000000)", "-inf": "__longlong_as_double(0xfff0000000000000)",
        "nan": "__longlong_as_double(0x7ff8000000000000)",
    },
}  # fmt: skip
#: Names of constants, of members of a vector, and literals: what may be written several times.
_SIMPLE = re.compile(r"-?(\w+(\.\w+)*|\d[\w.+-]*|__(int|longlong)_as_(float|double)\(0x\w+\))")
_AXES = ("x", "y", "z")


@dataclass(slots=True)
class CudaState(State):
    """What the renderer remembers.

    Attributes
    ----------
    shared
        Where the arrays of shared memory lie, if it is asked for at launch.
    constants
        Constants by name, with the type of a vector: what does not change when memory does.
    """

    shared: Placement | None = None
    constants: dict[str, str] = field(default_factory=dict)


class CudaRenderer(CFamilyRenderer):
    LANGUAGE = "CUDA C"
    language = "cuda"
    ALU: Mapping[Op, Form] = {
        **CFamilyRenderer.ALU,
        **{op: call(f"{name}{{f}}") for op, name in _FUNCTIONS.items()},
        ops.POW: call("pow{f}", 2),
        ops.ATAN2: call("atan2{f}", 2),
    }
    STORAGE: Mapping[str, str] = {
        **CFamilyRenderer.STORAGE,
        "local": "__shared__ __align__(16) {type} {name}[{size}];",
    }
    SPECIALS: Mapping[str, str] = {
        **{f"grid{n}": f"blockIdx.{c}" for n, c in enumerate(_AXES)},
        **{f"block{n}": f"threadIdx.{c}" for n, c in enumerate(_AXES)},
        "warp0": "threadIdx.x",
    }
    RESTRICT = "__restrict__ "
    BARRIER = "__syncthreads();"
    SHUFFLE = "__shfl_xor_sync(0xffffffffu, {0}, {mask})"
    HELPER = vectors.INLINE
    RESERVED = re.compile(
        r"__\w+|threadIdx|blockIdx|blockDim|gridDim|warpSize|dim3|shared|\w+_array\d+|pack\d|make_\w+|bits_\w+"
        r"|(u?(char|short|int|long|longlong)|float|double)\d|(f32|f16|bf16|f16x2|bf16x2|e4m3|e5m2)_from_\w+"
        r"|(max|min)(_nan(_double)?)?|copy\d+|low|high|\w+_argument"
        rf"|({'|'.join(_FUNCTIONS.values())}|pow|atan2|fma|sqrt|floor|ceil|trunc|rint|fabs)f?"
    )
    signed_wraps = False

    def new_state(self, ctx: EmitContext) -> CudaState:
        indices = super().new_state(ctx).indices
        shared = placement(ctx.program.uops)
        return CudaState(indices=indices, shared=shared if shared.total > STATIC_SHARED else None)

    @property
    def number(self) -> int:
        """The number of the architecture, e.g. 90."""
        return architecture(self.target).number

    # -- signature and declarations ------------------------------------------------------------------------

    def signature(self, ctx: EmitContext) -> str:
        block = ctx.program.launch.block
        parameters = ", ".join(self.parameter(ctx, n) for n in range(len(ctx.program.arguments)))
        bounds = ""
        if all(isinstance(n, int) for n in block):
            bounds = f"__launch_bounds__({math.prod(n for n in block if isinstance(n, int))}) "
        return f'extern "C" __global__ void {bounds}{ctx.program.name}({parameters})'

    def parameter(self, ctx: EmitContext, position: int) -> str:
        argument = ctx.program.arguments[position]
        if argument.kind == "variable":
            return f"long long {argument.name}_argument"
        return super().parameter(ctx, position)

    @hookimpl
    def define_var(self, ctx: EmitContext, uop: UOp) -> Code:
        name = super().define_var(ctx, uop)
        value, kind = Code(f"{uop.arg[0]}_argument"), self.type_name(ctx, uop.dtype)
        if uop.dtype is not dtypes.int64:
            value = self.convert(ctx, uop.dtype, value)
        ctx.line(f"const {kind} {name} = {value};")
        return name

    def define_local(self, ctx: EmitContext, uop: UOp) -> Code:
        shared = ctx.state.shared
        if uop.arg[2] != "local" or shared is None:
            return super().define_local(ctx, uop)
        kind, name = self.memory_type(ctx, uop.dtype), self.declare(ctx, uop.arg[0])
        ctx.preamble.setdefault("shared", "extern __shared__ __align__(1024) unsigned char shared[];")
        ctx.line(f"{kind}* const {name} = ({kind}*)(shared + {shared.offsets[uop]});")
        return Code(name)

    # -- scalars -------------------------------------------------------------------------------------------

    def float_literal(self, dtype: DType, value: float) -> Code:
        if math.isfinite(value):
            return super().float_literal(dtype, value)
        return Code(_NON_FINITE[dtype.name]["nan" if value != value else str(value)])

    @hookimpl
    def render_alu(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        if uop.dtype.lanes == 1 and uop.op in _EXTREMA and uop.dtype.kind != "bool":
            return self.extremum(ctx, uop, operands)
        return super().render_alu(ctx, uop, operands)

    def extremum(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        """Return the larger or the smaller of two scalars; NaN if either is NaN."""
        name = _EXTREMA[uop.op]
        if uop.dtype.is_int:
            return Code(f"{name}({', '.join(operands)})")
        kind, compare = self.type_name(ctx, uop.dtype), ">" if name == "max" else "<"
        body = [f"return x {compare} y || x != x ? x : y;"]
        if uop.dtype.name in self.capabilities.functions[uop.op.name]:
            body = ["float z;", f'asm("{name}.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));', "return z;"]
        function = f"{name}_nan" if kind == "float" else f"{name}_nan_{kind}"
        self.helper(ctx, function, f"{kind} {function}({kind} x, {kind} y)", body)
        return Code(f"{function}({', '.join(map(bare, operands))})")

    def bitcast(self, ctx: EmitContext, source: DType, target: DType, value: str) -> Code:
        pattern = _BITCASTS.get((source.name, target.name))
        if pattern is None:
            return super().bitcast(ctx, source, target, value)
        inner = wrap(value, Level.UNARY) if ")" in pattern.partition("{")[0] else value
        return Code(pattern.format(inner), Level.UNARY if pattern.startswith("(") else Level.POSTFIX)

    def carried_cast(self, ctx: EmitContext, source: DType, target: DType, value: str) -> Code | None:
        if not {source.name, target.name} - {"float32"} <= self.capabilities.conversions:
            return None
        found = _CONVERSIONS.get((source.name, target.name))
        if found is None:
            return None
        name, signature, body = found
        self.helper(ctx, name, signature.format(name=name), body)
        return Code(f"{name}({bare(value)})")

    # -- vectors -------------------------------------------------------------------------------------------

    def layout(self, ctx: EmitContext, dtype: DType) -> vectors.Layout:
        """Return how a vector is kept."""
        element = self.TYPES[self.carrier(dtype).name]
        return vectors.layout(ctx, dtype, element, dtype.name in self.CARRIERS)

    def vector_type(self, ctx: EmitContext, dtype: DType, scalar: str, mask: int) -> str:
        return self.layout(ctx, dtype).type

    def vector_build(self, ctx: EmitContext, dtype: DType, lanes: Sequence[str]) -> Lanes:
        text = self.together(ctx, self.layout(ctx, dtype), lanes)
        codes = [lane if isinstance(lane, Code) else Code(lane, level_of(lane)) for lane in lanes]
        return Lanes(text, codes, fixed=all(self.constant(ctx, lane) for lane in codes))

    def together(self, ctx: EmitContext, shape: vectors.Layout, lanes: Sequence[str]) -> str:
        """Return a vector with these lanes: a constant itself, if they are all of it, in order."""
        name, _, _ = lanes[0].partition(".")
        members = [f"{name}{member}" for member in shape.members]
        if shape.per == 1 and ctx.state.constants.get(name) == shape.type and list(lanes) == members:
            return name
        return vectors.put_together(ctx, shape, lanes)

    def constant(self, ctx: EmitContext, text: str) -> bool:
        """Whether an expression is a literal or the name of a constant or of a member of one."""
        if not _SIMPLE.fullmatch(text):
            return False
        name = text.lstrip("-").partition(".")[0]
        return not name[0].isalpha() or name in self.BOOLEANS or name in ctx.state.constants

    def vector_lane(self, ctx: EmitContext, dtype: DType, vector: str, lane: int) -> Code:
        assert isinstance(vector, Lanes)
        return vector.lanes[lane]

    def words(self, ctx: EmitContext, dtype: DType, value: str) -> Sequence[str]:
        """Return a packed vector as the 32-bit words that hold it."""
        assert isinstance(value, Lanes)
        if value.words:
            return value.words
        count = 32 // dtype.bits
        function, lanes = vectors.pack(ctx, count), [bare(lane) for lane in value.lanes]
        return [f"{function}({', '.join(lanes[n : n + count])})" for n in range(0, len(lanes), count)]

    def bind(self, ctx: EmitContext, uop: UOp, value: str) -> Code:
        if not isinstance(value, Lanes):
            bound = super().bind(ctx, uop, value)
            ctx.state.constants[bound] = ""
            return bound
        if value.fixed:
            return value
        dtype = uop.dtype
        if len(set(value.lanes)) == 1:
            return self.vector_build(
                ctx, dtype, [self.constant_of(ctx, dtype.scalar, value.lanes[0])] * dtype.lanes
            )
        if dtype.kind == "bool":
            return self.vector_build(ctx, dtype, [self.kept(ctx, dtype.scalar, lane) for lane in value.lanes])
        step = min(dtype.lanes, 128 // dtype.bits)
        lanes: list[Code] = []
        words: list[str] = []
        text: str = value
        for n in range(0, dtype.lanes, step):
            part = dtype.scalar.vector(min(step, dtype.lanes - n))
            if part.lanes == 1:
                lanes.append(self.kept(ctx, part, value.lanes[n]))
                continue
            shape = self.layout(ctx, part)
            text = value if step == dtype.lanes else self.together(ctx, shape, value.lanes[n : n + step])
            named = self.declared(ctx, part, shape.type, text)
            text = named
            lanes += named.lanes
            words += named.words
        if step < dtype.lanes:
            text = self.together(ctx, self.layout(ctx, dtype), lanes)
        return Lanes(text, lanes, words=words, fixed=True)

    def declared(self, ctx: EmitContext, dtype: DType, type_name: str, text: str) -> Lanes:
        """Declare a constant vector and return it."""
        name = self.declare(ctx, ctx.fresh("x" if dtype.kind == "float" else "n"))
        ctx.state.constants[name] = type_name
        ctx.line(f"const {type_name} {name} = {text};")
        return vectors.take_apart(ctx, self.layout(ctx, dtype), name, dtype, fixed=True)

    def name(self, ctx: EmitContext, dtype: DType, value: Code) -> Code:
        """Return a scalar that may be written more than once: a constant is declared for an expression."""
        return value if _SIMPLE.fullmatch(value) else self.constant_of(ctx, dtype, value)

    def kept(self, ctx: EmitContext, dtype: DType, value: Code) -> Code:
        """Return a scalar that stays what it is: a constant is declared for what is none."""
        return value if self.constant(ctx, value) else self.constant_of(ctx, dtype, value)

    def constant_of(self, ctx: EmitContext, dtype: DType, value: Code) -> Code:
        """Declare a constant scalar and return it."""
        name = self.declare(ctx, ctx.fresh({"bool": "m", "float": "x"}.get(dtype.kind, "n")))
        ctx.state.constants[name] = ""
        ctx.line(f"const {self.type_name(ctx, dtype)} {name} = {bare(value)};")
        return Code(name)

    def lanes(self, ctx: EmitContext, uop: UOp, value: str, count: int) -> Sequence[Code]:
        """Return the lanes of an operand; of a scalar, itself for each."""
        if isinstance(value, Lanes):
            return value.lanes
        scalar = value if isinstance(value, Code) else Code(value, level_of(value))
        return [self.name(ctx, uop.dtype, scalar)] * count

    def lane_by_lane(
        self,
        ctx: EmitContext,
        uop: UOp,
        operands: Sequence[str],
        write: Callable[[UOp, Sequence[Code]], Code | None],
    ) -> Lanes | None:
        """Return the vector that an op on scalars makes of each lane."""
        count = uop.dtype.lanes
        scalar = UOp(uop.op, uop.dtype.scalar, tuple([_first_lane(s) for s in uop.src]), uop.arg)
        columns = [self.lanes(ctx, s, value, count) for s, value in zip(uop.src, operands, strict=True)]
        made = []
        for row in zip(*columns, strict=True):
            lane = write(scalar, row)
            if lane is None:
                return None
            made.append(lane)
        return self.vector_build(ctx, uop.dtype, made)

    def vector_alu(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        return self.lane_by_lane(ctx, uop, operands, lambda u, row: self.render_alu(ctx, u, row))

    def vector_cast(self, ctx: EmitContext, uop: UOp, value: str) -> Code | None:
        made = self.lane_by_lane(ctx, uop, [value], lambda u, row: self.render_cast(ctx, u, row))
        pair = _PAIRS.get((uop.src[0].dtype.name, uop.dtype.name))
        if made is None or pair is None or self.number < 80 or uop.dtype.lanes % 2:
            return made
        # One instruction converts two numbers and packs them.
        name, instruction = pair
        self.helper(
            ctx, name, f"unsigned int {name}(float x, float y)",
            ["unsigned int z;", f'asm("{instruction} %0, %1, %2;" : "=r"(z) : "f"(y), "f"(x));', "return z;"],
        )  # fmt: skip
        assert isinstance(value, Lanes)
        texts = [bare(lane) for lane in value.lanes]
        words = [f"{name}({', '.join(texts[n : n + 2])})" for n in range(0, len(texts), 2)]
        return Lanes(self.layout(ctx, uop.dtype).of_words(words), made.lanes, words=words)

    @hookimpl
    def render_cast(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        if uop.dtype.lanes > 1:
            return self.vector_cast(ctx, uop, operands[0])
        return super().render_cast(ctx, uop, operands)

    @hookimpl
    def render_vector(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        if uop.op is ops.BROADCAST:
            return self.vector_build(
                ctx, uop.dtype, self.lanes(ctx, uop.src[0], operands[0], uop.dtype.lanes)
            )
        return super().render_vector(ctx, uop, operands)

    def fold(self, ctx: EmitContext, uop: UOp, value: str) -> Code | None:
        assert isinstance(value, Lanes)
        op = _FOLDS.get(uop.arg, uop.arg) if uop.dtype.kind == "bool" else uop.arg
        scalar = UOp(op, uop.dtype, (_first_lane(uop.src[0]),) * 2)
        lanes: Sequence[Code | None] = [self.name(ctx, uop.dtype, lane) for lane in value.lanes]
        while len(lanes) > 1:
            half = len(lanes) // 2
            pairs = zip(lanes[:half], lanes[half : 2 * half], strict=True)
            odd = lanes[2 * half :]
            lanes = [
                None if x is None or y is None else self.render_alu(ctx, scalar, (x, y)) for x, y in pairs
            ]
            lanes = [*lanes, *odd]
        return lanes[0]

    @hookimpl
    def render_shuffle(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        if uop.dtype.lanes == 1:
            return super().render_shuffle(ctx, uop, operands)
        return self.lane_by_lane(
            ctx, uop, operands, lambda u, row: Code(self.SHUFFLE.format(row[0], mask=u.arg))
        )

    # -- memory --------------------------------------------------------------------------------------------

    def pieces(self, dtype: DType, alignment: int) -> Iterator[tuple[int, DType]]:
        """Yield (first lane, type) of the accesses, of at most 16 bytes, that a vector in memory takes."""
        most = min(alignment, 128 // (8 if dtype.kind == "bool" else dtype.bits))
        step = 1
        while step * 2 <= most and dtype.lanes % (step * 2) == 0:
            step *= 2
        for first in range(0, dtype.lanes, step):
            yield first, dtype.scalar.vector(step)

    @hookimpl
    def render_load(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        if uop.op is ops.IMAGE_LOAD:
            return self.image_load(ctx, uop, operands)
        if uop.dtype.lanes == 1:
            return super().render_load(ctx, uop, operands)
        buffer, index, *gates = operands
        dtype, array = uop.dtype, uop.src[0]
        if dtype.lanes == array.dtype.lanes and uop.src[1].dtype.lanes == 1:
            return self.whole(ctx, uop, operands)
        if uop.src[1].dtype.lanes > 1 or isinstance(gates[0] if gates else None, Lanes):
            return self.scattered_load(ctx, uop, operands)
        start = (
            self.name(ctx, uop.src[1].dtype, Code(bare(index), level_of(bare(index))))
            if _long(index)
            else index
        )
        lanes: list[Code] = []
        words: list[str] = []
        text = ""
        parts = list(self.pieces(dtype, uop.arg or 1))
        gate = gates[0] if gates else None
        if gate is not None and len(parts) > 1:
            gate = self.lanes(ctx, uop.src[2], gate, 1)[0]
        for first, part in parts:
            place = self.place(ctx, array, buffer, _plus(start, first))
            if part.lanes == 1:
                lane: Code = place
                if gate is not None:
                    lane = self.choose(ctx, part, bare(gate), place, self.zero(ctx, part, 0))
                lanes.append(lane)
                continue
            access = Code(f"*(const {self.layout(ctx, part).type}*)&{place}", Level.UNARY)
            named = self.loaded(ctx, part, access, gate)
            text = named
            lanes += named.lanes
            words += named.words
        if len(parts) > 1:
            text = self.together(ctx, self.layout(ctx, dtype), lanes)
        return Lanes(text, lanes, words=words, fixed=parts[0][1].lanes > 1)

    def loaded(self, ctx: EmitContext, dtype: DType, access: Code, gate: str | None) -> Lanes:
        """Declare a vector that an expression reads from memory where the gate holds; 0 elsewhere."""
        shape = self.layout(ctx, dtype)
        if gate is not None:
            zeros = Code(shape.of_words(["0.0f" if shape.word == "float" else "0"] * shape.size))
            access = self.choose(ctx, dtype, bare(gate), access, zeros)
        return self.declared(ctx, dtype, shape.type, access)

    def whole(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Lanes:
        """Return an element of an array of vectors."""
        buffer, index, *gates = operands
        place = self.place(ctx, uop.src[0], buffer, index)
        value = vectors.take_apart(ctx, self.layout(ctx, uop.dtype), place, uop.dtype, fixed=False)
        if not gates:
            return value
        zero = self.zero(ctx, uop.dtype.scalar, 0)
        rows = zip(self.lanes(ctx, uop.src[2], gates[0], uop.dtype.lanes), value.lanes, strict=True)
        return self.vector_build(
            ctx, uop.dtype, [self.choose(ctx, uop.dtype.scalar, bare(g), lane, zero) for g, lane in rows]
        )

    def places(
        self, ctx: EmitContext, uop: UOp, operands: Sequence[str], count: int
    ) -> Iterator[tuple[Code, Code | None]]:
        """Yield the element and the gate of each lane of a gather or a scatter."""
        buffer, index, *rest = operands
        gates = rest[1:] if uop.op is ops.STORE else rest
        at = uop.src[1]
        gate: Sequence[Code | None] = [None] * count
        if gates:
            gate = self.lanes(ctx, uop.src[-1], gates[0], count)
        if at.dtype.lanes > 1:
            indices = self.lanes(ctx, at, index, count)
        else:
            start = self.name(
                ctx, at.dtype, index if isinstance(index, Code) else Code(index, level_of(index))
            )
            indices = [_plus(start, lane) for lane in range(count)]
        for i, g in zip(indices, gate, strict=True):
            yield self.place(ctx, uop.src[0], buffer, i), g

    def scattered_load(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Lanes:
        """Return a gather, or a load with a gate for each lane."""
        scalar = uop.dtype.scalar
        zero = self.zero(ctx, scalar, 0)
        return self.vector_build(ctx, uop.dtype, [
            place if gate is None else self.choose(ctx, scalar, bare(gate), place, zero)
            for place, gate in self.places(ctx, uop, operands, uop.dtype.lanes)
        ])  # fmt: skip

    def contiguous_store(
        self, ctx: EmitContext, uop: UOp, buffer: str, index: str, value: str
    ) -> Iterator[str]:
        assert isinstance(value, Lanes)
        array, dtype, stream = uop.src[0], uop.src[2].dtype, uop.arg == "stream"
        parts = list(self.pieces(dtype, dtype.lanes if stream else uop.arg or 1))
        if len(parts) > 1 and not value.fixed:
            value = self.bind(ctx, uop.src[2], value)
            assert isinstance(value, Lanes)
        start = (
            self.name(ctx, uop.src[1].dtype, Code(bare(index), level_of(bare(index))))
            if _long(index)
            else index
        )
        for first, part in parts:
            place = self.place(ctx, array, buffer, _plus(start, first))
            if part.lanes == 1:
                yield f"{place} = {bare(value.lanes[first])};"
                continue
            shape = self.layout(ctx, part)
            text: str = value
            if len(parts) > 1:
                text = self.together(ctx, shape, value.lanes[first : first + part.lanes])
                if shape.per > 1 and value.words:
                    begin = first // shape.per
                    text = shape.of_words(value.words[begin : begin + shape.size])
            if stream:
                yield f"__stcs(({shape.type}*)&{place}, {text});"
            else:
                yield f"*({shape.type}*)&{place} = {text};"

    def lanewise_store(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Iterator[str]:
        value, dtype = operands[2], uop.src[2].dtype
        assert isinstance(value, Lanes)
        for n, (place, gate) in enumerate(self.places(ctx, uop, operands, dtype.lanes)):
            condition = "" if gate is None else f"if ({bare(gate)}) "
            yield f"{condition}{place} = {bare(value.lanes[n])};"

    # -- images: rows of texels in memory, read through the cache that textures have -------------------------

    def texel(self, ctx: EmitContext, image: UOp, operands: Sequence[str]) -> Code:
        """Return a texel of an image, to be read or assigned."""
        name, x, y = operands[:3]
        _, (height, width), writable = image.arg
        wide = "(long long)" if height * width > (1 << 31) - 1 else ""
        kind = f"{'' if writable else 'const '}{self.layout(ctx, image.dtype.vector(4)).type}"
        row = wrap(bare(y), Level.UNARY if wide else Level.MULTIPLICATIVE)
        return Code(f"(({kind}*){name})[{wide}{row}*{width} + {wrap(bare(x), Level.ADDITIVE)}]")

    def image_load(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        """Return a texel as float32 lanes."""
        image = uop.src[0]
        gate = operands[3] if len(operands) > 3 else None
        value = self.loaded(ctx, image.dtype.vector(4), self.texel(ctx, image, operands), gate)
        if image.dtype is dtypes.float32:
            return value
        held = UOp(ops.CAST, image.dtype.vector(4), (uop,))  # stands for what is in memory
        return self.vector_cast(ctx, UOp(ops.CAST, uop.dtype, (held,)), value)

    @hookimpl
    def render_store(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> bool:
        if uop.op is not ops.IMAGE_STORE:
            return super().render_store(ctx, uop, operands)
        image, value = uop.src[0], operands[3]
        assert isinstance(value, Lanes)
        text: str | None = value
        if image.dtype is not dtypes.float32:
            text = self.vector_cast(ctx, UOp(ops.CAST, image.dtype.vector(4), (uop.src[3],)), value)
        condition = f"if ({bare(operands[4])}) " if len(operands) > 4 else ""
        ctx.line(f"{condition}{self.texel(ctx, image, operands)} = {text};")
        return True

    # -- copies to shared memory in the background -----------------------------------------------------------

    @hookimpl
    def stage_copy(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> bool:
        to, place, buffer, origin = operands
        array, source = uop.src[0], uop.src[2]
        size = uop.arg * array.dtype.itemsize
        if size not in (4, 8, 16):
            raise CompileError(
                f"cp.async copies 4, 8 or 16 bytes, not {size} ({ctx.program.name}, {ctx.target})"
            )
        cached = "cg" if size == 16 else "ca"  # 16 bytes need not go through L1
        self.helper(
            ctx, f"copy{size}", f"void copy{size}(void* to, const void* from)",
            [
                "const unsigned int shared_to = (unsigned int)__cvta_generic_to_shared(to);",
                f'asm volatile("cp.async.{cached}.shared.global [%0], [%1], {size};" '
                ':: "r"(shared_to), "l"(from) : "memory");',
            ],
        )  # fmt: skip
        target = self.place(ctx, array, to, place)
        ctx.line(f"copy{size}(&{target}, &{self.place(ctx, source, buffer, origin)});")
        return True

    @hookimpl
    def stage_commit(self, ctx: EmitContext, uop: UOp) -> bool:
        ctx.line('asm volatile("cp.async.commit_group;" ::: "memory");')
        return True

    @hookimpl
    def stage_wait(self, ctx: EmitContext, uop: UOp) -> bool:
        ctx.line(f'asm volatile("cp.async.wait_group {uop.arg};" ::: "memory");')
        return True


def _first_lane(u: UOp) -> UOp:
    """Return a scalar of the dtype of a vector's lanes."""
    return u if u.dtype.lanes == 1 else UOp(ops.GEP, u.dtype.scalar, (u,), (0,))


def _plus(index: str, offset: int) -> Code:
    """Return an index some elements on."""
    text = bare(index)
    return (
        Code(f"{wrap(text, Level.ADDITIVE)} + {offset}", Level.ADDITIVE)
        if offset
        else Code(text, level_of(text))
    )


def _long(index: str) -> bool:
    """Whether an index is too long to be written for each piece of an access."""
    return len(index) > 40


def _narrowing(name: str, instruction: str, overflow: str, result: str) -> tuple[str, str, Sequence[str]]:
    """Return the conversion of a float to one of 8 bits.

    The instruction takes two, and makes the largest number of what overflows.
    """
    return (name, "unsigned char {name}(float x)", [
        "unsigned short y;",
        f'asm("cvt.rn.satfinite.{instruction}.f32 %0, %1, %2;" : "=h"(y) : "f"(0.0f), "f"(x));',
        f"return (unsigned char)({overflow} ? __float_as_uint(x) >> 24 & 0x80 | {result} : y);",
    ])  # fmt: skip


def _widening(name: str, instruction: str) -> tuple[str, str, Sequence[str]]:
    return (name, "float {name}(unsigned char x)", [
        "float y;",
        'asm("{.reg .b32 pair; .reg .b16 low, high; '
        f'cvt.rn.f16x2.{instruction} pair, %1; mov.b32 {{low, high}}, pair; '
        'cvt.f32.f16 %0, low;}" : "=f"(y) : "h"((unsigned short)x));',
        "return y;",
    ])  # fmt: skip


#: Conversions of two numbers at once: the function and its instruction.
_PAIRS = {
    ("float32", "float16"): ("f16x2_from_f32", "cvt.rn.f16x2.f32"),
    ("float32", "bfloat16"): ("bf16x2_from_f32", "cvt.rn.bf16x2.f32"),
}
#: By the names of source and target: the function, its signature and its body.
_CONVERSIONS: Mapping[tuple[str, str], tuple[str, str, Sequence[str]]] = {
    ("float16", "float32"): ("f32_from_f16", "float {name}(unsigned short x)", [
        "float y;", 'asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));', "return y;",
    ]),
    ("float32", "float16"): ("f16_from_f32", "unsigned short {name}(float x)", [
        "unsigned short y;", 'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));', "return y;",
    ]),
    ("bfloat16", "float32"): ("f32_from_bf16", "float {name}(unsigned short x)", [
        "return __uint_as_float((unsigned int)x << 16);",
    ]),
    ("float32", "bfloat16"): ("bf16_from_f32", "unsigned short {name}(float x)", [
        "unsigned short y;", 'asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));', "return y;",
    ]),
    ("float8_e4m3", "float32"): _widening("f32_from_e4m3", "e4m3x2"),
    ("float8_e5m2", "float32"): _widening("f32_from_e5m2", "e5m2x2"),
    # Halfway between the largest number and the next: 464 is rounded down to 448, 61440 up, to infinity.
    ("float32", "float8_e4m3"): _narrowing("e4m3_from_f32", "e4m3x2", "fabsf(x) > 464.0f", "0x7f"),
    ("float32", "float8_e5m2"): _narrowing("e5m2_from_f32", "e5m2x2", "fabsf(x) >= 61440.0f", "0x7c"),
}  # fmt: skip
