"""The one textual form of the IR: printing, parsing, and a one-line form for people.

A graph or kernel is one line per node, operands before users, and a `return` line; a linear program is its
list of uops, one line each, without `return`.  `parse(dump(x)) is x`; `parse_program(dump_program(p)) == p`.

    %0 = PARAM float32 ("x", (4, 4), False)
    %1 = CONST float32 1.0
    return %0

The grammar is in docs/ir.md.  Nothing here recurses over nodes, so the depth of a graph is not limited.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..errors import InternalError, ParseError, closest_match
from . import dtypes, ops
from .dtypes import DType, parse_dtype
from .ops import OPS, Op
from .uop import UOp, toposort

# -- printing ------------------------------------------------------------------------------------------------


def _tuple(value: tuple[Any, ...]) -> str:
    inner = ", ".join([format_arg(v) for v in value])
    return f"({inner},)" if len(value) == 1 else f"({inner})"


def _size(u: UOp) -> str:
    """Return an index expression that stands in an argument, a symbolic size, as `OP(arg, operands...)`."""
    return f"{u.op.name}({', '.join([format_arg(u.arg), *[_size(s) for s in u.src]])})"


_FORMAT: dict[type, Callable[[Any], str]] = {
    bool: repr, int: repr, float: repr, type(None): repr, str: json.dumps, tuple: _tuple,
    DType: repr, Op: repr, UOp: _size,
}  # fmt: skip


def format_arg(value: Any) -> str:
    """Return the text of an argument: a number, bool, None, string, dtype, op, size, or a tuple of these."""
    form = _FORMAT.get(type(value))
    if form is None:
        raise InternalError(f"an argument of type {type(value).__name__} has no textual form: {value!r}")
    return form(value)


def format_line(number: int, u: UOp, operands: Iterable[int]) -> str:
    """Return the line that defines `u` as %number."""
    words = [f"%{number} = {u.op.name} {u.dtype!r}", *[f"%{n}" for n in operands]]
    if u.arg is not None:
        words.append(format_arg(u.arg))
    return " ".join(words)


def dump(x: UOp | Sequence[UOp]) -> str:
    """Return the text of a graph or kernel with one root or several."""
    roots = (x,) if isinstance(x, UOp) else tuple(x)
    numbers: dict[UOp, int] = {}
    lines = []
    for n, u in enumerate(toposort(roots)):
        numbers[u] = n
        lines.append(format_line(n, u, [numbers[s] for s in u.src]))
    names = [f"%{numbers[r]}" for r in roots]
    if isinstance(x, UOp):
        lines.append(f"return {names[0]}")
    else:
        lines.append(f"return ({', '.join(names)}{',' * (len(names) == 1)})")
    return "\n".join(lines)


def program_lines(program: Iterable[UOp]) -> Iterator[tuple[int | None, str]]:
    """Yield (position in the program, line) for every line that `dump_program` prints.

    An operand that does not stand where it is visible (which the verifier refuses) is named by a `let` line
    first, so that any list of uops can be printed; such lines have no position.
    """
    number = 0
    numbers: dict[UOp, int] = {}
    shadowed: list[list[tuple[UOp, int | None]]] = [[]]  # what to restore when each open block closes
    for position, u in enumerate(program):
        if u.op in (ops.END, ops.ENDIF) and len(shadowed) > 1:
            indent = "  " * (len(shadowed) - 2)
        else:
            indent = "  " * (len(shadowed) - 1)
        for s in toposort(s for s in u.src if s not in numbers):
            if s not in numbers:
                yield None, f"{indent}let {format_line(number, s, [numbers[o] for o in s.src])}"
                shadowed[-1].append((s, None))
                numbers[s] = number
                number += 1
        line = format_line(number, u, [numbers[s] for s in u.src])
        if u.op in (ops.END, ops.ENDIF) and len(shadowed) > 1:
            for s, before in reversed(shadowed.pop()):
                if before is None:
                    del numbers[s]
                else:
                    numbers[s] = before
        elif u.op in (ops.RANGE, ops.IF):
            shadowed.append([])
        shadowed[-1].append((u, numbers.get(u)))
        numbers[u] = number
        number += 1
        yield position, indent + line


def dump_program(program: Iterable[UOp]) -> str:
    """Return the text of a linear program.

    A uop that stands more than once gets a new number each time; operands name the latest visible one.
    """
    return "\n".join([line for _, line in program_lines(program)])


# -- parsing -------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""[ \t\r]*(?:
      (?P<ref>%\w+)
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<number>-?\d+(?P<fraction>(?:\.\d+)?(?:[eE][+-]?\d+)?))
    | (?P<word>-?[A-Za-z_]\w*)
    | (?P<mark>[=(),])
    | (?P<newline>(?:\#[^\n]*)?(?:\n|\Z))
    )""",
    re.VERBOSE,
)
_WORDS: dict[str, Any] = {
    "None": None, "True": True, "False": False, "inf": math.inf, "-inf": -math.inf, "nan": math.nan,
}  # fmt: skip


_SIZE_OPS = frozenset({ops.VAR, ops.AFFINE, ops.IMUL, ops.IDIV, ops.IMOD})


class _Parser:
    """A cursor over the text; one token of look-ahead in `kind`, `token` and `start`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.end = 0
        self.names: dict[str, UOp] = {}
        self.advance()

    def advance(self) -> None:
        """Read the next token."""
        found = _TOKEN.match(self.text, self.end)
        if found is None:
            at = self.end + len(self.text[self.end :]) - len(self.text[self.end :].lstrip(" \t\r"))
            raise ParseError(f"unexpected character {self.text[at : at + 1]!r}", self.text, at)
        kind = found.lastgroup if found.lastgroup != "fraction" else "number"
        assert kind is not None
        self.kind, self.start, self.end = kind, found.start(kind), found.end()
        self.token = found[kind]
        self.is_float = kind == "number" and bool(found["fraction"])

    def fail(self, message: str, position: int | None = None) -> ParseError:
        return ParseError(message, self.text, self.start if position is None else position)

    def expect(self, kind: str, what: str) -> str:
        """Return the current token, which has to be of `kind`, and go on to the next."""
        if self.kind != kind:
            raise self.fail(f"expected {what}, found {self.describe()}")
        token = self.token
        if kind != "newline" or self.end < len(self.text):
            self.advance()
        return token

    def mark(self, mark: str) -> bool:
        """Whether the current token is this punctuation, which is then consumed."""
        if self.kind == "mark" and self.token == mark:
            self.advance()
            return True
        return False

    def describe(self) -> str:
        if self.kind == "newline":
            return "the end of the line" if self.end < len(self.text) else "the end"
        return repr(self.token)

    def at_end(self) -> bool:
        """Skip blank lines and comments; whether nothing follows."""
        while self.kind == "newline":
            if self.end >= len(self.text):
                return True
            self.advance()
        return False

    def reference(self) -> UOp:
        """Return the node that a %name stands for."""
        start = self.start
        name = self.expect("ref", "a %name")
        try:
            return self.names[name]
        except KeyError:
            match = closest_match(name, self.names)
            hint = f" (did you mean {match!r}?)" if match else ""
            raise self.fail(f"{name} is used before it is defined{hint}", start) from None

    def atom(self) -> Any:
        """Return the value of a number, string or bare word."""
        kind, token, start = self.kind, self.token, self.start
        value: Any
        if kind == "number":
            value = float(token) if self.is_float else int(token)
        elif kind == "string":
            try:
                value = json.loads(token, strict=False)
            except json.JSONDecodeError as error:
                raise self.fail(f"malformed string: {error.msg}", start + error.pos) from None
        elif kind == "word" and token in _WORDS:
            value = _WORDS[token]
        elif kind == "word" and token in OPS:
            value = OPS[token]
        elif kind == "word":
            value = self.dtype("value", (*_WORDS, *OPS))
            return value
        else:
            raise self.fail(f"expected a value, found {self.describe()}")
        self.advance()
        return value

    def value(self) -> Any:
        """Return an argument: an atom, a tuple or a size, nested to any depth."""
        open_tuples: list[list[Any]] = []
        sizes: list[Op | None] = []  # for each open tuple, the op of the size that it belongs to
        while True:
            if self.mark("("):
                open_tuples.append([])
                sizes.append(None)
                if not self.mark(")"):
                    continue
                value: Any = self.close(sizes.pop(), open_tuples.pop())
            else:
                value = self.atom()
                if type(value) is Op and self.mark("("):
                    open_tuples.append([])
                    sizes.append(value)
                    continue
            while open_tuples:
                open_tuples[-1].append(value)
                if self.mark(",") and not (self.kind == "mark" and self.token == ")"):
                    break
                if not self.mark(")"):
                    raise self.fail(f"expected ',' or ')', found {self.describe()}")
                value = self.close(sizes.pop(), open_tuples.pop())
            else:
                return value

    def close(self, op: Op | None, items: list[Any]) -> Any:
        """Return a tuple, or the size that `op(arg, operands...)` stands for."""
        if op is None:
            return tuple(items)
        arg, *src = items or [None]
        least, most = op.arity
        if op not in _SIZE_OPS or len(src) < least or (most is not None and len(src) > most):
            raise self.fail(f"{op} with {len(src)} operands is no size; sizes are VAR and index arithmetic")
        if any(type(s) is not UOp for s in src):
            raise self.fail(f"an operand of {op} is no size")
        try:
            return UOp(op, dtypes.index, tuple(src), arg)
        except (TypeError, ValueError, IndexError, AttributeError, InternalError) as error:
            raise self.fail(f"{op} cannot be built with argument {arg!r} ({op.meaning}): {error}") from None

    def dtype(self, what: str = "dtype", others: Iterable[str] = ()) -> DType:
        start = self.start
        name = self.expect("word", f"a {what}")
        try:
            return parse_dtype(name)
        except KeyError:
            known = [repr(d) for d in (*dtypes.ARRAY_DTYPES, dtypes.void, dtypes.index)]
            match = closest_match(name, [*known, *others])
            hint = f" (did you mean {match!r}?)" if match else ""
            raise self.fail(f"unknown {what} {name!r}{hint}", start) from None

    def definition(self) -> UOp:
        """Return the node of one line `%name = OP dtype operands... argument?`."""
        name_start = self.start
        name = self.expect("ref", "a definition such as '%0 = ...'")
        if name in self.names:
            raise self.fail(f"{name} is defined twice", name_start)
        if not self.mark("="):
            raise self.fail(f"expected '=', found {self.describe()}")
        start = self.start
        op_name = self.expect("word", "the name of an op")
        op = OPS.get(op_name)
        if op is None:
            match = closest_match(op_name, OPS) or closest_match(op_name.upper(), OPS)
            hint = f" (did you mean {match!r}?)" if match else ""
            raise self.fail(f"unknown op {op_name!r}{hint}", start)
        dtype = self.dtype()
        src = []
        while self.kind == "ref":
            src.append(self.reference())
        least, most = op.arity
        if len(src) < least or (most is not None and len(src) > most):
            wanted = " ".join(op.operands) or "none"
            raise self.fail(f"{op} has {len(src)} operands; it takes {wanted}", start)
        arg_start = self.start
        arg = self.value() if self.kind != "newline" else None
        self.expect("newline", "the end of the line")
        try:
            node = UOp(op, dtype, tuple(src), arg)
        except (TypeError, ValueError, IndexError, AttributeError, InternalError) as error:
            message = f"{op} cannot be built with argument {arg!r} ({op.meaning}): {error}"
            raise self.fail(message, arg_start) from None
        self.names[name] = node
        return node


def parse(text: str) -> UOp | tuple[UOp, ...]:
    """Return the root, or the tuple of roots, of a graph or kernel.

    Raises
    ------
    ParseError
        With the line and a caret; an unknown op or dtype names the closest match.
    """
    p = _Parser(text)
    while not p.at_end():
        if p.kind == "word" and p.token == "return":
            p.advance()
            found: UOp | tuple[UOp, ...]
            if p.mark("("):
                roots = []
                while not p.mark(")"):
                    roots.append(p.reference())
                    if not p.mark(",") and not (p.kind == "mark" and p.token == ")"):
                        raise p.fail(f"expected ',' or ')', found {p.describe()}")
                found = tuple(roots)
            else:
                found = p.reference()
            p.expect("newline", "the end of the line")
            if not p.at_end():
                raise p.fail("text after the 'return' line")
            return found
        p.definition()
    raise p.fail("expected a last line such as 'return %0'; a linear program is read by parse_program")


def parse_arg(text: str) -> Any:
    """Return the argument that `format_arg` wrote."""
    return _Parser(text).value()


def parse_program(text: str) -> list[UOp]:
    """Return the uops of a linear program.

    Raises
    ------
    ParseError
        With the line and a caret; an unknown op or dtype names the closest match.
    """
    p = _Parser(text)
    program = []
    while not p.at_end():
        if p.kind == "word" and p.token == "let":
            p.advance()
            p.definition()
        else:
            program.append(p.definition())
    return program


# -- one line for people -------------------------------------------------------------------------------------

_INFIX = {
    ops.ADD: "+", ops.SUB: "-", ops.MUL: "*", ops.FDIV: "/", ops.FLOORDIV: "//", ops.MOD: "%", ops.POW: "**",
    ops.AND: "&", ops.OR: "|", ops.XOR: "^", ops.SHL: "<<", ops.SHR: ">>", ops.USHL: "<<", ops.USHR: ">>",
    ops.CMPLT: "<", ops.CMPLE: "<=", ops.CMPEQ: "==", ops.CMPNE: "!=", ops.IMUL: "*",
}  # fmt: skip
_NAMED = frozenset({ops.PARAM, ops.IMAGE, ops.LOCAL, ops.RANGE, ops.VAR, ops.SPECIAL})
_PREFIXED = frozenset({ops.NEG, ops.NOT, ops.IDIV, ops.IMOD, ops.GE0, ops.ALL})
_DEPTH = 48
_CUT = "..."


class _Expr:
    """Writes one expression; `room` bounds the nodes visited, `_DEPTH` the nesting."""

    def __init__(self, room: int) -> None:
        self.room = room

    def show(self, u: UOp, depth: int) -> str:
        self.room -= 1
        if self.room < 0 or depth > _DEPTH:
            return _CUT
        op, depth = u.op, depth + 1
        if op in _NAMED:
            return str(u.arg[0])
        if op is ops.CONST:
            return repr(u.arg)
        if op is ops.BUFFER:
            return f"buffer{u.arg[0]}"
        if op is ops.AFFINE:
            return self.affine(u, depth)
        if op in (ops.LOAD, ops.STORE):
            return self.memory(u, depth)
        if op is ops.CAST:
            return f"{u.dtype!r}({self.bare(u.src[0], depth)})"
        if op in _INFIX and len(u.src) == 2:
            return f"({self.show(u.src[0], depth)} {_INFIX[op]} {self.show(u.src[1], depth)})"
        if op not in _PREFIXED:
            arguments = [self.bare(s, depth) for s in u.src]
            if u.arg is not None:
                arguments.append(format_arg(u.arg))
            return f"{op.name.lower()}({', '.join(arguments)})"
        src = [self.show(s, depth) for s in u.src]
        if op is ops.NEG:
            return f"-{src[0]}"
        if op is ops.NOT:
            return f"~{src[0]}"
        if op is ops.IDIV:
            return f"({src[0]})//{u.arg}" if u.src[0].op is ops.AFFINE else f"{src[0]}//{u.arg}"
        if op is ops.IMOD:
            return f"({src[0]})%{u.arg}" if u.src[0].op is ops.AFFINE else f"{src[0]}%{u.arg}"
        if op is ops.GE0:
            return f"{src[0]} >= 0"
        return " and ".join(src)

    def bare(self, u: UOp, depth: int) -> str:
        """Write an expression that is not part of a larger one: without parentheses around it."""
        text = self.show(u, depth)
        return text[1:-1] if u.op in _INFIX and text.startswith("(") else text

    def affine(self, u: UOp, depth: int) -> str:
        constant, coefficients = u.arg
        text = ""
        for a, k in zip(u.src, coefficients, strict=True):
            atom = self.show(a, depth)
            if abs(k) != 1:
                atom = f"{abs(k)}*({atom})" if a.op in (ops.IDIV, ops.IMOD) else f"{abs(k)}*{atom}"
            text += f"{'-' if k < 0 else '+' if text else ''}{atom}"
        return f"{text}{constant:+d}" if text and constant else text or str(constant)

    def memory(self, u: UOp, depth: int) -> str:
        """Write an access of either form; one that is masked or gated says `if`."""
        buffer, *rest = u.src
        is_store = u.op is ops.STORE
        condition: UOp | None
        if len(rest) > is_store and rest[0].dtype is dtypes.bool_:  # kernel: mask, value?, one index per axis
            condition, value, index = rest[0], rest[1] if is_store else None, rest[1 + is_store :]
            if condition.op is ops.CONST and condition.arg is True:
                condition = None
        else:  # linear: flat index, value?, gate?
            index, value = rest[:1], rest[1] if is_store else None
            condition = rest[1 + is_store] if len(rest) > 1 + is_store else None
        where = ", ".join([self.bare(i, depth) for i in index])
        if condition is not None:
            where += f" if {self.bare(condition, depth)}"
        access = f"{self.show(buffer, depth)}[{where}]"
        return access if value is None else f"{access} = {self.bare(value, depth)}"


def expr(u: UOp, limit: int = 240) -> str:
    """Return `u` as one line for people, such as `x[r0, 4*r1+2] * 2.0`, of at most `limit` characters.

    For error messages and documentation; it leaves out dtypes and is not parsed.
    """
    text = _Expr(limit).bare(u, 0)
    return text if len(text) <= limit else text[: max(limit - len(_CUT), 0)] + _CUT
