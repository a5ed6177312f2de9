"""`CFamilyRenderer`: the base of renderers whose text is C or looks like it.

A language is described by tables (type names, the form of each op, qualifiers) and a few small methods for
what no table can say (signature, literals, vectors).  A derived class extends a table with `{**Base.TABLE,
...}`.  Operands are `Code`: text that knows its precedence, so that no needless parentheses are written.

The base is complete for scalars, and loads and stores whole vectors as GPU languages have them (`float4`);
arithmetic on vectors is for classes whose language has it.  What a language cannot express is a
`CompileError`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Self

from ..errors import CompileError
from ..ir import dtypes, ops
from ..ir.dtypes import DType
from ..ir.ops import Op
from ..ir.uop import UOp, numel
from .driver import EmitContext
from .hooks import hookimpl
from .intervals import Bounds, interval
from .renderer import Renderer

#: What C and C++ of any standard, GNU C and OpenCL C reserve or define: no variable may have these names.
KEYWORDS = frozenset({
    "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break",
    "case", "catch", "char", "char8_t", "char16_t", "char32_t", "class", "compl", "concept",
    "const", "consteval", "constexpr", "constinit", "const_cast", "continue", "co_await",
    "co_return", "co_yield", "decltype", "default", "delete", "do", "double", "dynamic_cast",
    "else", "enum", "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if",
    "inline", "int", "long", "main", "mutable", "namespace", "new", "noexcept", "not", "not_eq",
    "nullptr", "operator", "or", "or_eq", "private", "protected", "public", "register",
    "reinterpret_cast", "requires", "restrict", "return", "short", "signed", "sizeof", "static",
    "static_assert", "static_cast", "struct", "switch", "template", "this", "thread_local", "throw",
    "true", "try", "typedef", "typeid", "typename", "typeof", "typeof_unqual", "union", "unsigned",
    "using", "virtual", "void", "volatile", "wchar_t", "while", "xor", "xor_eq", "linux", "unix",
    "i386", "vector", "pixel", "half",
})  # fmt: skip

# -- text with precedence ----------------------------------------------------------------------------------


class Level(IntEnum):
    """C's levels of precedence, loosest first."""

    ASSIGNMENT = 1
    CONDITIONAL = 2
    LOGICAL_OR = 3
    LOGICAL_AND = 4
    BIT_OR = 5
    BIT_XOR = 6
    BIT_AND = 7
    EQUALITY = 8
    RELATIONAL = 9
    SHIFT = 10
    ADDITIVE = 11
    MULTIPLICATIVE = 12
    UNARY = 13
    POSTFIX = 14


class Code(str):
    """An expression.

    Attributes
    ----------
    level
        Precedence of its outermost operator.
    bare
        A shorter text for where the other operand fixes the type (a literal without its suffix, the scalar of
        a broadcast); None where there is none.
    mask
        Of a vector of bools: bits of the lanes of the integer vector that represents it, each 0 or -1.
    """

    __slots__ = ("bare", "level", "mask")
    bare: Code | None
    level: int
    mask: int

    def __new__(
        cls, text: str, level: int = Level.POSTFIX, *, bare: Code | None = None, mask: int = 0
    ) -> Self:
        self = super().__new__(cls, text)
        self.level, self.bare, self.mask = level, bare, mask
        return self


def level_of(x: str) -> int:
    """Return the precedence of an operand; plain text is the loosest unless it is a name."""
    if isinstance(x, Code):
        return x.level
    return Level.POSTFIX if x.isidentifier() else Level.ASSIGNMENT


def wrap(x: str, least: int) -> str:
    """Return `x`, in parentheses if it binds more loosely than `least`."""
    return str(x) if level_of(x) >= least else f"({x})"


def bare(x: str) -> str:
    """Return the shorter text of an operand whose type is fixed by where it stands."""
    return x if not isinstance(x, Code) or x.bare is None else x.bare


def mask_of(x: str) -> int:
    """Return the width of the lanes of a mask, 0 for anything else."""
    return x.mask if isinstance(x, Code) else 0


@dataclass(frozen=True, slots=True)
class Form:
    """How an op is written: a `str.format` pattern of its operands {0}, {1}, {2} and of {f}, "f" for float32.

    `least` is the loosest precedence that each operand may have without parentheses.
    """

    pattern: str
    level: int = Level.POSTFIX
    least: tuple[int, ...] = (0, 0, 0)


def infix(symbol: str, level: int, least: int | None = None) -> Form:
    """Return the form of a binary operator.

    Its operands are in parentheses where C's precedence or left associativity asks for them, or, with
    `least`, wherever they bind more loosely than that: compilers' warnings (and readers) want more of them
    than the language does.
    """
    space = "" if symbol == "*" else " "
    both = (level, level + 1) if least is None else (least, least)
    return Form(f"{{0}}{space}{symbol}{space}{{1}}", level, both)


def prefix(symbol: str) -> Form:
    """Return the form of a unary operator."""
    return Form(f"{symbol}{{0}}", Level.UNARY, (Level.POSTFIX,))


def call(function: str, operands: int = 1) -> Form:
    """Return the form of a function call."""
    return Form(f"{function}({', '.join(f'{{{n}}}' for n in range(operands))})")


# -- the state of one rendering ----------------------------------------------------------------------------


@dataclass(slots=True)
class State:
    """What a C-family renderer remembers during one rendering.

    Attributes
    ----------
    scopes
        Names declared in each open block, outermost first.
    names
        The identifier of each parameter, by the name in the program.
    single
        Registers of one element, which are plain variables.
    indices
        Integers that are only steps to an index, where the renderer treats them in their own way.
    """

    scopes: list[set[str]] = field(default_factory=lambda: [set()])
    names: dict[str, str] = field(default_factory=dict)
    single: set[UOp] = field(default_factory=set)
    indices: frozenset[UOp] = frozenset()


#: Results of these ops leave the range of a type narrower than int, in which C computes them.
_WRAPPING = frozenset({ops.ADD, ops.SUB, ops.MUL, ops.NEG, ops.NOT, ops.USHL})
_SHIFTS = frozenset({ops.USHL, ops.USHR})
_INT_MAX = (1 << 31) - 1
_WORD = re.compile(r"\w+")


class CFamilyRenderer(Renderer):
    """Renders C-like text; see the module's docstring.

    Attributes
    ----------
    LANGUAGE
        Its name, for messages.
    TYPES
        Type name of each scalar dtype.
    CARRIERS
        Dtypes that the language has no type for: name -> name of the unsigned integer dtype that carries
        their bits.
    SUFFIXES
        Suffix of an integer or float literal, by dtype name.
    BOOLEANS
        The literals false and true.
    NON_FINITE
        Texts of infinity and NaN by dtype name.
    ALU, INTEGER_ALU, BOOLEAN_ALU
        Form of each elementwise op; the latter two come first for dtypes of their kind.
    STORAGE
        Declaration of a LOCAL by address space, a pattern of {type}, {name} and {size}.
    SPECIALS
        Expression of each grid or thread index by the name of the SPECIAL.
    KERNEL, RESTRICT
        What stands before a kernel's name, and between a pointer's type and name.
    UNROLL
        The line before a loop that is to be unrolled, a pattern of {size}.
    BARRIER, SHUFFLE
        The statement, and the pattern of an expression of {0} and {mask}; "" where there is none.
    RESERVED
        A pattern of names that, beside `KEYWORDS`, programs may use and the text defines otherwise; none
        starts with "own_".
    signed_wraps
        Whether signed integer arithmetic wraps, by the language or by a compiler's flag; else it is done
        unsigned, except where it does not overflow: in indices, and where the operands are small for certain.
    """

    LANGUAGE = "C"
    TYPES: Mapping[str, str] = {
        "bool": "bool", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
        "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int",
        "uint64": "unsigned long long",
        "float32": "float", "float64": "double",
    }  # fmt: skip
    CARRIERS: Mapping[str, str] = {
        "float16": "uint16", "bfloat16": "uint16", "float8_e4m3": "uint8", "float8_e5m2": "uint8",
    }  # fmt: skip
    SUFFIXES: Mapping[str, str] = {"uint32": "u", "int64": "LL", "uint64": "ULL", "float32": "f"}
    BOOLEANS: tuple[str, str] = ("false", "true")
    NON_FINITE: Mapping[str, tuple[str, str]] = {
        "float32": ("INFINITY", "NAN"),
        "float64": ("(double)INFINITY", "(double)NAN"),
    }
    ALU: Mapping[Op, Form] = {
        ops.ADD: infix("+", Level.ADDITIVE),
        ops.SUB: infix("-", Level.ADDITIVE),
        ops.MUL: infix("*", Level.MULTIPLICATIVE),
        ops.FDIV: infix("/", Level.MULTIPLICATIVE),
        ops.NEG: prefix("-"),
        ops.SQRT: call("sqrt{f}"),
        ops.FLOOR: call("floor{f}"),
        ops.CEIL: call("ceil{f}"),
        ops.TRUNC: call("trunc{f}"),
        ops.RINT: call("rint{f}"),
        ops.MULACC: call("fma{f}", 3),
        ops.TRUNCDIV: infix("/", Level.MULTIPLICATIVE),
        ops.TRUNCMOD: infix("%", Level.MULTIPLICATIVE),
        ops.AND: infix("&", Level.BIT_AND, Level.UNARY),
        ops.OR: infix("|", Level.BIT_OR, Level.UNARY),
        ops.XOR: infix("^", Level.BIT_XOR, Level.UNARY),
        ops.NOT: prefix("~"),
        ops.USHL: infix("<<", Level.SHIFT, Level.UNARY),
        ops.USHR: infix(">>", Level.SHIFT, Level.UNARY),
        ops.CMPLT: infix("<", Level.RELATIONAL, Level.ADDITIVE),
        ops.CMPLE: infix("<=", Level.RELATIONAL, Level.ADDITIVE),
        ops.CMPEQ: infix("==", Level.EQUALITY, Level.ADDITIVE),
        ops.CMPNE: infix("!=", Level.EQUALITY, Level.ADDITIVE),
        ops.WHERE: Form(
            "{0} ? {1} : {2}", Level.CONDITIONAL, (Level.LOGICAL_OR, Level.LOGICAL_OR, Level.CONDITIONAL)
        ),
    }
    INTEGER_ALU: Mapping[Op, Form] = {ops.ADD: infix("+", Level.ADDITIVE, Level.ADDITIVE)}
    BOOLEAN_ALU: Mapping[Op, Form] = {
        ops.ADD: infix("||", Level.LOGICAL_OR, Level.BIT_OR),
        ops.MUL: infix("&&", Level.LOGICAL_AND, Level.LOGICAL_AND),
        ops.OR: infix("||", Level.LOGICAL_OR, Level.BIT_OR),
        ops.AND: infix("&&", Level.LOGICAL_AND, Level.LOGICAL_AND),
        ops.XOR: infix("!=", Level.EQUALITY, Level.ADDITIVE),
        ops.NOT: prefix("!"),
    }
    STORAGE: Mapping[str, str] = {"register": "{type} {name}[{size}];", "local": "{type} {name}[{size}];"}
    SPECIALS: Mapping[str, str] = {}
    KERNEL = "void"
    RESTRICT = "restrict "
    UNROLL = "#pragma unroll"
    BARRIER = ""
    SHUFFLE = ""
    RESERVED = re.compile(r"(?!)")

    signed_wraps: bool = True

    def new_state(self, ctx: EmitContext) -> State:
        return State(indices=frozenset() if self.signed_wraps else _index_arithmetic(ctx.program.uops))

    # -- names and types -----------------------------------------------------------------------------------

    def declare(self, ctx: EmitContext, name: str) -> str:
        """Return `name`, or one like it if it is taken or reserved, and take it until the block ends."""
        scopes = ctx.state.scopes
        if name in KEYWORDS or self.RESERVED.fullmatch(name):
            name = f"own_{name}"
        chosen, number = name, 1
        while any(chosen in scope for scope in scopes):
            number += 1
            chosen = f"{name}_{number}"
        scopes[-1].add(chosen)
        return chosen

    def carrier(self, dtype: DType) -> DType:
        """Return the dtype whose C type holds values of `dtype`."""
        name = self.CARRIERS.get(dtype.name)
        return dtype if name is None else dtypes.parse_dtype(name).vector(dtype.lanes)

    def type_name(self, ctx: EmitContext, dtype: DType, mask: int = 0) -> str:
        """Return the type of values; `mask` is the lane width of a vector of bools."""
        found = self.TYPES.get(self.carrier(dtype).name)
        if found is None:
            raise CompileError(
                f"{self.LANGUAGE} has no type for {dtype.name} ({ctx.program.name}, {ctx.target})"
            )
        return found if dtype.lanes == 1 else self.vector_type(ctx, dtype, found, mask)

    def memory_type(self, ctx: EmitContext, dtype: DType) -> str:
        """Return the type of the elements of an array."""
        return self.type_name(ctx, dtype)

    def bind(self, ctx: EmitContext, uop: UOp, value: str) -> Code:
        letter = {"bool": "m", "float": "x"}.get(uop.dtype.kind, "n")
        mask = mask_of(value)
        type_name = self.type_name(ctx, uop.dtype, mask)
        name = self.declare(ctx, ctx.fresh(letter))
        ctx.line(f"const {type_name} {name} = {value if uop.dtype.lanes > 1 else bare(value)};")
        return Code(name, mask=mask)

    # -- declarations --------------------------------------------------------------------------------------

    @hookimpl
    def define_buffer(self, ctx: EmitContext, uop: UOp) -> Code:
        if uop.op is ops.LOCAL:
            return self.define_local(ctx, uop)
        name = ctx.state.names[uop.arg[0]] = self.declare(ctx, uop.arg[0])
        return Code(name)

    @hookimpl
    def define_register(self, ctx: EmitContext, uop: UOp) -> Code:
        return self.define_local(ctx, uop)

    def define_local(self, ctx: EmitContext, uop: UOp) -> Code:
        """Declare an array; a register of no dimensions becomes a variable."""
        name, shape, space = uop.arg
        pattern = self.STORAGE.get(space)
        if pattern is None:
            raise CompileError(
                f"{self.LANGUAGE} has no {space} memory ({name} of {ctx.program.name}, {ctx.target})"
            )
        type_name = self.memory_type(ctx, uop.dtype)
        name = self.declare(ctx, name)
        if space == "register" and not shape:
            ctx.state.single.add(uop)
            ctx.line(f"{type_name} {name};")
        else:
            ctx.line(pattern.format(type=type_name, name=name, size=numel([n for n in shape if n])))
        return Code(name)

    @hookimpl
    def define_var(self, ctx: EmitContext, uop: UOp) -> Code:
        name = ctx.state.names[uop.arg[0]] = self.declare(ctx, uop.arg[0])
        return Code(name)

    @hookimpl
    def render_special(self, ctx: EmitContext, uop: UOp) -> Code | None:
        expression = self.SPECIALS.get(uop.arg[0])
        if expression is None:
            return None
        name = self.declare(ctx, uop.arg[0])
        ctx.line(f"const {self.type_name(ctx, uop.dtype)} {name} = {expression};")
        return Code(name)

    # -- values --------------------------------------------------------------------------------------------

    @hookimpl
    def render_const(self, ctx: EmitContext, uop: UOp) -> Code:
        return self.literal(ctx, uop.dtype, uop.arg)

    def literal(self, ctx: EmitContext, dtype: DType, value: bool | int | float) -> Code:
        """Return a constant, exactly."""
        carrier = self.carrier(dtype)
        if carrier is not dtype:
            return self.literal(ctx, carrier, _bits(dtype, float(value)))
        if dtype.kind == "bool":
            return Code(self.BOOLEANS[bool(value)])
        if dtype.kind == "float":
            return self.float_literal(dtype, float(value))
        value, suffix = int(value), self.SUFFIXES.get(dtype.name, "")
        if (
            value < -_INT_MAX and value == dtype.min
        ):  # C reads -N as minus N, and N has no type or a wider one
            return Code(f"{value + 1}{suffix} - 1", Level.ADDITIVE)
        level = Level.UNARY if value < 0 else Level.POSTFIX
        short = Code(str(value), level) if suffix and abs(value) <= _INT_MAX else None
        return Code(f"{value}{suffix}", level, bare=short)

    def float_literal(self, dtype: DType, value: float) -> Code:
        """Return the shortest decimal number that reads back as `value`."""
        if not math.isfinite(value):
            infinity, nan = self.NON_FINITE[dtype.name]
            return Code(nan if value != value else infinity if value > 0 else f"-{infinity}", Level.UNARY)
        text = repr(value)
        if dtype.bits < 64:
            import numpy as np

            text = str(np.float32(value))
        negative = math.copysign(1.0, value) < 0
        return Code(text + self.SUFFIXES.get(dtype.name, ""), Level.UNARY if negative else Level.POSTFIX)

    @hookimpl
    def render_alu(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        if uop.dtype.lanes > 1:
            return self.vector_alu(ctx, uop, operands)
        form = self.form(uop.op, uop.src[-1].dtype)
        if form is None or (uop.op is not ops.WHERE and uop.src[-1].dtype.name in self.CARRIERS):
            return None
        return self.scalar_alu(ctx, uop, form, operands)

    def form(self, op: Op, dtype: DType) -> Form | None:
        """Return the form of an op on operands of `dtype`."""
        special = self.BOOLEAN_ALU if dtype.kind == "bool" else self.INTEGER_ALU if dtype.is_int else {}
        return special.get(op) or self.ALU.get(op)

    def apply(self, form: Form, uop: UOp, operands: Sequence[str]) -> Code:
        """Fill in a form, with the shorter text of operands next to one that fixes the type."""
        values = list(operands)
        if uop.op in _SHIFTS:
            values[1] = bare(values[1])
        else:
            first = 1 if uop.op is ops.WHERE else 0
            if any(bare(v) is v for v in values[first:]):
                values[first:] = [bare(v) for v in values[first:]]
        texts = [wrap(v, least) for v, least in zip(values, form.least, strict=False)]
        return Code(form.pattern.format(*texts, f="f" if uop.dtype.name == "float32" else ""), form.level)

    def scalar_alu(self, ctx: EmitContext, uop: UOp, form: Form, operands: Sequence[str]) -> Code:
        """Apply a form to scalars so that integers wrap in their own type."""
        dtype, op = uop.dtype, uop.op
        if not dtype.is_int or op not in _WRAPPING:
            return self.apply(form, uop, operands)
        narrow = dtype.bits < 32
        wraps = self.signed_wraps or uop in ctx.state.indices
        if dtype.kind == "int" and op is not ops.NOT and (op is ops.USHL or not wraps):
            unsigned = self.type_name(ctx, dtypes.parse_dtype("uint64" if dtype.bits == 64 else "uint32"))
            first = Code(f"({unsigned}){wrap(operands[0], Level.UNARY)}", Level.UNARY)
            return self.convert(ctx, dtype, self.apply(form, uop, [first, *operands[1:]]))
        value = self.apply(form, uop, operands)
        return self.convert(ctx, dtype, value) if narrow else value

    def convert(self, ctx: EmitContext, dtype: DType, value: str) -> Code:
        """Return a C cast."""
        return Code(f"({self.type_name(ctx, dtype)}){wrap(value, Level.UNARY)}", Level.UNARY)

    @hookimpl
    def render_cast(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        (value,) = operands
        source, target = uop.src[0].dtype, uop.dtype
        if uop.op is ops.BITCAST and self.carrier(source) is self.carrier(target):
            return Code(value, level_of(value), mask=mask_of(value))
        if target.lanes > 1:
            return self.vector_cast(ctx, uop, value)
        if uop.op is ops.BITCAST:
            return self.bitcast(ctx, source, target, value)
        if source.name in self.CARRIERS or target.name in self.CARRIERS:
            return self.carried_cast(ctx, source, target, value)
        return self.convert(ctx, target, value)

    def bitcast(self, ctx: EmitContext, source: DType, target: DType, value: str) -> Code:
        """Reinterpret a scalar."""
        source, target = self.carrier(source), self.carrier(target)
        if not source.is_float and not target.is_float:
            return self.convert(ctx, target, value)
        name = f"bits_{source.name}_as_{target.name}"
        a, b = self.type_name(ctx, source), self.type_name(ctx, target)
        self.helper(
            ctx,
            name,
            f"{b} {name}({a} x)",
            [f"union {{ {a} a; {b} b; }} bits;", "bits.a = x;", "return bits.b;"],
        )
        return Code(f"{name}({value})")

    def carried_cast(self, ctx: EmitContext, source: DType, target: DType, value: str) -> Code | None:
        """Convert from or to a dtype that is carried as an integer; None where the language cannot."""
        return None

    #: What stands before a helper function.
    HELPER = "static inline"

    def helper(self, ctx: EmitContext, name: str, signature: str, body: Sequence[str]) -> str:
        """Define a helper function before the kernel, once, and return its name."""
        if name not in ctx.preamble:
            lines = "\n".join(f"  {line}" if line[0] != "#" else line for line in body)
            ctx.preamble[name] = f"{self.HELPER} {signature} {{\n{lines}\n}}"
        return name

    # -- vectors -------------------------------------------------------------------------------------------

    def vector_type(self, ctx: EmitContext, dtype: DType, scalar: str, mask: int) -> str:
        """Return the name of a vector type."""
        return f"{scalar}{dtype.lanes}"

    def vector_build(self, ctx: EmitContext, dtype: DType, lanes: Sequence[str]) -> Code:
        """Return a vector of scalars."""
        return Code(f"make_{self.type_name(ctx, dtype)}({', '.join(lanes)})")

    def vector_lane(self, ctx: EmitContext, dtype: DType, vector: str, lane: int) -> Code:
        """Return one lane of a vector of `dtype`."""
        return Code(f"{wrap(vector, Level.POSTFIX)}.{'xyzw'[lane]}")

    def vector_alu(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        """Return arithmetic on vectors; None where the language has none."""
        return None

    def vector_cast(self, ctx: EmitContext, uop: UOp, value: str) -> Code | None:
        """Return a conversion of vectors; None where the language has none."""
        return None

    def fold(self, ctx: EmitContext, uop: UOp, value: str) -> Code | None:
        """Return the fold of a vector's lanes; None where the language has none."""
        return None

    @hookimpl
    def render_vector(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        if uop.op is ops.FOLD:
            return self.fold(ctx, uop, operands[0])
        if uop.op is not ops.GEP:
            return self.vector_build(
                ctx, uop.dtype, list(operands) * (uop.dtype.lanes if uop.op is ops.BROADCAST else 1)
            )
        dtype, wide = uop.src[0].dtype, uop.src[0].dtype.lanes
        taken: tuple[int, ...] = uop.arg
        lanes = [self.vector_lane(ctx, dtype, operands[lane // wide], lane % wide) for lane in taken]
        return lanes[0] if uop.dtype.lanes == 1 else self.vector_build(ctx, uop.dtype, lanes)

    # -- memory --------------------------------------------------------------------------------------------

    def place(self, ctx: EmitContext, buffer_uop: UOp, buffer: str, index: str) -> Code:
        """Return an element of an array, to be read or assigned."""
        return Code(
            buffer if buffer_uop in ctx.state.single else f"{wrap(buffer, Level.POSTFIX)}[{bare(index)}]"
        )

    @hookimpl
    def render_load(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        buffer, index, *gate = operands
        if uop.src[1].dtype.lanes > 1 or _by_lane(uop.src[2:], gate):
            return self.lanewise_load(ctx, uop, operands)
        if uop.dtype.lanes == uop.src[0].dtype.lanes:
            value: Code | None = self.whole_load(ctx, uop, self.place(ctx, uop.src[0], buffer, index))
        else:
            value = self.contiguous_load(ctx, uop, buffer, index)
        if not gate or value is None:
            return value
        return self.choose(ctx, uop.dtype, bare(gate[0]), value, self.zero(ctx, uop.dtype, value.mask))

    def choose(self, ctx: EmitContext, dtype: DType, condition: str, x: Code, y: Code) -> Code:
        """Return `x` where a scalar condition holds, else `y`, which has the same representation."""
        form = self.ALU[ops.WHERE]
        texts = [wrap(v, least) for v, least in zip((condition, x, y), form.least, strict=True)]
        return Code(form.pattern.format(*texts), form.level, mask=x.mask)

    def zero(self, ctx: EmitContext, dtype: DType, mask: int) -> Code:
        """Return what a load gives where its gate is false."""
        carrier = self.carrier(dtype)
        value: bool | int | float = {"bool": False, "float": 0.0}.get(carrier.kind, 0)
        zero = self.literal(ctx, carrier.scalar, value)
        return zero if dtype.lanes == 1 else self.vector_build(ctx, dtype, [zero] * dtype.lanes)

    def whole_load(self, ctx: EmitContext, uop: UOp, place: Code) -> Code:
        """Return the value of an element that has the load's own dtype."""
        return place

    def contiguous_load(self, ctx: EmitContext, uop: UOp, buffer: str, index: str) -> Code | None:
        """Return a vector of neighbouring scalars: one access where it is aligned, else one for each lane."""
        if (uop.arg or 1) >= uop.dtype.lanes:
            pointer = f"(const {self.type_name(ctx, uop.dtype)}*)"
            return Code(f"*{pointer}&{self.place(ctx, uop.src[0], buffer, index)}", Level.MULTIPLICATIVE)
        return self.vector_build(ctx, uop.dtype, [
            self.place(ctx, uop.src[0], buffer, _offset(index, lane)) for lane in range(uop.dtype.lanes)
        ])  # fmt: skip

    def lanewise_load(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        """Return a gather, or a load with a gate for each lane; None where the language has none."""
        return None

    @hookimpl
    def render_store(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> bool:
        buffer, index, value, *gate = operands
        target, dtype = uop.src[0], uop.src[2].dtype
        if uop.src[1].dtype.lanes > 1 or _by_lane(uop.src[3:], gate):
            lines, gate = list(self.lanewise_store(ctx, uop, operands)), []
        elif dtype.lanes == target.dtype.lanes:
            lines = [self.whole_store(ctx, uop, self.place(ctx, target, buffer, index), value)]
        else:
            lines = list(self.contiguous_store(ctx, uop, buffer, index, value))
        if not gate:
            self.initialize(ctx, uop, buffer, lines)
            for line in lines:
                ctx.line(line)
        elif len(lines) == 1:
            ctx.line(f"if ({bare(gate[0])}) {lines[0]}")
        else:
            ctx.line(f"if ({bare(gate[0])}) {{")
            ctx.depth += 1
            for line in lines:
                ctx.line(line)
            ctx.depth -= 1
            ctx.line("}")
        return True

    def initialize(self, ctx: EmitContext, uop: UOp, variable: str, lines: list[str]) -> None:
        """Make one line of the declaration of a variable and the assignment that follows it."""
        if uop.src[0] not in ctx.state.single or len(lines) != 1 or not lines[0].startswith(f"{variable} = "):
            return
        declaration = f"{self.memory_type(ctx, uop.src[0].dtype)} {variable};"
        if ctx.lines and ctx.lines[-1] == "  " * ctx.depth + declaration:
            ctx.lines.pop()
            if ctx.provenance:
                ctx.provenance.pop()
            lines[0] = f"{declaration.removesuffix(variable + ';')}{lines[0]}"

    def whole_store(self, ctx: EmitContext, uop: UOp, place: Code, value: str) -> str:
        """Return the assignment of an element of the value's own dtype; x = x + y is written x += y."""
        source = uop.src[2]
        if source.op is ops.ADD and source.dtype.kind != "bool" and isinstance(value, Code):
            first = source.src[0]
            same = first.op is ops.LOAD and first.src[:2] == uop.src[:2]
            if same and value.level == Level.ADDITIVE and value.startswith(f"{place} + "):
                return f"{place} += {value[len(place) + 3 :]};"
        return f"{place} = {value if source.dtype.lanes > 1 else bare(value)};"

    def contiguous_store(
        self, ctx: EmitContext, uop: UOp, buffer: str, index: str, value: str
    ) -> Iterator[str]:
        """Yield the statements that store a vector to neighbouring scalars."""
        dtype = uop.src[2].dtype
        if uop.arg == "stream" or (uop.arg or 1) >= dtype.lanes:
            yield f"*({self.type_name(ctx, dtype)}*)&{self.place(ctx, uop.src[0], buffer, index)} = {value};"
            return
        if not value.isidentifier():
            value = self.bind(ctx, uop.src[2], value)
        for lane in range(dtype.lanes):
            place = self.place(ctx, uop.src[0], buffer, _offset(index, lane))
            yield f"{place} = {self.vector_lane(ctx, dtype, value, lane)};"

    def lanewise_store(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Iterator[str]:
        """Yield the statements of a scatter, or of a store with a gate for each lane."""
        raise CompileError(f"{self.LANGUAGE} has no stores by lane ({ctx.program.name}, {ctx.target})")

    # -- control -------------------------------------------------------------------------------------------

    @hookimpl
    def begin_loop(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code:
        _, size, kind = uop.arg
        if kind == "unroll" and size is not None:
            ctx.line(self.unroll_line(ctx, size))
        return self.open_loop(ctx, uop, "0", bare(operands[0]) if size is None else str(size))

    def unroll_line(self, ctx: EmitContext, size: int) -> str:
        """Return the line before a loop that is to be unrolled."""
        return self.UNROLL.format(size=size)

    def open_loop(self, ctx: EmitContext, uop: UOp, begin: str, end: str) -> Code:
        """Write the head of a loop and return its index."""
        ctx.state.scopes.append(set())
        name = self.declare(ctx, uop.arg[0])
        limit = wrap(Code(end) if end.isdigit() else end, Level.SHIFT)
        ctx.line(f"for ({self.type_name(ctx, uop.dtype)} {name} = {begin}; {name} < {limit}; {name}++) {{")
        ctx.depth += 1
        return Code(name)

    @hookimpl
    def end_loop(self, ctx: EmitContext, uop: UOp) -> bool:
        return self.close_block(ctx)

    @hookimpl
    def begin_if(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> bool:
        ctx.state.scopes.append(set())
        ctx.line(f"if ({operands[0]}) {{")
        ctx.depth += 1
        return True

    @hookimpl
    def end_if(self, ctx: EmitContext, uop: UOp) -> bool:
        return self.close_block(ctx)

    def close_block(self, ctx: EmitContext) -> bool:
        """Close the innermost loop or conditional."""
        ctx.state.scopes.pop()
        ctx.depth -= 1
        ctx.line("}")
        return True

    @hookimpl
    def render_barrier(self, ctx: EmitContext, uop: UOp) -> bool:
        if not self.BARRIER:
            raise CompileError(f"{self.LANGUAGE} has no barrier ({ctx.program.name}, {ctx.target})")
        ctx.line(self.BARRIER)
        return True

    @hookimpl
    def render_shuffle(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> Code | None:
        return Code(self.SHUFFLE.format(operands[0], mask=uop.arg)) if self.SHUFFLE else None

    # -- the whole kernel ----------------------------------------------------------------------------------

    @hookimpl
    def render_kernel(self, ctx: EmitContext, body: Sequence[str]) -> str:
        kernel = [f"{self.signature(ctx)} {{", *self.prologue(ctx), *body, "}"]
        return "\n".join([self.header(ctx), *self.definitions(ctx, kernel), "", *kernel]) + "\n"

    def definitions(self, ctx: EmitContext, kernel: Sequence[str]) -> list[str]:
        """Return the parts of the preamble that the kernel needs, types before the functions that use them.

        What is kept under its own name is left out where nothing mentions it: an operand may have been
        written in its shorter form.
        """
        words = set(_WORD.findall("\n".join(kernel)))
        kept = []
        for name, text in reversed(ctx.preamble.items()):  # what a part mentions was there before it
            if name == text or name in words:
                kept.append(text)
                words.update(_WORD.findall(text))
        kept.reverse()
        return sorted(kept, key=lambda text: not text.startswith(("typedef", "#")))

    def header(self, ctx: EmitContext) -> str:
        """Return the comment on the first line: kernel, target and launch."""
        launch = ctx.program.launch
        sizes = [f"{launch.chunks} chunks"] if launch.chunks > 1 else []
        for name, size in (("grid", launch.grid), ("block", launch.block)):
            if size:
                sizes.append(f"{name} {' x '.join(map(str, size))}")
        return f"// {', '.join([f'{ctx.program.name} for {ctx.target}', *sizes])}"

    def signature(self, ctx: EmitContext) -> str:
        """Return the text before the kernel's body."""
        parameters = [self.parameter(ctx, position) for position in range(len(ctx.program.arguments))]
        return f"{self.KERNEL} {ctx.program.name}({', '.join(parameters)})"

    def parameter(self, ctx: EmitContext, position: int) -> str:
        """Return the declaration of one parameter."""
        argument = ctx.program.arguments[position]
        name = ctx.state.names.get(argument.name, argument.name)
        type_name = self.memory_type(ctx, dtypes.parse_dtype(argument.dtype))
        if argument.kind == "variable":
            return f"{type_name} {name}"
        return f"{'' if argument.writable else 'const '}{type_name}* {self.RESTRICT}{name}"

    def prologue(self, ctx: EmitContext) -> list[str]:
        """Return lines that open the body."""
        return []


def _index_arithmetic(uops: Sequence[UOp]) -> frozenset[UOp]:
    """Return the integers that do not overflow: what indices are made of, and what is small for certain."""
    found: set[UOp] = set()
    for u in reversed(uops):
        if u.op in _INDEXED:
            found.update([u.src[n] for n in _INDEXED[u.op]])
        elif u.op in ops.ALU_OPS and u in found:
            found.update(u.src)
    bounds: dict[UOp, Bounds] = {}
    for u in uops:
        if u.dtype.is_int and u.dtype.lanes == 1:
            within = _bounds(u, bounds)
            if within is not None and u.dtype.min <= within[0] and within[1] <= u.dtype.max:
                bounds[u] = within
    return frozenset(found.union(bounds))


#: Which operands of an access are indices.
_INDEXED: Mapping[Op, tuple[int, ...]] = {
    ops.LOAD: (1,), ops.STORE: (1,), ops.STAGE_COPY: (1, 3), ops.IMAGE_LOAD: (1, 2), ops.IMAGE_STORE: (1, 2),
}  # fmt: skip


def _bounds(u: UOp, known: Mapping[UOp, Bounds]) -> Bounds | None:
    """Return the least and the largest value of an integer, if those of its operands are known."""
    if u.op is ops.CONST:
        return u.arg, u.arg
    if u.op is ops.VAR:
        return u.arg[1], u.arg[2]
    if u.op in (ops.SPECIAL, ops.RANGE) and type(u.arg[1]) is int:
        return 0, u.arg[1] - 1
    if not u.src or any(s not in known for s in u.src):
        return None
    first = known[u.src[0]]
    if u.op is ops.RANGE:
        return 0, max(first[1] - 1, 0)
    if u.op is ops.NEG:
        return -first[1], -first[0]
    return interval(u.op, first, known[u.src[1]]) if len(u.src) == 2 else None


def _by_lane(gates: Sequence[UOp], texts: Sequence[str]) -> bool:
    """Whether there is a gate that differs between lanes."""
    return any(gate.dtype.lanes > 1 and bare(text) is text for gate, text in zip(gates, texts, strict=True))


def _offset(index: str, lane: int) -> Code:
    """Return an index a few elements on."""
    return Code(f"{wrap(bare(index), Level.ADDITIVE)} + {lane}" if lane else bare(index), Level.ADDITIVE)


def _bits(dtype: DType, value: float) -> int:
    """Return the bits of a float in a narrow format."""
    import numpy as np

    if value != value:  # one NaN, whatever the payload: the quiet one
        return {"float16": 0x7E00, "bfloat16": 0x7FC0, "float8_e4m3": 0x7F, "float8_e5m2": 0x7E}[dtype.name]
    narrow = np.asarray(value).astype(dtypes.to_numpy(dtype))
    return int(narrow.view(np.dtype(f"u{dtype.itemsize}")))
