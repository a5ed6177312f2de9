"""Vectors in GNU C, as clang and gcc both have them: types, and the small functions for what has no operator.

`f32x8` is a vector of eight floats; `f32x8u` is the same in memory, at any address.  A vector of bools is a
*mask*: an integer vector whose lanes are 0 or -1, as comparisons give it.  Every function here adds its types
and helpers to the preamble of the rendering and returns the name to use.

Functions on lanes are written lane by lane; all supported compilers make one vector instruction of them at
-O2.
"""

from __future__ import annotations

from collections.abc import Callable

from retarget.codegen.cfamily import Form
from retarget.codegen.driver import EmitContext
from retarget.errors import CompileError

#: Element type by tag, and its size in bytes.
ELEMENTS = {
    "i8": ("int8_t", 1), "i16": ("int16_t", 2), "i32": ("int", 4), "i64": ("int64_t", 8),
    "u8": ("uint8_t", 1), "u16": ("uint16_t", 2), "u32": ("uint32_t", 4), "u64": ("uint64_t", 8),
    "f16": ("_Float16", 2), "f32": ("float", 4), "f64": ("double", 8),
}  # fmt: skip
#: What the compilers call the integer types; no header is included, since reading it takes longer than the
#: kernel.
INTEGERS = {
    "int8_t": "__INT8_TYPE__", "int16_t": "__INT16_TYPE__", "int64_t": "__INT64_TYPE__",
    "uint8_t": "__UINT8_TYPE__", "uint16_t": "__UINT16_TYPE__", "uint32_t": "__UINT32_TYPE__",
    "uint64_t": "__UINT64_TYPE__", "bool": "_Bool",
}  # fmt: skip

INLINE = "static inline __attribute__((always_inline))"


def scalar(ctx: EmitContext, name: str) -> str:
    """Return the name of a scalar type, defined."""
    if name in INTEGERS:
        ctx.preamble.setdefault(name, f"typedef {INTEGERS[name]} {name};")
    return name


def vector(ctx: EmitContext, tag: str, lanes: int, unaligned: bool = False) -> str:
    """Return the name of a vector type, defined; `unaligned`: of one in memory."""
    if lanes & (lanes - 1):
        raise CompileError(
            f"C compilers have no vectors of {lanes} lanes, only powers of two ({ctx.program.name})"
        )
    element, size = ELEMENTS[tag]
    scalar(ctx, element)
    name = f"{tag}x{lanes}{'u' if unaligned else ''}"
    memory = f", aligned({size}), may_alias" if unaligned else ""
    text = f"typedef {element} {name} __attribute__((vector_size({size * lanes}){memory}));"
    ctx.preamble.setdefault(name, text)
    return name


def mask_tag(tag: str) -> str:
    """Return the tag of the mask that comparing vectors of `tag` gives."""
    return f"i{ELEMENTS[tag][1] * 8}"


def _define(ctx: EmitContext, name: str, result: str, parameters: str, *body: str) -> str:
    if name not in ctx.preamble:
        lines = "\n".join(line if line.startswith("#") else f"  {line}" for line in body)
        ctx.preamble[name] = f"{INLINE} {result} {name}({parameters}) {{\n{lines}\n}}"
    return name


def _lanes(lanes: int, text: Callable[[int], str]) -> str:
    return "{" + ", ".join(text(lane) for lane in range(lanes)) + "}"


def splat(ctx: EmitContext, tag: str, lanes: int) -> str:
    """A vector whose lanes are all x."""
    v = vector(ctx, tag, lanes)
    return _define(
        ctx, f"splat_{v}", v, f"{ELEMENTS[tag][0]} x", f"return ({v}){_lanes(lanes, lambda _: 'x')};"
    )


def select(ctx: EmitContext, tag: str, lanes: int) -> str:
    """x where the mask is set, else y.  Both texts become one blend, each in its compiler."""
    v, m = vector(ctx, tag, lanes), vector(ctx, mask_tag(tag), lanes)
    return _define(
        ctx, f"select_{v}", v, f"{m} mask, {v} x, {v} y",
        "#ifdef __clang__",
        f"return ({v})((mask & ({m})x) | (~mask & ({m})y));",
        "#else",
        f"for (int l = 0; l < {lanes}; l++) x[l] = mask[l] ? x[l] : y[l];",
        "return x;",
        "#endif",
    )  # fmt: skip


def lanewise(ctx: EmitContext, name: str, tag: str, lanes: int, form: Form) -> str:
    """The function of one operand that `form` writes for scalars, on each lane."""
    v = vector(ctx, tag, lanes)
    f = "f" if tag == "f32" else ""
    return _define(
        ctx, f"{name}_{v}", v, f"{v} x",
        f"return ({v}){_lanes(lanes, lambda lane: form.pattern.format(f'x[{lane}]', f=f))};",
    )  # fmt: skip


def multiply_add(ctx: EmitContext, tag: str, lanes: int) -> str:
    """x*y + z, fused where that is an instruction.  Contraction is off elsewhere."""
    f = "f" if tag == "f32" else ""
    if lanes == 1:
        name, t, fused = f"fma_{tag}", ELEMENTS[tag][0], f"return __builtin_fma{f}(x, y, z);"
    else:
        t = vector(ctx, tag, lanes)
        name = f"fma_{t}"
        fused = f"for (int l = 0; l < {lanes}; l++) z[l] = __builtin_fma{f}(x[l], y[l], z[l]);\n  return z;"
    return _define(
        ctx, name, t, f"{t} x, {t} y, {t} z",
        "#ifdef __clang__",
        "#pragma clang fp contract(fast)",
        "return x*y + z;",
        "#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)",
        fused,
        "#else",
        "return x*y + z;",
        "#endif",
    )  # fmt: skip


def extremum(ctx: EmitContext, name: str, tag: str, lanes: int) -> str:
    """The larger ("max") or smaller ("min") of x and y; NaN if either is NaN."""
    compare = ">" if name == "max" else "<"
    real = tag.startswith("f")
    if lanes == 1:
        t = scalar(ctx, ELEMENTS[tag][0])
        nan = " || x != x" if real else ""
        return _define(ctx, f"{name}_{tag}", t, f"{t} x, {t} y", f"return x {compare} y{nan} ? x : y;")
    v, choose = vector(ctx, tag, lanes), select(ctx, tag, lanes)
    value = f"{choose}(x {compare} y, x, y)"
    if real:
        value = f"{choose}(x != x, x, {value})"
    return _define(ctx, f"{name}_{v}", v, f"{v} x, {v} y", f"return {value};")


#: What folds two values, by the lower-case name of the op: an operator or a function of this module.
_FOLDS = {"add": "+", "mul": "*", "and": "&", "or": "|", "xor": "^"}


def fold(ctx: EmitContext, op: str, tag: str, lanes: int) -> str:
    """All lanes folded to a scalar, by halves: the low half with the high half, and so on."""
    v, element = vector(ctx, tag, lanes), ELEMENTS[tag][0]
    half = lanes // 2
    if half == 1:
        low, high, rest = "x[0]", "x[1]", ""
    else:
        low, high = (
            f"__builtin_shufflevector(x, x, {', '.join(map(str, r))})"
            for r in (range(half), range(half, lanes))
        )
        rest = fold(ctx, op, tag, half)
    if op in _FOLDS:
        value = f"{low} {_FOLDS[op]} {high}"
    else:
        value = f"{extremum(ctx, op, tag, half)}({low}, {high})"
    return _define(
        ctx, f"fold_{op}_{v}", element, f"{v} x", f"return {f'{rest}({value})' if rest else value};"
    )


# -- memory ------------------------------------------------------------------------------------------------
# Lanes whose mask is not set are never touched.  `boolean` arrays hold bytes of 0 and 1, which become masks
# of bytes.


def _pointer(ctx: EmitContext, tag: str, boolean: bool, const: bool = True) -> str:
    return f"{'const ' if const else ''}{scalar(ctx, 'bool' if boolean else ELEMENTS[tag][0])}* p"


def load_if(ctx: EmitContext, tag: str, lanes: int, mask: str, boolean: bool) -> str:
    """Neighbouring elements from p on, 0 where the mask is not set."""
    v, m, u = vector(ctx, tag, lanes), vector(ctx, mask, lanes), vector(ctx, tag, lanes, unaligned=True)
    every = fold(ctx, "and", mask, lanes)
    sign = "-" if boolean else ""
    picked = _lanes(lanes, lambda lane: f"mask[{lane}] ? {sign}p[{lane}] : 0")
    return _define(
        ctx, f"load_if_{'bool_' if boolean else ''}{v}_{mask}", v, f"{_pointer(ctx, tag, boolean)}, {m} mask",
        f"if ({every}(mask)) return {sign}*(const {u}*)p;",
        f"return ({v}){picked};",
    )  # fmt: skip


def store_if(ctx: EmitContext, tag: str, lanes: int, mask: str, boolean: bool) -> str:
    """Store to neighbouring elements from p on where the mask is set."""
    v, m, u = vector(ctx, tag, lanes), vector(ctx, mask, lanes), vector(ctx, tag, lanes, unaligned=True)
    every = fold(ctx, "and", mask, lanes)
    sign = "-" if boolean else ""
    pointer = _pointer(ctx, tag, boolean, const=False)
    return _define(
        ctx, f"store_if_{'bool_' if boolean else ''}{v}_{mask}", "void", f"{pointer}, {v} x, {m} mask",
        f"if ({every}(mask)) {{",
        f"  *({u}*)p = {sign}x;",
        "} else {",
        f"  for (int l = 0; l < {lanes}; l++)",
        f"    if (mask[l]) p[l] = {sign}x[l];",
        "}",
    )  # fmt: skip


def gather(ctx: EmitContext, tag: str, lanes: int, index: str, mask: str, boolean: bool) -> str:
    """The elements of p at the indices i; with a mask, 0 where it is not set."""
    v, n = vector(ctx, tag, lanes), vector(ctx, index, lanes)
    sign = "-" if boolean else ""
    gate = f", {vector(ctx, mask, lanes)} mask" if mask else ""
    name = f"gather_{'bool_' if boolean else ''}{v}_{index}{f'_{mask}' if mask else ''}"
    picked = _lanes(lanes, lambda n: f"mask[{n}] ? {sign}p[i[{n}]] : 0" if mask else f"{sign}p[i[{n}]]")
    return _define(ctx, name, v, f"{_pointer(ctx, tag, boolean)}, {n} i{gate}", f"return ({v}){picked};")


def scatter(ctx: EmitContext, tag: str, lanes: int, index: str, mask: str, boolean: bool) -> str:
    """Store lane after lane to the elements of p at the indices i; with a mask, where it is set."""
    v, n = vector(ctx, tag, lanes), vector(ctx, index, lanes)
    gate = f", {vector(ctx, mask, lanes)} mask" if mask else ""
    name = f"scatter_{'bool_' if boolean else ''}{v}_{index}{f'_{mask}' if mask else ''}"
    return _define(
        ctx, name, "void", f"{_pointer(ctx, tag, boolean, const=False)}, {n} i, {v} x{gate}",
        f"for (int l = 0; l < {lanes}; l++)",
        f"  {'if (mask[l]) ' if mask else ''}p[i[l]] = {'-' if boolean else ''}x[l];",
    )  # fmt: skip


# -- float16 -----------------------------------------------------------------------------------------------


def widen_half(ctx: EmitContext, lanes: int) -> str:
    """float16, given by its bits, as float.  _Float16 serves for nothing else: no excess precision."""
    if lanes > 1:
        v, bits, half = vector(ctx, "f32", lanes), vector(ctx, "u16", lanes), vector(ctx, "f16", lanes)
        return _define(
            ctx, f"f32_from_f16_x{lanes}", v, f"{bits} x", f"return __builtin_convertvector(({half})x, {v});"
        )
    u16 = scalar(ctx, "uint16_t")
    return _define(
        ctx, "f32_from_f16", "float", f"{u16} x",
        f"union {{ {u16} bits; _Float16 value; }} half = {{x}};", "return (float)half.value;",
    )  # fmt: skip


def narrow_half(ctx: EmitContext, lanes: int) -> str:
    """float rounded to float16, as its bits."""
    if lanes > 1:
        v, bits, half = vector(ctx, "f32", lanes), vector(ctx, "u16", lanes), vector(ctx, "f16", lanes)
        return _define(
            ctx,
            f"f16_from_f32_x{lanes}",
            bits,
            f"{v} x",
            f"return ({bits})__builtin_convertvector(x, {half});",
        )
    u16 = scalar(ctx, "uint16_t")
    return _define(
        ctx, "f16_from_f32", u16, "float x",
        f"union {{ _Float16 value; {u16} bits; }} half = {{(_Float16)x}};", "return half.bits;",
    )  # fmt: skip
