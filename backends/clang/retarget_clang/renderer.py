"""`ClangRenderer`: C for clang and gcc, with GNU vectors.

The kernel has the CPU's calling convention, `void NAME(void** buffers, int64_t* variables, int64_t begin,
int64_t end)`. Signed arithmetic wraps and nothing is contracted but MULACC: the compiler's flags see to it
(`-fwrapv`, `-ffp-contract=off`).  float16, bfloat16 and float8 are integers here, except in conversions of
float16.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from retarget.codegen.cfamily import CFamilyRenderer, Code, Form, Level, bare, call, level_of, mask_of, wrap
from retarget.codegen.driver import EmitContext
from retarget.codegen.hooks import hookimpl
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType
from retarget.ir.ops import Op
from retarget.ir.uop import UOp

from . import vectors

_FUNCTIONS = {ops.SQRT: "sqrt", ops.FLOOR: "floor", ops.CEIL: "ceil", ops.TRUNC: "trunc", ops.RINT: "rint"}
_EXTREMA = {ops.MAXIMUM: "max", ops.MINIMUM: "min"}
#: What ops on bools are on masks.
_MASK_OPS: dict[Op, str] = {
    ops.ADD: "{0} | {1}", ops.OR: "{0} | {1}", ops.MAXIMUM: "{0} | {1}",
    ops.MUL: "{0} & {1}", ops.AND: "{0} & {1}", ops.MINIMUM: "{0} & {1}",
    ops.XOR: "{0} ^ {1}", ops.CMPNE: "{0} ^ {1}", ops.CMPEQ: "~({0} ^ {1})",
    ops.CMPLT: "~{0} & {1}", ops.CMPLE: "~{0} | {1}", ops.NOT: "~{0}",
}  # fmt: skip
_FOLDS: dict[Op, str] = {
    ops.ADD: "add", ops.MUL: "mul", ops.MAXIMUM: "max", ops.MINIMUM: "min",
    ops.AND: "and", ops.OR: "or", ops.XOR: "xor",
}  # fmt: skip
_BOOLEAN_FOLDS: dict[Op, str] = {
    **_FOLDS,
    ops.ADD: "or",
    ops.MAXIMUM: "or",
    ops.MUL: "and",
    ops.MINIMUM: "and",
}


class ClangRenderer(CFamilyRenderer):
    LANGUAGE = "GNU C"
    TYPES: Mapping[str, str] = {
        "bool": "bool", "int8": "int8_t", "int16": "int16_t", "int32": "int", "int64": "int64_t",
        "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t",
        "float32": "float", "float64": "double",
    }  # fmt: skip
    BOOLEANS = ("0", "1")
    NON_FINITE: Mapping[str, tuple[str, str]] = {
        "float32": ("__builtin_inff()", '__builtin_nanf("")'),
        "float64": ("__builtin_inf()", '__builtin_nan("")'),
    }
    ALU: Mapping[Op, Form] = {
        **CFamilyRenderer.ALU,
        **{op: call(f"__builtin_{name}{{f}}") for op, name in _FUNCTIONS.items()},
    }
    STORAGE: Mapping[str, str] = {
        **CFamilyRenderer.STORAGE,
        "local": "{type} {name}[{size}] __attribute__((aligned(64)));",
    }
    UNROLL = "UNROLL({size})"
    HELPER = vectors.INLINE
    RESERVED = re.compile(
        r"buffers|variables|begin|end|UNROLL|STREAM|PRAGMA|u?int\d+_t|bool|bits_\w+|f16_from_f32\w*|f32_from_f16\w*"
        r"|([a-z]+_)*[fiu](8|16|32|64)(x\d+u?)?(_[iu]\d+)*"  # types, and the functions on them
    )

    # -- signature and loops -------------------------------------------------------------------------------

    def type_name(self, ctx: EmitContext, dtype: DType, mask: int = 0) -> str:
        name = super().type_name(ctx, dtype, mask)
        return vectors.scalar(ctx, name) if dtype.lanes == 1 else name

    @hookimpl
    def define_buffer(self, ctx: EmitContext, uop: UOp) -> Code:
        name = super().define_buffer(ctx, uop)
        if uop.op is ops.PARAM:
            names = [a.name for a in ctx.program.arguments if a.kind == "buffer"]
            const = "" if uop.arg[2] else "const "
            pointer = f"{const}{self.type_name(ctx, uop.dtype)}* restrict {name}"
            ctx.line(f"{pointer} = buffers[{names.index(uop.arg[0])}];")
        return name

    @hookimpl
    def define_var(self, ctx: EmitContext, uop: UOp) -> Code:
        name = super().define_var(ctx, uop)
        names = [a.name for a in ctx.program.arguments if a.kind == "variable"]
        value = f"variables[{names.index(uop.arg[0])}]"
        ctx.line(f"const {self.type_name(ctx, uop.dtype)} {name} = {value};")
        return name

    @hookimpl
    def begin_loop(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code:
        if uop.arg[2] == "thread":
            return self.open_loop(ctx, uop, "begin", "end")
        return super().begin_loop(ctx, uop, operands)

    def unroll_line(self, ctx: EmitContext, size: int) -> str:
        ctx.preamble.setdefault("UNROLL", UNROLL_MACRO)
        return super().unroll_line(ctx, size)

    def signature(self, ctx: EmitContext) -> str:
        return f"void {ctx.program.name}(void** buffers, int64_t* variables, int64_t begin, int64_t end)"

    def prologue(self, ctx: EmitContext) -> list[str]:
        text = "\n".join(ctx.lines)
        unused = [n for n in ("buffers", "variables", "begin", "end") if not re.search(rf"\b{n}\b", text)]
        return [f"  {' '.join(f'(void){name};' for name in unused)}"] if unused else []

    @hookimpl
    def render_kernel(self, ctx: EmitContext, body: Sequence[str]) -> str:
        vectors.scalar(ctx, "int64_t")
        if any(u.op is ops.STORE and u.arg == "stream" for u in ctx.program.uops):
            # What went past the caches has to be seen by whoever is told that this piece is done.
            body = [*body, "  __atomic_thread_fence(__ATOMIC_SEQ_CST);"]
        return super().render_kernel(ctx, body)

    # -- scalars -------------------------------------------------------------------------------------------

    def scalar_tag(self, dtype: DType) -> str:
        """Return the short name of an element type; that of bools is the one of their masks in memory."""
        dtype = self.carrier(dtype)
        return "i8" if dtype.kind == "bool" else f"{dtype.kind[0]}{dtype.bits}"

    @hookimpl
    def render_alu(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        if uop.dtype.lanes == 1 and uop.dtype.kind != "bool":
            tag = self.scalar_tag(uop.dtype)
            if uop.op is ops.MULACC and tag in ("f32", "f64"):
                return Code(f"{vectors.multiply_add(ctx, tag, 1)}({', '.join(operands)})")
            if uop.op in _EXTREMA and uop.dtype.name not in self.CARRIERS:
                name = vectors.extremum(ctx, _EXTREMA[uop.op], tag, 1)
                return Code(f"{name}({', '.join(map(bare, operands))})")
        return super().render_alu(ctx, uop, operands)

    def carried_cast(self, ctx: EmitContext, source: DType, target: DType, value: str) -> Code | None:
        if "float16" not in self.capabilities.conversions:
            return None
        if source.scalar is dtypes.float16 and target.scalar is dtypes.float32:
            return Code(f"{vectors.widen_half(ctx, source.lanes)}({value})")
        if source.scalar is dtypes.float32 and target.scalar is dtypes.float16:
            return Code(f"{vectors.narrow_half(ctx, source.lanes)}({value})")
        return None

    # -- vectors -------------------------------------------------------------------------------------------

    def vector_type(self, ctx: EmitContext, dtype: DType, scalar: str, mask: int) -> str:
        return vectors.vector(ctx, f"i{mask}" if mask else self.scalar_tag(dtype), dtype.lanes)

    def mask(self, ctx: EmitContext, value: str, lanes: int, bits: int) -> Code:
        """Return a vector of bools as a mask with lanes of `bits` bits."""
        if mask_of(value) == bits:
            return Code(value, level_of(value), mask=bits)
        if isinstance(value, Code) and value.bare is not None:  # one scalar bool for all lanes
            return self.scalar_mask(ctx, value.bare, lanes, bits)
        return Code(f"__builtin_convertvector({value}, {vectors.vector(ctx, f'i{bits}', lanes)})", mask=bits)

    def scalar_mask(self, ctx: EmitContext, value: str, lanes: int, bits: int) -> Code:
        """Return one scalar bool as a mask for all lanes."""
        negated = Code(f"-{wrap(value, Level.POSTFIX)}", Level.UNARY)
        return Code(f"{vectors.splat(ctx, f'i{bits}', lanes)}({negated})", mask=bits)

    def vector_build(self, ctx: EmitContext, dtype: DType, lanes: Sequence[str]) -> Code:
        mask = 32 if dtype.kind == "bool" else 0
        name = self.vector_type(ctx, dtype, "", mask)
        if mask:
            lanes = [f"-{wrap(lane, Level.POSTFIX)}" for lane in lanes]
        return Code(f"({name}){{{', '.join(map(bare, lanes))}}}", mask=mask)

    def vector_lane(self, ctx: EmitContext, dtype: DType, vector: str, lane: int) -> Code:
        if isinstance(vector, Code) and vector.bare is not None:
            return vector.bare
        value = Code(f"{wrap(vector, Level.POSTFIX)}[{lane}]")
        return Code(f"{value} != 0", Level.EQUALITY) if dtype.kind == "bool" else value

    @hookimpl
    def render_vector(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        lanes, value = uop.dtype.lanes, operands[0]
        if uop.op is ops.BROADCAST:
            scalar = Code(value, level_of(value), bare=value.bare if isinstance(value, Code) else None)
            if uop.dtype.kind == "bool":
                return Code(self.mask(ctx, Code("", bare=scalar), lanes, 32), mask=32, bare=scalar)
            text = f"{vectors.splat(ctx, self.scalar_tag(uop.dtype), lanes)}({bare(value)})"
            # A narrow scalar may have been promoted to int, and one of 64 bits to long long by a literal in
            # it; compilers refuse both beside a vector of the type itself.
            promoted = self.carrier(uop.dtype).bits < 32 or ("LL" in value and uop.src[0].op is not ops.CONST)
            return Code(text, bare=None if promoted else scalar)
        if uop.op is ops.GEP and lanes > 1:
            if len(operands) == 1 and not value.isidentifier():
                value = self.bind(ctx, uop.src[0], value)
            mask, other = mask_of(value), operands[-1]
            if len(operands) > 1 and uop.dtype.kind == "bool":
                mask = mask or 8
                value, other = (self.mask(ctx, v, uop.src[0].dtype.lanes, mask) for v in operands)
            text = f"__builtin_shufflevector({bare(value)}, {bare(other)}, {', '.join(map(str, uop.arg))})"
            return Code(text, mask=mask)
        return super().render_vector(ctx, uop, operands)

    def fold(self, ctx: EmitContext, uop: UOp, value: str) -> Code | None:
        lanes = uop.src[0].dtype.lanes
        if uop.dtype.kind == "bool":
            bits = mask_of(value) or 8
            name = vectors.fold(ctx, _BOOLEAN_FOLDS[uop.arg], f"i{bits}", lanes)
            return Code(f"{name}({self.mask(ctx, value, lanes, bits)}) != 0", Level.EQUALITY)
        if uop.dtype.name in self.CARRIERS:
            return None
        return Code(f"{vectors.fold(ctx, _FOLDS[uop.arg], self.scalar_tag(uop.dtype), lanes)}({value})")

    def vector_alu(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        op, lanes, operand_dtype = uop.op, uop.dtype.lanes, uop.src[-1].dtype
        if op is ops.WHERE:
            return self.vector_select(ctx, uop, operands)
        if operand_dtype.kind == "bool":
            return self.mask_alu(ctx, uop, operands)
        if operand_dtype.name in self.CARRIERS:
            return None
        tag = self.scalar_tag(operand_dtype)
        arguments = ", ".join(operands)
        if op is ops.MULACC:
            return Code(f"{vectors.multiply_add(ctx, tag, lanes)}({arguments})")
        if op in _EXTREMA:
            return Code(f"{vectors.extremum(ctx, _EXTREMA[op], tag, lanes)}({arguments})")
        form = self.form(op, operand_dtype)
        if form is None:
            return None
        if op in _FUNCTIONS:
            return Code(f"{vectors.lanewise(ctx, _FUNCTIONS[op], tag, lanes, form)}({arguments})")
        value = self.apply(form, uop, operands)
        return Code(value, value.level, mask=operand_dtype.bits) if op in ops.COMPARISONS else value

    def vector_select(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code:
        condition, x, y = operands
        dtype = uop.dtype
        bits = dtype.bits
        if dtype.kind == "bool":
            bits = next((mask_of(v) for v in operands[1:] if bare(v) is v and mask_of(v)), 32)
            x, y = self.mask(ctx, x, dtype.lanes, bits), self.mask(ctx, y, dtype.lanes, bits)
        mask = bits if dtype.kind == "bool" else 0
        if uop.src[0].dtype.lanes == 1 or bare(condition) is not condition:
            x, y = (Code(v, level_of(v), mask=mask) for v in (x, y))
            return self.choose(ctx, dtype, bare(condition), x, y)
        tag = f"i{bits}" if mask else self.scalar_tag(dtype)
        test = self.mask(ctx, condition, dtype.lanes, bits)
        return Code(f"{vectors.select(ctx, tag, dtype.lanes)}({test}, {x}, {y})", mask=mask)

    def choose(self, ctx: EmitContext, dtype: DType, condition: str, x: Code, y: Code) -> Code:
        if (
            dtype.lanes > 1
        ):  # gcc wants the very same type on both sides, and a load has that of vectors in memory
            cast = f"({self.type_name(ctx, dtype, x.mask)})"
            x, y = (
                v
                if v.level == Level.POSTFIX
                else Code(f"{cast}{wrap(v, Level.UNARY)}", Level.UNARY, mask=v.mask)
                for v in (x, y)
            )
        return super().choose(ctx, dtype, condition, x, y)

    def mask_alu(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        """Return an op on vectors of bools, as wide as the first operand that has a width."""
        pattern = _MASK_OPS.get(uop.op)
        if pattern is None:
            return None
        bits = next((mask_of(v) for v in operands if bare(v) is v and mask_of(v)), 32)
        texts = [wrap(self.mask(ctx, v, uop.dtype.lanes, bits), Level.UNARY) for v in operands]
        level = Level.UNARY if pattern.startswith("~(") or len(texts) == 1 else Level.BIT_OR
        return Code(pattern.format(*texts), level, mask=bits)

    def vector_cast(self, ctx: EmitContext, uop: UOp, value: str) -> Code | None:
        source, target = uop.src[0].dtype, uop.dtype
        if uop.op is ops.CAST and (source.name in self.CARRIERS or target.name in self.CARRIERS):
            return self.carried_cast(ctx, source, target, value)
        name = self.type_name(ctx, target, mask=target.bits if target.kind == "bool" else 0)
        if source.kind == "bool":
            ones = f"-{wrap(self.mask(ctx, value, source.lanes, target.bits), Level.POSTFIX)}"
            if target.kind == "int":
                return Code(ones, Level.UNARY)
            if target.kind == "uint":
                return Code(f"({name}){ones}", Level.UNARY)
            return Code(f"__builtin_convertvector({ones}, {name})")
        if target.kind == "bool":  # only bits: bytes of 0 and 1
            return Code(f"-({name}){wrap(value, Level.UNARY)}", Level.UNARY, mask=8)
        if uop.op is ops.BITCAST:
            return Code(f"({name}){wrap(value, Level.UNARY)}", Level.UNARY)
        return Code(f"__builtin_convertvector({value}, {name})")

    # -- vectors in memory ---------------------------------------------------------------------------------

    def memory_type(self, ctx: EmitContext, dtype: DType) -> str:
        return self.type_name(ctx, dtype, mask=8 if dtype.kind == "bool" and dtype.lanes > 1 else 0)

    def whole_load(self, ctx: EmitContext, uop: UOp, place: Code) -> Code:
        return Code(place, mask=8 if uop.dtype.kind == "bool" and uop.dtype.lanes > 1 else 0)

    def whole_store(self, ctx: EmitContext, uop: UOp, place: Code, value: str) -> str:
        dtype = uop.src[2].dtype
        if dtype.kind == "bool" and dtype.lanes > 1:
            value = self.mask(ctx, value, dtype.lanes, 8)
        return super().whole_store(ctx, uop, place, value)

    def unaligned(self, ctx: EmitContext, dtype: DType) -> str:
        """Return the type of a vector in memory at any address."""
        return vectors.vector(ctx, self.scalar_tag(dtype), dtype.lanes, unaligned=True)

    def zero(self, ctx: EmitContext, dtype: DType, mask: int) -> Code:
        return (
            Code(f"({self.type_name(ctx, dtype, mask)}){{0}}")
            if dtype.lanes > 1
            else super().zero(ctx, dtype, mask)
        )

    def contiguous_load(self, ctx: EmitContext, uop: UOp, buffer: str, index: str) -> Code:
        # The level keeps a product from reading as x**p.
        place = self.place(ctx, uop.src[0], buffer, index)
        text = f"*(const {self.unaligned(ctx, uop.dtype)}*)&{place}"
        if uop.dtype.kind == "bool":
            return Code(f"-{text}", Level.UNARY, mask=8)
        return Code(text, Level.MULTIPLICATIVE)

    def contiguous_store(
        self, ctx: EmitContext, uop: UOp, buffer: str, index: str, value: str
    ) -> Iterator[str]:
        dtype = uop.src[2].dtype
        if dtype.kind == "bool":
            value = f"-{wrap(self.mask(ctx, value, dtype.lanes, 8), Level.POSTFIX)}"
        place = self.place(ctx, uop.src[0], buffer, index)
        if uop.arg == "stream":
            ctx.preamble.setdefault("STREAM", STREAM_MACRO)
            name = vectors.vector(ctx, self.scalar_tag(dtype), dtype.lanes)
            yield f"STREAM(({name}*)&{place}, {value});"
            return
        yield f"*({self.unaligned(ctx, dtype)}*)&{place} = {value};"

    def gate_mask(
        self, ctx: EmitContext, gates: Sequence[str], uops: Sequence[UOp], lanes: int
    ) -> tuple[str, Code | None]:
        """Return tag and text of the mask of a gate, if there is one."""
        if not gates:
            return "", None
        if uops[0].dtype.lanes == 1:
            return "i32", self.scalar_mask(ctx, gates[0], lanes, 32)
        bits = mask_of(gates[0]) or 32
        return f"i{bits}", self.mask(ctx, gates[0], lanes, bits)

    def lanewise_load(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        buffer, index, *gates = operands
        tag, lanes, boolean = self.scalar_tag(uop.dtype), uop.dtype.lanes, uop.dtype.kind == "bool"
        mask_tag, mask = self.gate_mask(ctx, gates, uop.src[2:], lanes)
        index_dtype = uop.src[1].dtype
        if index_dtype.lanes > 1:
            function = vectors.gather(ctx, tag, lanes, self.scalar_tag(index_dtype), mask_tag, boolean)
            arguments = [buffer, index]
        else:
            function = vectors.load_if(ctx, tag, lanes, mask_tag, boolean)
            arguments = [f"&{self.place(ctx, uop.src[0], buffer, index)}"]
        return Code(
            f"{function}({', '.join([*arguments, *([mask] if mask else [])])})", mask=8 if boolean else 0
        )

    def lanewise_store(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Iterator[str]:
        buffer, index, value, *gates = operands
        dtype = uop.src[2].dtype
        tag, lanes, boolean = self.scalar_tag(dtype), dtype.lanes, dtype.kind == "bool"
        if boolean:
            value = self.mask(ctx, value, lanes, 8)
        mask_tag, mask = self.gate_mask(ctx, gates, uop.src[3:], lanes)
        index_dtype = uop.src[1].dtype
        if index_dtype.lanes > 1:
            function = vectors.scatter(ctx, tag, lanes, self.scalar_tag(index_dtype), mask_tag, boolean)
            arguments = [buffer, index, value]
        else:
            function = vectors.store_if(ctx, tag, lanes, mask_tag, boolean)
            arguments = [f"&{self.place(ctx, uop.src[0], buffer, index)}", value]
        yield f"{function}({', '.join([*arguments, *([mask] if mask else [])])});"


#: A store past the caches, for compilers that have one.
STREAM_MACRO = """\
#ifdef __clang__
#define STREAM(place, value) __builtin_nontemporal_store(value, place)
#else
#define STREAM(place, value) (*(place) = (value))
#endif"""
#: Each compiler has its own pragma, and warns of the other's.
UNROLL_MACRO = """\
#define PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define UNROLL(n) PRAGMA(clang loop unroll(full))
#else
#define UNROLL(n) PRAGMA(GCC unroll n)
#endif"""
