"""The verifier: what holds for every graph, kernel and linear program between two passes.

The op table says at which level an op stands, how many operands it has and which dtypes; here are the rules
that need more: shapes, ranges, scopes and memory accesses.  A failure names the pass and the line, shows the
program around it, and leaves a file that `text.parse` or `text.parse_program` reads back.

Files go to the folder that the environment variable RETARGET_REPRODUCER_DIR names, by default the system's
temporary one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from ..errors import VerifyError
from . import dtypes, ops
from .dtypes import DType
from .ops import OPS, Op, Rule
from .text import dump, program_lines
from .uop import UOp, numel, sort_key, toposort

Level = Literal["graph", "kernel"]
#: A check returns None for a well-formed node, or what is wrong with it.
Check = Callable[[UOp], "str | None"]

# -- arguments, at every level -------------------------------------------------------------------------------


def _is_size(n: Any) -> bool:
    """Whether `n` is a length: an int, or an index expression that is never negative."""
    return type(n) is int and n >= 0 if type(n) is not UOp else n.dtype is dtypes.index and n.vmin >= 0


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple) and all(_is_size(n) for n in shape)


def _are_axes(axes: Any, count: int) -> bool:
    """Whether `axes` are distinct axes of an array that has `count` of them."""
    if not isinstance(axes, tuple) or len(set(axes)) != len(axes):
        return False
    return all(type(a) is int and 0 <= a < count for a in axes)


def _folds(op: Any, dtype: DType) -> str | None:
    """What is wrong with folding values of `dtype` by `op`."""
    if op not in ops.REDUCE_OPS:
        return f"folds with {op}; the ops to fold with are {', '.join([o.name for o in ops.REDUCE_OPS])}"
    probe = UOp(ops.PARAM, dtype, (), ("x", (), False))
    fault: str | None = op.rule(dtype, (probe, probe), None)
    return fault


def _const(u: UOp) -> str | None:
    return "a constant is a scalar; BROADCAST makes a vector of it" if u.dtype.lanes > 1 else None


def _var(u: UOp) -> str | None:
    arg = u.arg
    if not isinstance(arg, tuple) or len(arg) != 3 or type(arg[0]) is not str or not arg[1] <= arg[2]:
        return f"its argument {arg!r} is not (name, lowest, highest)"
    return None


def _buffer_arg(u: UOp) -> str | None:
    arg = u.arg
    if not isinstance(arg, tuple) or len(arg) != 3 or type(arg[0]) is not str or not _is_shape(arg[1]):
        return f"its argument {arg!r} is not (name, shape, ...)"
    kind = bool if u.op is ops.PARAM else str
    if type(arg[2]) is not kind:
        return f"the last part of its argument, {arg[2]!r}, is no {kind.__name__}"
    return None


def _range_arg(u: UOp) -> str | None:
    arg = u.arg
    if not isinstance(arg, tuple) or len(arg) != 3 or type(arg[0]) is not str or type(arg[2]) is not str:
        return f"its argument {arg!r} is not (name, size or None, axis kind)"
    if (arg[1] is None) != (len(u.src) == 1):
        return "the size of a range is either in its argument or its operand"
    return None if arg[1] is None or _is_size(arg[1]) else f"its size is {arg[1]!r}"


# -- graph ---------------------------------------------------------------------------------------------------


def _elementwise(u: UOp) -> str | None:
    for n, s in enumerate(u.src):
        if s.shape and s.shape != u.shape:
            return f"operand {n} has shape {s.shape}, expected {u.shape} or ()"
    return None


def _buffer(u: UOp) -> str | None:
    arg = u.arg
    if not isinstance(arg, tuple) or len(arg) != 3 or not _is_shape(arg[1]) or type(arg[2]) is not str:
        return f"its argument {arg!r} is not (number, shape, device)"
    return None


def _iota(u: UOp) -> str | None:
    return None if _is_size(u.arg) else f"its length is {u.arg!r}"


def _reduce_axis(u: UOp) -> str | None:
    op, axes = u.arg
    if not _are_axes(axes, len(u.src[0].shape)):
        return f"axes {axes} are not distinct axes of shape {u.src[0].shape}"
    return _folds(op, u.dtype)


def _gather(u: UOp) -> str | None:
    x, *indices = u.src
    if not indices or len(indices) > len(x.shape):
        return f"has {len(indices)} indices for shape {x.shape}"
    for n, i in enumerate(indices):
        if not i.dtype.is_int:
            return f"index {n} has dtype {i.dtype}, expected an integer"
        if i.shape != indices[0].shape:
            return f"index {n} has shape {i.shape}, the first one {indices[0].shape}"
    return None


def _copy(u: UOp) -> str | None:
    return None if type(u.arg) is str else f"its device is {u.arg!r}"


def _reshape(u: UOp) -> str | None:
    if not _is_shape(u.arg):
        return f"its shape is {u.arg!r}"
    before, after = numel(u.src[0].shape), numel(u.arg)
    if before != after:
        return f"makes {after} elements, shape {u.arg}, of {before}, shape {u.src[0].shape}"
    return None


def _expand(u: UOp) -> str | None:
    before, after = u.src[0].shape, u.arg
    if not _is_shape(after) or len(after) != len(before):
        return f"expands shape {before} to {after!r}"
    if any(a != b != 1 for b, a in zip(before, after, strict=True)):
        return f"expands shape {before} to {after}: only axes of length 1 repeat"
    return None


def _permute(u: UOp) -> str | None:
    count = len(u.src[0].shape)
    if len(u.arg) != count or not _are_axes(u.arg, count):
        return f"axes {u.arg} are no permutation of the axes of shape {u.src[0].shape}"
    return None


def _pad(u: UOp) -> str | None:
    if not all(_is_size(n) for pair in u.arg for n in pair):
        return f"pads by {u.arg}, which is not all non-negative"
    return None


def _shrink(u: UOp) -> str | None:
    shape = u.src[0].shape
    inside = [0 <= b <= e <= n for (b, e), n in zip(u.arg, shape, strict=False)]
    return None if len(u.arg) == len(shape) and all(inside) else f"the window {u.arg} is not inside {shape}"


def _flip(u: UOp) -> str | None:
    shape = u.src[0].shape
    return None if _are_axes(u.arg, len(shape)) else f"axes {u.arg} are not distinct axes of shape {shape}"


# -- kernel --------------------------------------------------------------------------------------------------


def _index_operands(u: UOp) -> str | None:
    for n, s in enumerate(u.src):
        if s.dtype is not dtypes.index:
            return f"operand {n} is {s.dtype}, expected index"
    return None


def _kernel_range(u: UOp) -> str | None:
    return _range_arg(u) or _index_operands(u) or _index_result(u)


def _kernel_var(u: UOp) -> str | None:
    return _var(u) or _index_result(u)


def _index_result(u: UOp) -> str | None:
    return None if u.dtype is dtypes.index else f"has dtype {u.dtype}, expected index"


def _affine(u: UOp) -> str | None:
    """Sums are canonical: each atom once, in order, and with a coefficient."""
    coefficients = u.arg[1]
    if 0 in coefficients:
        return "a coefficient is 0"
    if coefficients == (1,) and u.arg[0] == 0:
        return "one atom alone stands for itself"
    for n, a in enumerate(u.src):
        if a.op is ops.AFFINE:
            return f"operand {n} is a sum, which has to be merged"
        if n and not sort_key(u.src[n - 1]) < sort_key(a):
            return f"operands {n - 1} and {n} are not in canonical order"
    return _index_operands(u)


def _divide(u: UOp) -> str | None:
    return _index_operands(u) if type(u.arg) is int and u.arg > 0 else f"divides by {u.arg!r}"


def _ivalue(u: UOp) -> str | None:
    return None if u.src[0].dtype.is_int else f"its operand is {u.src[0].dtype}, expected an integer"


def _masks(u: UOp) -> str | None:
    if len(u.src) < 2:
        return "has fewer than two masks"
    for n, s in enumerate(u.src):
        if s.dtype is not dtypes.bool_ or s.op is ops.ALL:
            return f"operand {n} is {s.op} {s.dtype}, expected a single mask"
    return None


def _access(u: UOp, first: int) -> str | None:
    """Check the buffer, the mask and the indices, which begin at operand `first`, of a kernel's access."""
    buffer = u.src[0]
    if buffer.op is not ops.PARAM and buffer.op is not ops.LOCAL:
        return f"accesses {buffer.op}, expected PARAM or LOCAL"
    shape = buffer.arg[1]
    if len(u.src) != first + len(shape):
        return f"has {len(u.src) - first} indices for a buffer of shape {shape}"
    if u.src[1].dtype is not dtypes.bool_:
        return f"its mask is {u.src[1].dtype}, expected bool"
    for n, s in enumerate(u.src[first:]):
        if s.dtype is not dtypes.index:
            return f"index {n} is {s.dtype}, expected index"
    return None


def _kernel_load(u: UOp) -> str | None:
    return _access(u, 2)


def _writable(u: UOp) -> str | None:
    buffer, value = u.src[0], u.src[2]
    if buffer.op is ops.PARAM and not buffer.arg[2]:
        return f"stores to {buffer.arg[0]}, which is read only"
    if value.dtype.scalar is not buffer.dtype.scalar:
        return f"stores {value.dtype} to a buffer of {buffer.dtype}"
    return None


def _kernel_store(u: UOp) -> str | None:
    if len(u.src) < 3:
        return "has no mask and value"
    return _access(u, 3) or _writable(u)


def _reduce(u: UOp) -> str | None:
    ranges = u.src[1:]
    if not ranges or len(set(ranges)) != len(ranges) or any(r.op is not ops.RANGE for r in ranges):
        return "does not fold over one or more distinct ranges"
    return _folds(u.arg, u.dtype)


def _fragment_axes(u: UOp) -> str | None:
    for n, axis in enumerate(u.src[2:], 2):
        if axis.dtype is not dtypes.index:
            return f"operand {n} is {axis.dtype}, expected the axis of a fragment's elements"
    return None


# -- linear --------------------------------------------------------------------------------------------------

_FLAT = (dtypes.int32, dtypes.int64)


def _flat_index(i: UOp) -> str | None:
    return None if i.dtype.scalar in _FLAT else f"its index is {i.dtype}, expected int32 or int64"


def _linear_access(u: UOp, access: DType, gate: UOp | None) -> str | None:
    """Check an access of the lanes of `access`: contiguous at a scalar index, or one at each index."""
    buffer, i = u.src[0], u.src[1]
    if buffer.op is not ops.PARAM and buffer.op is not ops.LOCAL:
        return f"accesses {buffer.op}, expected PARAM or LOCAL"
    lanes, width, index = access.lanes, buffer.dtype.lanes, i.dtype
    if index.scalar not in _FLAT:
        return f"its index is {index}, expected int32 or int64"
    if index.lanes > 1 and lanes != index.lanes:
        return f"accesses {lanes} lanes at {index.lanes} indices"
    if width > 1 and (index.lanes > 1 or lanes != width):
        return f"accesses {access} in a buffer of {buffer.dtype} at an index of {index}"
    if gate is not None and (gate.dtype.kind != "bool" or gate.dtype.lanes not in (1, lanes)):
        return f"its gate is {gate.dtype}, expected bool with 1 or {lanes} lanes"
    aligned = u.arg is None or (type(u.arg) is int and u.arg > 0)
    if not aligned and not (u.op is ops.STORE and u.arg == "stream"):
        return f"its alignment is {u.arg!r}, expected a positive number of elements or None"
    return None


def _linear_load(u: UOp) -> str | None:
    return _linear_access(u, u.dtype, u.src[2] if len(u.src) == 3 else None)


def _linear_store(u: UOp) -> str | None:
    if u.arg == "stream" and (len(u.src) == 4 or u.src[2].dtype.lanes < 2 or u.src[1].dtype.lanes > 1):
        return "streams what is no whole vector: it has a gate, one lane, or an index for each lane"
    return _linear_access(u, u.src[2].dtype, u.src[3] if len(u.src) == 4 else None) or _writable(u)


def _linear_range(u: UOp) -> str | None:
    if u.dtype not in _FLAT:
        return f"has dtype {u.dtype}, expected int32 or int64"
    if u.src and u.src[0].dtype is not u.dtype:
        return f"its size is {u.src[0].dtype}, expected {u.dtype}"
    return _range_arg(u)


def _linear_var(u: UOp) -> str | None:
    return _var(u) or (None if u.dtype in _FLAT else f"has dtype {u.dtype}, expected int32 or int64")


def _special(u: UOp) -> str | None:
    arg = u.arg
    if not isinstance(arg, tuple) or len(arg) != 2 or type(arg[0]) is not str or not _is_size(arg[1]):
        return f"its argument {arg!r} is not (name, size)"
    return None if u.dtype in _FLAT else f"has dtype {u.dtype}, expected int32 or int64"


def _if(u: UOp) -> str | None:
    return None if u.src[0].dtype is dtypes.bool_ else f"its condition is {u.src[0].dtype}, expected bool"


def _closes(opening: Op) -> Check:
    def check(u: UOp) -> str | None:
        return None if u.src[0].op is opening else f"closes {u.src[0].op}, expected {opening}"

    return check


def _fold(u: UOp) -> str | None:
    return _folds(u.arg, u.dtype)


def _number(what: str, lowest: int) -> Check:
    def check(u: UOp) -> str | None:
        ok = type(u.arg) is int and u.arg >= lowest
        return None if ok else f"its {what} is {u.arg!r}, expected an integer of at least {lowest}"

    return check


def _stage_copy(u: UOp) -> str | None:
    to, i, source, j = u.src
    if to.op is not ops.LOCAL or source.op is not ops.PARAM:
        return f"copies from {source.op} to {to.op}, expected from PARAM to LOCAL"
    if to.dtype.scalar is not source.dtype.scalar:
        return f"copies {source.dtype} to {to.dtype}"
    return _flat_index(i) or _flat_index(j) or _number("number of elements", 1)(u)


_TEXEL = dtypes.float32.vector(4)


def _image_arg(u: UOp) -> str | None:
    arg = u.arg
    if not isinstance(arg, tuple) or len(arg) != 3 or type(arg[0]) is not str or type(arg[2]) is not bool:
        return f"its argument {arg!r} is not (name, (height, width), writable)"
    if not _is_shape(arg[1]) or len(arg[1]) != 2:
        return f"its size {arg[1]!r} is not (height, width)"
    return None if u.dtype in (dtypes.float16, dtypes.float32) else f"holds {u.dtype}, expected a float"


def _texel(u: UOp, value: DType, gate: UOp | None) -> str | None:
    """Check an access to a texel."""
    if u.src[0].op is not ops.IMAGE:
        return f"accesses {u.src[0].op}, expected IMAGE"
    if u.src[1].dtype not in _FLAT or u.src[2].dtype not in _FLAT:
        return f"its coordinates are {u.src[1].dtype} and {u.src[2].dtype}, expected int32 or int64"
    if value is not _TEXEL:
        return f"accesses {value}, expected {_TEXEL}"
    return None if gate is None or gate.dtype is dtypes.bool_ else f"its gate is {gate.dtype}, expected bool"


def _image_load(u: UOp) -> str | None:
    return _texel(u, u.dtype, u.src[3] if len(u.src) == 4 else None)


def _image_store(u: UOp) -> str | None:
    fault = _texel(u, u.src[3].dtype, u.src[4] if len(u.src) == 5 else None)
    return fault or (None if u.src[0].arg[2] else f"stores to {u.src[0].arg[0]}, which is read only")


# -- tables --------------------------------------------------------------------------------------------------

_ANY_NUMBER = 1 << 30
#: Op -> (fewest operands, most operands, dtype rule, further check).
Table = dict[Op, tuple[int, int, Rule, "Check | None"]]


def _table(level: str, checks: dict[Op, Check], arities: dict[Op, tuple[int, int]]) -> Table:
    table: Table = {}
    for op in OPS.values():
        if level in op.levels:
            least, most = op.arity
            arity = arities.get(op, (least, _ANY_NUMBER if most is None else most))
            table[op] = (*arity, op.rule, checks.get(op))
    return table


_GRAPH = _table("g", {
    **{op: _elementwise for op in OPS.values() if op.group in ("alu", "cast")},
    ops.CONST: _const, ops.VAR: _var, ops.BUFFER: _buffer, ops.IOTA: _iota, ops.REDUCE_AXIS: _reduce_axis,
    ops.GATHER: _gather, ops.COPY: _copy, ops.RESHAPE: _reshape, ops.EXPAND: _expand, ops.PERMUTE: _permute,
    ops.PAD: _pad, ops.SHRINK: _shrink, ops.FLIP: _flip,
}, {})  # fmt: skip
_KERNEL = _table("k", {
    ops.CONST: _const, ops.VAR: _kernel_var, ops.PARAM: _buffer_arg, ops.LOCAL: _buffer_arg,
    ops.RANGE: _kernel_range, ops.AFFINE: _affine, ops.IDIV: _divide, ops.IMOD: _divide,
    ops.IMUL: _index_operands, ops.IVALUE: _ivalue, ops.GE0: _index_operands, ops.ALL: _masks,
    ops.LOAD: _kernel_load, ops.STORE: _kernel_store, ops.REDUCE: _reduce, ops.WMMA: _fragment_axes,
}, {ops.WMMA: (2, 5)})  # fmt: skip
_LINEAR = _table("l", {
    ops.CONST: _const, ops.VAR: _linear_var, ops.PARAM: _buffer_arg, ops.LOCAL: _buffer_arg,
    ops.RANGE: _linear_range, ops.LOAD: _linear_load, ops.STORE: _linear_store, ops.SPECIAL: _special,
    ops.IF: _if, ops.END: _closes(ops.RANGE), ops.ENDIF: _closes(ops.IF), ops.FOLD: _fold,
    ops.SHUFFLE: _number("bit mask", 1), ops.STAGE_COPY: _stage_copy,
    ops.STAGE_WAIT: _number("number of groups", 0),
    ops.IMAGE: _image_arg, ops.IMAGE_LOAD: _image_load, ops.IMAGE_STORE: _image_store,
}, {ops.LOAD: (2, 3), ops.STORE: (3, 4), ops.WMMA: (3, 3)})  # fmt: skip

# -- entry points --------------------------------------------------------------------------------------------


def verify(roots: UOp | Iterable[UOp], level: Level, where: str = "") -> None:
    """Check a graph or a kernel.

    Parameters
    ----------
    roots
        The node or nodes that everything hangs off: a kernel's stores.
    level
        "graph" or "kernel".
    where
        The pass that has just run, for the message.

    Raises
    ------
    VerifyError
        With the offending line, the program around it, and the path of a file that reproduces it.
    """
    roots = roots if isinstance(roots, UOp) else tuple(roots)
    table = _GRAPH if level == "graph" else _KERNEL
    named: dict[str, UOp] = {}
    for position, u in enumerate(toposort((roots,) if isinstance(roots, UOp) else roots)):
        fault = _node_fault(u, table, level)
        if fault is None and u.dtype.lanes > 1:
            fault = f"has dtype {u.dtype}; vectors stand in linear programs only"
        if fault is None and level == "kernel" and u.op.effect in _NAMED_EFFECTS:
            other = named.setdefault(u.arg[0], u)
            if other is not u:
                fault = f"the name {u.arg[0]!r} is also that of another {other.op}, with {other.arg[1:]}"
        if fault is not None:
            lines = dump(roots).split("\n")
            raise _error(lines, position, f"{u.op} {fault}", where or f"{level} verifier")


_NAMED_EFFECTS = frozenset({ops.Effect.DEFINE, ops.RANGE.effect})


def _node_fault(u: UOp, table: Table, level: str) -> str | None:
    """Return what is wrong with a node by itself."""
    entry = table.get(u.op)
    if entry is None:
        return f"does not stand at the {level} level"
    least, most, rule, check = entry
    if not least <= len(u.src) <= most:
        return f"has {len(u.src)} operands; it takes {' '.join(u.op.operands) or 'none'}"
    fault = rule(u.dtype, u.src, u.arg)
    return fault if fault is not None or check is None else check(u)


#: The open RANGEs and IFs, and what each block made visible.
Blocks = list[tuple[UOp, list[UOp]]]

_DECLARATIONS = frozenset({ops.PARAM, ops.IMAGE, ops.LOCAL, ops.VAR, ops.SPECIAL})
_OUTERMOST = frozenset({ops.PARAM, ops.IMAGE, ops.VAR, ops.SPECIAL})
_SPECIAL_CARE = frozenset({*_DECLARATIONS, ops.RANGE, ops.IF, ops.END, ops.ENDIF})


def verify_program(program: Sequence[UOp], where: str = "") -> None:
    """Check a linear program: a list of uops in execution order.

    Parameters
    ----------
    program
        The uops; one may stand more than once.
    where
        The pass that has just run, for the message.

    Raises
    ------
    VerifyError
        With the offending line, the program around it, and the path of a file that reproduces it.
    """
    visible: set[UOp] = set()
    names: dict[str, UOp] = {}
    blocks: Blocks = []
    own: list[UOp] = []  # what the innermost block made visible
    sees = visible.issuperset
    table, index, special_care = _LINEAR, dtypes.index, _SPECIAL_CARE
    for position, u in enumerate(program):
        fault = None
        op, src = u.op, u.src
        entry = table.get(op)
        if entry is None:
            fault = "does not stand in a linear program"
        else:
            least, most, rule, check = entry
            if not least <= len(src) <= most:
                fault = f"has {len(src)} operands"
            elif not sees(src):
                fault = _not_visible(u, visible, program[:position])
            else:
                fault = rule(u.dtype, src, u.arg)
                if fault is None and check is not None:
                    fault = check(u)
        if fault is None:
            if u.dtype is index:
                fault = "has dtype index; the linearizer picks int32 or int64"
            elif op in special_care:
                fault = _scope_fault(u, visible, names, blocks)
                if fault is None:
                    if op is ops.RANGE or op is ops.IF:
                        own = [u]
                        blocks.append((u, own))
                        visible.add(u)
                        continue
                    if op is ops.END or op is ops.ENDIF:
                        blocks.pop()
                        visible.difference_update(own)
                        own = blocks[-1][1] if blocks else []
                        continue
        if fault is not None:
            raise _program_error(program, position, f"{op} {fault}", where)
        if u not in visible:
            visible.add(u)
            own.append(u)
    if any(u.op in _MEETINGS for u in program):
        found = _divergence(program)
        if found is not None:
            position, fault = found
            raise _program_error(program, position, f"{program[position].op} {fault}", where)
    if blocks:
        opened = blocks[-1][0]
        last = len(program) - 1
        raise _program_error(program, last, f"the program ends inside the block of {opened!r}", where)


_MEETINGS = frozenset({ops.BARRIER, ops.SHUFFLE})


def _divergence(program: Sequence[UOp]) -> tuple[int, str] | None:
    """Return where threads meet in a block that not all of them enter, or not equally often."""
    varying: set[UOp] = set()  # what may differ between the threads of a block
    again = True
    while again:  # what a loop stores in an array, an earlier line may read
        before = len(varying)
        for u in program:
            if u.op is ops.SPECIAL and not u.arg[0].startswith("grid"):
                varying.add(u)
            elif u.op is ops.STORE:
                if any(s in varying for s in u.src[1:]):
                    varying.add(u.src[0])
            elif any(s in varying for s in u.src):
                varying.add(u)
        again = len(varying) > before
    open_blocks: list[bool] = []
    for position, u in enumerate(program):
        if u.op is ops.IF or u.op is ops.RANGE:
            open_blocks.append(any(s in varying for s in u.src))
        elif u.op is ops.ENDIF or u.op is ops.END:
            open_blocks.pop()
        elif u.op in _MEETINGS and any(open_blocks):
            return position, "stands where not all threads of the block come equally often"
    return None


def _scope_fault(u: UOp, visible: set[UOp], names: dict[str, UOp], blocks: Blocks) -> str | None:
    """Return what is wrong with where a declaration, or the start or end of a block, stands."""
    op = u.op
    if op in _DECLARATIONS:
        name = u.arg[0]
        other = names.get(name)
        if other is not None and other is not u and other in visible:
            return f"the name {name!r} is also that of another {other.op}"
        names[name] = u
        return "is declared inside a block" if blocks and op in _OUTERMOST else None
    if op is ops.RANGE or op is ops.IF:
        return "opens its block inside itself" if u in visible else None
    inner = blocks[-1][0]  # there is one: the operand is visible, and it is only so inside its block
    return None if inner is u.src[0] else f"does not close the innermost open block, of {inner!r}"


def _not_visible(u: UOp, visible: set[UOp], before: Sequence[UOp]) -> str:
    n, operand = next((n, s) for n, s in enumerate(u.src) if s not in visible)
    stood = "stands in a block that is closed" if operand in before else "does not stand before it"
    return f"operand {n}, {operand!r}, {stood}"


# -- failure -------------------------------------------------------------------------------------------------

_CONTEXT = 20  # lines shown before and after the offending one


def _program_error(program: Sequence[UOp], position: int, message: str, where: str) -> VerifyError:
    lines: list[str] = []
    marked = 0
    for at, line in program_lines(program):
        if at == position:
            marked = len(lines)
        lines.append(line)
    return _error(lines, marked, message, where or "program verifier")


def _error(lines: list[str], marked: int, message: str, where: str) -> VerifyError:
    first = f"{where}: line {marked + 1}: {message}"
    shown = "\n".join(_window(lines, marked))
    return VerifyError(f"{first}\n{shown}\n{_reproducer(lines, first)}")


def _window(lines: list[str], marked: int) -> Iterator[str]:
    """Yield the lines around the marked one, which an arrow points at."""
    begin, end = max(marked - _CONTEXT, 0), min(marked + _CONTEXT + 1, len(lines))
    if begin:
        yield f"     ... {begin} lines"
    for n in range(begin, end):
        line = lines[n] if len(lines[n]) <= 160 else lines[n][:157] + "..."
        yield f"{'  -> ' if n == marked else '     '}{line}"
    if end < len(lines):
        yield f"     ... {len(lines) - end} lines"


def _reproducer(lines: list[str], message: str) -> str:
    """Write the program to a new file and return the sentence that names it."""
    import tempfile

    folder = os.environ.get("RETARGET_REPRODUCER_DIR") or None
    text = "".join([f"# {line}\n" for line in message.split("\n")]) + "\n".join(lines) + "\n"
    try:
        handle, path = tempfile.mkstemp(prefix="retarget-", suffix=".ir", dir=folder)
        os.close(handle)
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        return f"(no reproducer was written: {error})"
    return f"reproducer: {path}"
