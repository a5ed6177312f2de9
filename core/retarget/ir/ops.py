"""The op table: every op of the IR, declared once.

An `Op` says what its operands are, which dtypes they may have, what effect it has and what it means.  The
verifier, printer, parser, generated documentation and the NumPy evaluator are all driven by this table.
Three levels share it:

* **graph**: lazy array operations; nodes have a `shape`.
* **kernel**: scalar expressions over ranges, with one index per buffer axis, and stores.
* **linear**: a flat list of uops in execution order; dtypes may be vectors.

Elementwise (ALU) ops are the same at all three levels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from . import dtypes
from .dtypes import DType

if TYPE_CHECKING:
    from .uop import UOp

#: A dtype rule returns None for a well-typed node, or what is wrong with it.
Rule = Callable[[DType, "tuple[UOp, ...]", Any], "str | None"]


class Effect(Enum):
    """What a uop does besides giving a value."""

    PURE = "pure"
    READ = "reads memory"
    WRITE = "writes memory"
    CONTROL = "opens or closes a block"
    DEFINE = "declares storage or a parameter"
    SYNC = "synchronises threads"


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One operation.  Compared and hashed by identity.

    Attributes
    ----------
    name
        Printed form and hook key.
    levels
        Where it may stand: any of "g" (graph), "k" (kernel), "l" (linear).
    operands
        Names of the operands; "*name" is any number of them, "name?" an optional last one.
    rule
        The dtype rule.
    effect
        See `Effect`.
    meaning
        One line for documentation; also gives the meaning of `arg` where the op has one.
    group
        Which hook renders it: "alu", "cast", "const", "index", "movement", "memory", "control", "vector",
        "define" or "graph".
    """

    name: str
    levels: str
    operands: tuple[str, ...]
    rule: Rule
    effect: Effect
    group: str
    meaning: str

    @property
    def arity(self) -> tuple[int, int | None]:
        """Smallest and largest number of operands; None: no limit."""
        fixed = sum(not o.startswith("*") and not o.endswith("?") for o in self.operands)
        if any(o.startswith("*") for o in self.operands):
            return fixed, None
        return fixed, len(self.operands)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return op_named, (self.name,)


OPS: dict[str, Op] = {}


def op_named(name: str) -> Op:
    """Return the op that is called `name`, or raise `UnknownNameError`."""
    try:
        return OPS[name]
    except KeyError:
        from ..errors import UnknownNameError

        raise UnknownNameError("op", name, OPS) from None


# -- dtype rules ---------------------------------------------------------------------------------------------


def _any(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    return None


def _same(kinds: str) -> Rule:
    """Every operand has the result's dtype, whose kind is among `kinds` (b, i, u, f)."""
    allowed = {"b": "bool", "i": "int", "u": "uint", "f": "float"}
    kind_set = {allowed[k] for k in kinds}

    def rule(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
        if dtype.kind not in kind_set:
            return f"dtype {dtype} is not one of {', '.join(sorted(kind_set))}"
        for s in src:
            if s.dtype is not dtype:
                return f"operand {src.index(s)} is {s.dtype}, expected {dtype}"
        return None

    return rule


def _compare(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    if src[0].dtype is not src[1].dtype:
        return f"compares {src[0].dtype} with {src[1].dtype}"
    if dtype is not dtypes.bool_.vector(src[0].dtype.lanes):
        return f"gives {dtype}, expected bool with {src[0].dtype.lanes} lanes"
    return None


def _where(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    if src[0].dtype.kind != "bool" or src[0].dtype.lanes not in (1, dtype.lanes):
        return f"condition is {src[0].dtype}"
    if src[1].dtype is not dtype or src[2].dtype is not dtype:
        return f"arms are {src[1].dtype} and {src[2].dtype}, expected {dtype}"
    return None


def _cast(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    return None if dtype.lanes == src[0].dtype.lanes else f"changes lanes from {src[0].dtype} to {dtype}"


def _bitcast(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    a = src[0].dtype
    same = dtype.bits == a.bits and dtype.lanes == a.lanes
    return None if same else f"size of {a} differs from that of {dtype}"


def _index(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    return None if dtype is dtypes.index else f"index arithmetic has dtype {dtype}"


def _bool(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    return None if dtype is dtypes.bool_ else f"mask has dtype {dtype}"


_PYTHON_TYPES: dict[str, type] = {"bool": bool, "int": int, "uint": int, "float": float}


def _const(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    wanted = _PYTHON_TYPES.get(dtype.kind)
    if wanted is None or type(arg) is not wanted:
        return f"value {arg!r} does not suit {dtype}"
    value: Any = arg
    if wanted is int and not dtype.min <= value <= dtype.max:
        return f"value {arg} is out of range of {dtype}"
    return None


def _load(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    if src[0].dtype.scalar is not dtype.scalar:
        return f"loads {dtype} from a buffer of {src[0].dtype}"
    return None


def _store(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    return None if dtype is dtypes.void else f"a store has dtype {dtype}"


def _void(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    return None if dtype is dtypes.void else f"has dtype {dtype}, expected void"


def _first(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    return None if src[0].dtype is dtype else f"is {dtype} of an operand of {src[0].dtype}"


def _broadcast(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    ok = src[0].dtype.lanes == 1 and src[0].dtype is dtype.scalar and dtype.lanes > 1
    return None if ok else f"broadcasts {src[0].dtype} to {dtype}"


def _vectorize(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    if len(src) != dtype.lanes or any(s.dtype is not dtype.scalar for s in src):
        return f"builds {dtype} from {len(src)} operands of {[s.dtype for s in src]}"
    return None


def _gep(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    vector, *second = [s.dtype for s in src]
    if vector.scalar is not dtype.scalar or not isinstance(arg, tuple) or len(arg) != dtype.lanes:
        return f"takes lanes {arg} of {vector} as {dtype}"
    if any(d is not vector or vector.lanes == 1 for d in second):
        return f"takes lanes of two vectors of one dtype, not of {vector} and {second[0]}"
    if any(not 0 <= i < len(src) * vector.lanes for i in arg):
        return f"lane out of range: {arg} of {vector}"
    return None


def _lanes(dtype: DType, src: tuple[UOp, ...], arg: Any) -> str | None:
    return None if src[0].dtype.scalar is dtype else f"folds {src[0].dtype} to {dtype}"


def _op(
    name: str, levels: str, operands: str, rule: Rule, group: str, meaning: str, effect: Effect = Effect.PURE
) -> Op:
    op = Op(name, levels, tuple(operands.split()), rule, effect, group, meaning)
    OPS[name] = op
    return op


# -- elementwise ---------------------------------------------------------------------------------------------
# Integers wrap.  The ops below "Needs expansion" are expanded before emission on targets that lack them.

ADD = _op("ADD", "gkl", "x y", _same("biuf"), "alu", "x + y; logical or on bool")
SUB = _op("SUB", "gkl", "x y", _same("iuf"), "alu", "x - y")
MUL = _op("MUL", "gkl", "x y", _same("biuf"), "alu", "x * y; logical and on bool")
FDIV = _op("FDIV", "gkl", "x y", _same("f"), "alu", "x / y, correctly rounded")
NEG = _op("NEG", "gkl", "x", _same("iuf"), "alu", "-x; the sign bit flipped for floats")
SQRT = _op("SQRT", "gkl", "x", _same("f"), "alu", "square root, correctly rounded")
FLOOR = _op("FLOOR", "gkl", "x", _same("f"), "alu", "largest integer not above x")
CEIL = _op("CEIL", "gkl", "x", _same("f"), "alu", "smallest integer not below x")
TRUNC = _op("TRUNC", "gkl", "x", _same("f"), "alu", "x with its fraction dropped")
RINT = _op("RINT", "gkl", "x", _same("f"), "alu", "nearest integer, ties to even")
MULACC = _op("MULACC", "kl", "x y z", _same("f"), "alu",
             "x * y + z with one rounding or two, whichever is faster")  # fmt: skip
MAXIMUM = _op("MAXIMUM", "gkl", "x y", _same("biuf"), "alu", "the larger; NaN if either is NaN")
MINIMUM = _op("MINIMUM", "gkl", "x y", _same("biuf"), "alu", "the smaller; NaN if either is NaN")
AND = _op("AND", "gkl", "x y", _same("biu"), "alu", "bitwise (logical on bool) and")
OR = _op("OR", "gkl", "x y", _same("biu"), "alu", "bitwise (logical on bool) or")
XOR = _op("XOR", "gkl", "x y", _same("biu"), "alu", "bitwise (logical on bool) exclusive or")
NOT = _op("NOT", "gkl", "x", _same("biu"), "alu", "bitwise (logical on bool) complement")
SHL = _op("SHL", "gkl", "x n", _same("iu"), "alu", "x << n; 0 when n >= bits; undefined for negative n")
SHR = _op("SHR", "gkl", "x n", _same("iu"), "alu",
          "x >> n, arithmetic for signed; all sign bits when n >= bits")  # fmt: skip
CMPLT = _op("CMPLT", "gkl", "x y", _compare, "alu", "x < y; false if either is NaN")
CMPLE = _op("CMPLE", "gkl", "x y", _compare, "alu", "x <= y; false if either is NaN")
CMPEQ = _op("CMPEQ", "gkl", "x y", _compare, "alu", "x == y; false if either is NaN")
CMPNE = _op("CMPNE", "gkl", "x y", _compare, "alu", "x != y; true if either is NaN")
WHERE = _op("WHERE", "gkl", "condition x y", _where, "alu", "x where the condition holds, else y")
# Linear only: what the machine divides with.  The divisor is never 0, nor -1 with the smallest dividend.
TRUNCDIV = _op("TRUNCDIV", "l", "x y", _same("iu"), "alu", "integer x / y rounded toward zero; y is safe")
TRUNCMOD = _op("TRUNCMOD", "l", "x y", _same("iu"), "alu", "remainder of TRUNCDIV, with x's sign; y is safe")
USHL = _op("USHL", "l", "x n", _same("iu"), "alu", "x << n with 0 <= n < bits")
USHR = _op("USHR", "l", "x n", _same("iu"), "alu", "x >> n with 0 <= n < bits; arithmetic for signed")
# Needs expansion on most targets (codegen/functions.py).
FLOORDIV = _op("FLOORDIV", "gk", "x y", _same("iuf"), "alu",
               "x / y rounded down; integer x // 0 is 0, MIN // -1 is MIN")  # fmt: skip
MOD = _op("MOD", "gk", "x y", _same("iuf"), "alu", "x - y * (x // y), with y's sign; integer x % 0 is 0")
POW = _op("POW", "gkl", "x y", _same("iuf"), "alu", "x ** y")
ATAN2 = _op("ATAN2", "gkl", "y x", _same("f"), "alu", "angle of the point (x, y)")

UNARY_FUNCTIONS: tuple[Op, ...] = tuple(
    _op(name, "gkl", "x", _same("f"), "alu", meaning)
    for name, meaning in (
        ("EXP", "e ** x"), ("EXP2", "2 ** x"), ("EXPM1", "e ** x - 1"),
        ("LOG", "natural logarithm"), ("LOG2", "base 2 logarithm"), ("LOG10", "base 10 logarithm"),
        ("LOG1P", "log(1 + x)"),
        ("SIN", "sine of radians"), ("COS", "cosine of radians"), ("TAN", "tangent of radians"),
        ("ASIN", "inverse sine"), ("ACOS", "inverse cosine"), ("ATAN", "inverse tangent"),
        ("SINH", "hyperbolic sine"), ("COSH", "hyperbolic cosine"), ("TANH", "hyperbolic tangent"),
        ("ASINH", "inverse hyperbolic sine"), ("ACOSH", "inverse hyperbolic cosine"),
        ("ATANH", "inverse hyperbolic tangent"), ("ERF", "error function"),
    )
)  # fmt: skip
(
    EXP, EXP2, EXPM1, LOG, LOG2, LOG10, LOG1P, SIN, COS, TAN, ASIN, ACOS, ATAN,
    SINH, COSH, TANH, ASINH, ACOSH, ATANH, ERF,
) = UNARY_FUNCTIONS  # fmt: skip

CAST = _op("CAST", "gkl", "x", _cast, "cast",
           "the value converted; float to int truncates and wraps through int64, NaN is 0, uint64 is exact "
           "below 2**64; linear: the value is in range")  # fmt: skip
BITCAST = _op("BITCAST", "gkl", "x", _bitcast, "cast", "reinterpret the bits")
CONST = _op("CONST", "gkl", "", _const, "const", "a scalar constant; arg: the value")

# -- graph ---------------------------------------------------------------------------------------------------
BUFFER = _op("BUFFER", "g", "", _any, "graph", "stored data; arg: (number, shape, device)", Effect.DEFINE)
IOTA = _op("IOTA", "g", "", _any, "graph", "0, 1, 2 ...; arg: length")
REDUCE_AXIS = _op("REDUCE_AXIS", "g", "x", _first, "graph", "fold axes to length 1; arg: (op, axes)")
GATHER = _op("GATHER", "g", "x *indices", _first, "graph",
             "x[i0, i1, ...] over x's first axes, 0 where out of bounds; "
             "shape: that of the indices, then the rest of x's")  # fmt: skip
CONTIGUOUS = _op("CONTIGUOUS", "g", "x", _first, "graph", "x, stored")
COPY = _op("COPY", "g", "x", _first, "graph", "x on another device; arg: its name")
RESHAPE = _op("RESHAPE", "g", "x", _first, "movement", "same elements in row-major order; arg: shape")
PERMUTE = _op("PERMUTE", "g", "x", _first, "movement", "axes reordered; arg: axes")
EXPAND = _op("EXPAND", "g", "x", _first, "movement", "axes of length 1 repeated; arg: shape")
PAD = _op("PAD", "g", "x", _first, "movement", "zeros around; arg: ((before, after), ...)")
SHRINK = _op("SHRINK", "g", "x", _first, "movement", "a window; arg: ((begin, end), ...)")
FLIP = _op("FLIP", "g", "x", _first, "movement", "axes reversed; arg: axes")

# -- kernel: index arithmetic (canonical when built, see index.py) -------------------------------------------
RANGE = _op("RANGE", "kl", "size?", _any, "control",
            "a loop index, 0 <= i < size; arg: (name, size or None, axis kind)", Effect.CONTROL)  # fmt: skip
VAR = _op("VAR", "gkl", "", _any, "define",
          "an integer bound at launch; arg: (name, lowest, highest)", Effect.DEFINE)  # fmt: skip
AFFINE = _op("AFFINE", "k", "*atoms", _index, "index",
             "constant + sum(coefficient * atom); arg: (constant, coefficients)")  # fmt: skip
IDIV = _op("IDIV", "k", "x", _index, "index", "x // n, rounded down; arg: n > 0")
IMOD = _op("IMOD", "k", "x", _index, "index", "x - n * (x // n), never negative; arg: n > 0")
IMUL = _op("IMUL", "k", "x y", _index, "index", "product of two index expressions, neither constant")
IVALUE = _op("IVALUE", "k", "x", _index, "index", "an integer value as an index; arg: (lowest, highest)")
GE0 = _op("GE0", "k", "x", _bool, "index", "mask: x >= 0")
ALL = _op("ALL", "k", "*masks", _bool, "index", "mask: every one of the masks")

# -- kernel and linear: memory -------------------------------------------------------------------------------
PARAM = _op("PARAM", "kl", "", _any, "define",
            "a buffer argument; arg: (name, shape, writable)", Effect.DEFINE)  # fmt: skip
LOCAL = _op("LOCAL", "kl", "", _any, "define",
            "temporary storage; arg: (name, shape, address space), a size of 0 is a stride of 0",
            Effect.DEFINE)  # fmt: skip
IMAGE = _op("IMAGE", "l", "", _any, "define",
            "an image argument: texels of four elements; arg: (name, (height, width), writable)",
            Effect.DEFINE)  # fmt: skip
LOAD = _op("LOAD", "kl", "buffer *index", _load, "memory",
           "kernel: (buffer, mask, one index per axis), 0 where masked; "
           "linear: (buffer, flat index, gate?), arg: alignment in elements", Effect.READ)  # fmt: skip
STORE = _op("STORE", "kl", "buffer *index", _store, "memory",
            "kernel: (buffer, mask, value, one index per axis); "
            "linear: (buffer, flat index, value, gate?), arg: alignment in elements, or \"stream\": a whole "
            "vector, aligned if the buffer is aligned to 64 bytes, that need not stay in the caches",
            Effect.WRITE)  # fmt: skip
IMAGE_LOAD = _op("IMAGE_LOAD", "l", "image x y gate?", _any, "memory",
                 "the texel at integer coordinates, as float32 lanes; 0 where the gate is false",
                 Effect.READ)  # fmt: skip
IMAGE_STORE = _op("IMAGE_STORE", "l", "image x y value gate?", _void, "memory",
                  "write a texel, given as float32 lanes", Effect.WRITE)  # fmt: skip
REDUCE = _op("REDUCE", "k", "x *ranges", _first, "alu", "fold x over ranges; arg: op")

# -- linear --------------------------------------------------------------------------------------------------
END = _op("END", "l", "range", _void, "control", "closes the loop", Effect.CONTROL)
IF = _op("IF", "l", "condition", _void, "control",
         "opens a block that runs when the condition holds", Effect.CONTROL)  # fmt: skip
ENDIF = _op("ENDIF", "l", "if", _void, "control", "closes the block", Effect.CONTROL)
SPECIAL = _op("SPECIAL", "l", "", _any, "define", "a grid or thread index; arg: (name, size)", Effect.DEFINE)
BARRIER = _op("BARRIER", "l", "", _void, "control",
              "every thread of the block arrives before any goes on", Effect.SYNC)  # fmt: skip
BROADCAST = _op("BROADCAST", "l", "x", _broadcast, "vector", "every lane is x")
VECTORIZE = _op("VECTORIZE", "l", "*lanes", _vectorize, "vector", "a vector of its operands")
GEP = _op("GEP", "l", "x y?", _gep, "vector",
          "lanes of a vector, or of two, counted on from one to the other; arg: their numbers")  # fmt: skip
FOLD = _op("FOLD", "l", "x", _lanes, "vector", "the lanes of x folded to a scalar; arg: op")
SHUFFLE = _op("SHUFFLE", "l", "x", _first, "control",
              "x of the thread whose number differs by arg in its bits (exclusive or)",
              Effect.SYNC)  # fmt: skip
WMMA = _op("WMMA", "kl", "a b *c", _any, "alu",
           "a @ b + c by a matrix instruction on fragments; in a kernel a @ b, with the axes of the elements "
           "of a, b and the result in place of c; arg: name of the descriptor")  # fmt: skip
STAGE_COPY = _op("STAGE_COPY", "l", "to index from index", _void, "control",
                 "starts an asynchronous copy of arg elements to local memory", Effect.WRITE)  # fmt: skip
STAGE_COMMIT = _op("STAGE_COMMIT", "l", "", _void, "control",
                   "closes a group of asynchronous copies", Effect.SYNC)  # fmt: skip
STAGE_WAIT = _op("STAGE_WAIT", "l", "", _void, "control",
                 "waits until at most arg groups are in flight", Effect.SYNC)  # fmt: skip

MOVEMENT_OPS = frozenset({RESHAPE, PERMUTE, EXPAND, PAD, SHRINK, FLIP})
ALU_OPS = frozenset(o for o in OPS.values() if o.group == "alu" and o not in (REDUCE, WMMA))
COMPARISONS = frozenset({CMPLT, CMPLE, CMPEQ, CMPNE})
COMMUTATIVE = frozenset({ADD, MUL, MAXIMUM, MINIMUM, AND, OR, XOR, CMPEQ, CMPNE})
#: Ops that a REDUCE may fold with.
REDUCE_OPS: tuple[Op, ...] = (ADD, MUL, MAXIMUM, MINIMUM, AND, OR, XOR)


def identity(op: Op, dtype: DType) -> bool | int | float:
    """Return the value that `op` leaves its other operand unchanged with, in `dtype`.

    -0.0 would be the exact identity of a float sum; 0.0 is used, so that an empty sum is 0 as in NumPy.
    """
    if op in (ADD, OR, XOR):
        return {"bool": False, "float": 0.0}.get(dtype.kind, 0)
    if op is MUL:
        return {"bool": True, "float": 1.0}.get(dtype.kind, 1)
    if op is AND:
        return True if dtype.kind == "bool" else (-1 if dtype.kind == "int" else dtype.max)
    if op is MAXIMUM:
        return dtype.min
    if op is MINIMUM:
        return dtype.max
    raise KeyError(f"{op} is not a reduction")
