"""Vectors of CUDA C: how one lies in memory and in registers, and the names of its types.

CUDA C has types for up to four elements and 16 bytes, and no arithmetic on them: the renderer computes lane
by lane.  What those types cannot hold is *packed*: several narrow elements in each 32-bit word, as matrix
instructions want them, or is a struct of an array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from retarget.codegen.cfamily import Code, Level, bare, wrap
from retarget.codegen.driver import EmitContext
from retarget.ir.dtypes import DType

WORD = "unsigned int"
#: What the vector types of each element type begin with.
_FAMILY = {
    "signed char": "char", "unsigned char": "uchar", "bool": "uchar", "short": "short",
    "unsigned short": "ushort", "int": "int", "unsigned int": "uint", "long long": "longlong",
    "unsigned long long": "ulonglong", "float": "float", "double": "double",
}  # fmt: skip
INLINE = "static __device__ __forceinline__"


class Layout(NamedTuple):
    """How a vector is kept.

    Attributes
    ----------
    type
        Its type's name.
    element
        Type of an element.
    word
        Type of a member.
    size, per
        Members, and elements in each of them.
    members
        What follows the vector's name for each member: ".x", ".v[2]", or nothing if it is the member.
    struct
        Definition of the type, where CUDA C has none.
    """

    type: str
    element: str
    word: str
    size: int
    per: int
    members: tuple[str, ...]
    struct: str = ""

    def of_words(self, words: Sequence[str]) -> str:
        """Return a vector of its members."""
        if self.size == 1:
            return words[0]
        return (
            f"{self.type}{{{{{', '.join(words)}}}}}"
            if self.struct
            else f"make_{self.type}({', '.join(words)})"
        )


def layout(ctx: EmitContext, dtype: DType, element: str, packed: bool) -> Layout:
    """Return how a vector of `dtype`, whose elements have the type `element`, is kept.

    Parameters
    ----------
    packed
        Whether narrow elements are packed even where CUDA C has a vector of them.
    """
    lanes, bits = dtype.lanes, 8 if dtype.kind == "bool" else dtype.bits
    word, per = "unsigned char" if dtype.kind == "bool" else element, 1
    if bits < 32 and lanes * bits % 32 == 0 and (packed or lanes > 4):
        word, per = WORD, 32 // bits
    count, size = lanes // per, max(bits, 32 if per > 1 else 0) // 8
    family = _FAMILY[word]
    if count == 1:
        return Layout(word, element, word, 1, per, ("",))
    if count in (2, 4) and count * size <= 16:
        return Layout(f"{family}{count}", element, word, count, per, tuple(f".{c}" for c in "xyzw"[:count]))
    name = f"{family}_array{count}"
    align = min(16, count * size & -(count * size))
    struct = f"typedef struct __align__({align}) {{ {word} v[{count}]; }} {name};"
    ctx.preamble.setdefault(name, struct)
    return Layout(name, element, word, count, per, tuple(f".v[{n}]" for n in range(count)), struct)


class Lanes(Code):
    """A vector: its lanes, each an expression.

    Attributes
    ----------
    lanes
        The expressions.
    words
        The members that hold them, where they are packed and known.
    fixed
        Whether they stay what they are: constants and names of constants.
    """

    __slots__ = ("fixed", "lanes", "words")
    lanes: tuple[Code, ...]
    words: tuple[str, ...]
    fixed: bool

    def __new__(
        cls, text: str, lanes: Sequence[Code], *, words: Sequence[str] = (), fixed: bool = False
    ) -> Lanes:
        self = super().__new__(cls, text)
        self.lanes, self.words, self.fixed = tuple(lanes), tuple(words), fixed
        return self


def take_apart(ctx: EmitContext, shape: Layout, text: str, dtype: DType, *, fixed: bool) -> Lanes:
    """Return the vector that an expression of the vector's type is; each lane repeats the expression."""
    words = [f"{wrap(text, Level.POSTFIX)}{member}" for member in shape.members]
    lanes = []
    for n in range(dtype.lanes):
        word = Code(words[n // shape.per])
        if shape.per == 2:
            word = Code(f"{half(ctx, n % 2)}({word})")
            if dtype.kind == "int":
                word = Code(f"({shape.element}){word}", Level.UNARY)
        elif shape.per > 1:
            shift = n % shape.per * (32 // shape.per)
            shifted = Code(f"{word} >> {shift}", Level.SHIFT) if shift else word
            if dtype.kind == "bool":
                word = Code(f"({wrap(shifted, Level.UNARY)} & 1) != 0", Level.EQUALITY)
            else:
                word = Code(f"({shape.element}){wrap(shifted, Level.UNARY)}", Level.UNARY)
        elif dtype.kind == "bool":
            word = Code(f"{word} != 0", Level.EQUALITY)
        lanes.append(word)
    return Lanes(text, lanes, words=words if shape.per > 1 else (), fixed=fixed)


def put_together(ctx: EmitContext, shape: Layout, lanes: Sequence[str]) -> str:
    """Return an expression of the vector's type with these lanes."""
    words = [bare(lane) for lane in lanes]
    if shape.per > 1:
        function = pack(ctx, shape.per)
        words = [
            f"{function}({', '.join(words[n : n + shape.per])})" for n in range(0, len(words), shape.per)
        ]
    return shape.of_words(words)


def half(ctx: EmitContext, number: int) -> str:
    """Return the name of the function that gives the low (0) or the high (1) half of a word."""
    name, value = ("high", "x >> 16") if number else ("low", "x")
    text = f"{INLINE} unsigned short {name}({WORD} x) {{\n  return (unsigned short)({value});\n}}"
    ctx.preamble.setdefault(name, text)
    return name


def pack(ctx: EmitContext, count: int) -> str:
    """Return the name of the function that packs two 16-bit or four 8-bit elements into a word."""
    bits = 32 // count
    name, kind = f"pack{count}", "unsigned short" if count == 2 else "unsigned char"
    names = "abcd"[:count]
    value = " | ".join(f"({WORD}){c} << {n * bits}" if n else c for n, c in enumerate(names))
    parameters = ", ".join(f"{kind} {c}" for c in names)
    ctx.preamble.setdefault(name, f"{INLINE} {WORD} {name}({parameters}) {{\n  return {value};\n}}")
    return name
