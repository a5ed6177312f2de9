"""Executes linear programs over NumPy buffers, strictly: what is undefined is an error that names the uop.

A program is translated once to the Python source of a function that runs one thread, one line for each uop,
and that function is called for every thread of the launch.  Scalars are NumPy scalars, vectors are arrays of
shape `(lanes,)`.

* The threads of a block run in turn, in any order that is asked for, each until it has to meet others: at a
  BARRIER all threads of the block, at a SHUFFLE the two partners, at a WMMA the aligned group of
  `TensorCore.threads` threads, each bringing its fragments as vectors in the order of the descriptor's
  layouts.  Threads that wait in vain are an error.
* SPECIALs whose name begins with "grid" count blocks; all others count the threads of a block.  Thread
  numbers count fastest along the SPECIAL whose name sorts first ("block0" before "block1"); one that begins
  with "warp" comes before all others.
* An array whose elements are vectors has two axes, (element, lane), and is read and written by whole
  elements.
* An image is an array of height, width and four elements; coordinates outside it are errors.
* Local memory starts out poisoned (NaN, bytes 0xA5).  An asynchronous copy poisons its destination when it
  starts and takes place only in the STAGE_WAIT that retires its group, so that a missing wait shows.
* Indices are checked against the declared sizes, and against the alignment in elements that the argument of a
  LOAD or STORE claims; TRUNCDIV, USHL, CAST and the like against their domain.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from retarget.errors import CompileError, InternalError, LaunchError, UnknownNameError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType, to_numpy
from retarget.ir.ops import Effect, Op
from retarget.ir.text import expr
from retarget.ir.uop import UOp
from retarget.registry.capabilities import TensorCore

from .semantics import (
    ELEMENTWISE,
    UndefinedError,
    Value,
    cast_in_range,
    constant,
    index_value,
    is_narrow,
    quiet,
)

Array = np.ndarray[Any, Any]
#: A thread that may meet others: yields (position of the uop it waits at, what it brings).
Thread = Generator[tuple[int, Any], Any, None]

#: "forward", "reverse", or the seed of a random order.
Order = Literal["forward", "reverse"] | int

#: Elements of a texel.
LANES = 4

_FILE = "<linear program>"


class ExecutionError(InternalError):
    """A program did something undefined.

    Attributes
    ----------
    uop, position
        The uop that did it, and where it stands in the program.
    """

    def __init__(self, reason: str, uop: UOp, position: int) -> None:
        super().__init__(f"{reason}\n  at uop {position} of the program: {uop.op} {uop.dtype}, {expr(uop)}")
        self.uop, self.position = uop, position


def run(
    program: Sequence[UOp],
    buffers: Mapping[str, Array] | Sequence[Array],
    variables: Mapping[str, int] | None = None,
    tensor_cores: Sequence[TensorCore] = (),
) -> None:
    """Translate and execute a linear program; see `Interpreter`."""
    Interpreter(program, tensor_cores)(buffers, variables)


class Interpreter:
    """A linear program, translated and ready to be executed any number of times, also at the same time.

    Parameters
    ----------
    program
        The uops in execution order.
    tensor_cores
        The descriptors that its WMMAs name.

    Attributes
    ----------
    source
        The Python function that the program was translated to; `v7` is the value of uop 7.

    Raises
    ------
    InternalError
        If the program is ill-formed: an operand is not visible, blocks do not match, a store to a
        read-only buffer.
    """

    def __init__(self, program: Sequence[UOp], tensor_cores: Sequence[TensorCore] = ()) -> None:
        self._uops = tuple(program)
        translation = _Translator(self._uops, {t.name: t for t in tensor_cores})
        self.source, self._positions = translation.source(), translation.positions
        self._units, self._meets = translation.units, translation.meets
        self._parameters: dict[UOp, str] = translation.parameters
        try:
            exec(compile(self.source, _FILE, "exec"), translation.names)
        except SyntaxError as error:
            raise CompileError(
                f"Python does not take the program: {error}; it has too many nested loops", self.source
            ) from None
        self._thread: Callable[..., Any] = translation.names["thread"]

    def __call__(
        self,
        buffers: Mapping[str, Array] | Sequence[Array],
        variables: Mapping[str, int] | None = None,
        order: Order = "forward",
    ) -> None:
        """Execute the program.

        Parameters
        ----------
        buffers
            C-contiguous arrays for the PARAMs, by name or in the order in which they stand in the program.
        variables
            The values of the VARs, by name.
        order
            In which order blocks run, and the threads of a block between two meetings: "forward", "reverse",
            or the seed of a random one.  A program whose barriers suffice gives the same in all of them.

        Raises
        ------
        LaunchError
            If the arguments do not suit the program.
        ExecutionError
            If the program does something undefined.
        """
        bound = self._bind_variables(variables or {})
        arguments = bound | self._bind_buffers(buffers, {u.arg[0]: int(v) for u, v in bound.items()})
        sizes = {u.arg[0]: int(v) for u, v in bound.items()}
        shuffle = _order(order)
        specials = sorted((u for u in self._parameters if u.op is ops.SPECIAL), key=_thread_order)
        grid = [u for u in specials if u.arg[0].startswith("grid")]
        block = [u for u in specials if not u.arg[0].startswith("grid")]
        with quiet():
            for block_index in shuffle(_indices(grid, sizes)):
                shared = self._locals(register=False)
                threads = [
                    arguments | shared | block_index | index | self._locals(register=True)
                    for index in _indices(block, sizes)
                ]
                self._run_block([self._start(values) for values in threads], shuffle)

    def _bind_buffers(
        self, buffers: Mapping[str, Array] | Sequence[Array], variables: Mapping[str, int]
    ) -> dict[UOp, Value]:
        params = [u for u in self._parameters if u.op in (ops.PARAM, ops.IMAGE)]
        if not isinstance(buffers, Mapping):
            if len(buffers) != len(params):
                raise LaunchError(f"the program takes {len(params)} buffers, {len(buffers)} were given")
            buffers = {u.arg[0]: b for u, b in zip(params, buffers, strict=True)}
        found: dict[UOp, Value] = {}
        for u in params:
            name, shape, writable = u.arg
            if name not in buffers:
                raise UnknownNameError("buffer", name, buffers, "the program has a parameter of that name")
            texels = (LANES,) if u.op is ops.IMAGE else ()
            array, size = buffers[name], math.prod(index_value(n, variables) for n in (*shape, *texels))
            if array.dtype != to_numpy(u.dtype) or array.size < size or not array.flags.c_contiguous:
                raise LaunchError(
                    f"buffer {name!r} is {array.dtype}{array.shape}; "
                    f"the program takes {size} contiguous elements of {u.dtype}"
                )
            if writable and not array.flags.writeable:
                raise LaunchError(f"buffer {name!r} is read-only, and the program writes to it")
            elements = array.reshape(-1)[:size]
            found[u] = elements.reshape(*shape, LANES) if texels else elements
        return found

    def _bind_variables(self, variables: Mapping[str, int]) -> dict[UOp, Value]:
        found: dict[UOp, Value] = {}
        for u in self._parameters:
            if u.op is ops.VAR:
                name, lowest, highest = u.arg
                if name not in variables:
                    raise UnknownNameError(
                        "variable", name, variables, "the program has a variable of that name"
                    )
                if not lowest <= variables[name] <= highest:
                    raise LaunchError(
                        f"variable {name!r} is {variables[name]}, outside {lowest} ... {highest}"
                    )
                found[u] = _type(u.dtype)(variables[name])
        return found

    def _locals(self, *, register: bool) -> dict[UOp, Value]:
        """Return new, poisoned memory: a thread's registers, or what the threads of a block share."""
        found: dict[UOp, Value] = {}
        for u in self._parameters:
            if u.op is ops.LOCAL and (u.arg[2] == "register") == register:
                size, lanes = math.prod(n for n in u.arg[1] if n), u.dtype.lanes
                found[u] = np.empty(size if lanes == 1 else (size, lanes), to_numpy(u.dtype.scalar))
                _poison(found[u])
        return found

    def _start(self, values: Mapping[UOp, Value]) -> Callable[[], Any]:
        return partial(
            self._thread, **{name: values[u] for u, name in self._parameters.items()}, stages=_Stages()
        )

    def _run_block(
        self, starts: Sequence[Callable[[], Any]], shuffle: Callable[[list[Any]], list[Any]]
    ) -> None:
        try:
            if not self._meets:
                for start in shuffle(list(starts)):
                    start()
                return
            threads: list[Thread] = [start() for start in starts]
            waiting: dict[int, tuple[int, Any]] = {}
            ready: dict[int, Any] = dict.fromkeys(range(len(threads)))
            while ready:
                for number, met in shuffle(list(ready.items())):
                    try:
                        waiting[number] = threads[number].send(met)
                    except StopIteration:
                        waiting.pop(number, None)
                ready = self._meet(waiting, len(threads))
                for number in ready:
                    del waiting[number]
        except UndefinedError as error:
            position = self._position_of(error)
            raise ExecutionError(str(error), self._uops[position], position) from error
        if waiting:
            number, (position, _) = next(iter(waiting.items()))
            places = {
                at: [n for n, (p, _) in waiting.items() if p == at] for at in {p for p, _ in waiting.values()}
            }
            text = "; ".join(f"uop {at}: threads {_spans(places[at])}" for at in sorted(places))
            ended = len(threads) - len(waiting)
            raise ExecutionError(
                f"divergent threads: they wait for each other at different places ({text}"
                + (f"; {ended} of {len(threads)} have ended)" if ended else ")"),
                self._uops[position],
                position,
            )

    def _meet(self, waiting: Mapping[int, tuple[int, Any]], count: int) -> dict[int, Any]:
        """Return the threads that need not wait any longer, with what each takes from the others."""
        places: dict[int, dict[int, Any]] = {}
        for number, (position, brought) in waiting.items():
            places.setdefault(position, {})[number] = brought
        ready: dict[int, Any] = {}
        for position, members in places.items():
            u = self._uops[position]
            if u.op is ops.BARRIER:
                if len(members) == count:
                    ready.update(dict.fromkeys(members))
            elif u.op is ops.SHUFFLE:
                ready.update({n: members[n ^ u.arg] for n in members if n ^ u.arg in members})
            else:
                unit = self._units[position]
                for first in range(0, count, unit.threads):
                    group = range(first, first + unit.threads)
                    if all(n in members for n in group):
                        try:
                            results = unit.multiply([members[n] for n in group])
                        except UndefinedError as error:
                            raise ExecutionError(str(error), u, position) from error
                        ready.update(zip(group, results, strict=True))
        return ready

    def _position_of(self, error: UndefinedError) -> int:
        """Return the position of the uop whose line of `source` raised the error."""
        position, frame = 0, error.__traceback__
        while frame is not None:
            if frame.tb_frame.f_code.co_filename == _FILE:
                position = self._positions[frame.tb_lineno]
            frame = frame.tb_next
        return position


def _thread_order(u: UOp) -> tuple[bool, str]:
    return not u.arg[0].startswith("warp"), u.arg[0]


def _order(order: Order) -> Callable[[list[Any]], list[Any]]:
    """Return what puts the blocks of a grid, or threads that may go on, into an order."""
    if order == "forward":
        return list
    if order == "reverse":
        return lambda items: items[::-1]
    rng = random.Random(order)
    return lambda items: rng.sample(items, len(items))


def _indices(specials: Sequence[UOp], variables: Mapping[str, int]) -> list[dict[UOp, Value]]:
    """Return the values that the SPECIALs take together; the first is the fastest."""
    sizes = [range(index_value(u.arg[1], variables)) for u in reversed(specials)]
    return [
        {u: _type(u.dtype)(i) for u, i in zip(reversed(specials), point, strict=True)}
        for point in itertools.product(*sizes)
    ]


def _spans(numbers: Sequence[int]) -> str:
    """Return numbers as text, runs of them as "first-last"."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and spans[-1][1] == n - 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


# -- translation ---------------------------------------------------------------------------------------------

#: Ops that are written in place, the same as the table's functions where NumPy computes in the type itself.
_IN_PLACE: dict[Op, str] = {
    ops.ADD: "{} + {}", ops.SUB: "{} - {}", ops.MUL: "{} * {}", ops.MULACC: "{} * {} + {}",
    ops.AND: "{} & {}", ops.OR: "{} | {}", ops.XOR: "{} ^ {}",
    ops.CMPLT: "{} < {}", ops.CMPLE: "{} <= {}", ops.CMPEQ: "{} == {}", ops.CMPNE: "{} != {}",
}  # fmt: skip


class _Translator:
    """Writes a linear program as a Python function of one thread."""

    def __init__(self, uops: Sequence[UOp], tensor_cores: Mapping[str, TensorCore]) -> None:
        self.lines: list[str] = []
        self.positions: list[int] = [
            0,
            0,
        ]  # of the uop that each line comes from; counted from 1, after the header
        self.names: dict[str, Any] = {}
        self.parameters: dict[UOp, str] = {}
        self.units: dict[int, _MatrixUnit] = {}
        self.meets = False
        self._tensor_cores = tensor_cores
        self._visible: list[dict[UOp, str]] = [{}]
        self._open: list[UOp] = []
        for position, u in enumerate(uops):
            try:
                self._translate(position, u)
            except InternalError as error:
                raise InternalError(f"uop {position} of the program ({u.op}): {error}") from None
        if self._open:
            raise InternalError(f"the program ends inside the block that {self._open[-1].op} opened")

    def source(self) -> str:
        """Return the function's text."""
        parameters = ", ".join([*self.parameters.values(), "stages"])
        return "\n".join([f"def thread({parameters}):", *self.lines, "  return", ""])

    def _translate(self, position: int, u: UOp) -> None:
        name = f"v{position}"
        if u.op.effect is Effect.DEFINE:
            if u.op is ops.PARAM and u.dtype.lanes > 1:
                raise InternalError(f"a parameter of {u.dtype}; parameters have scalar elements")
            self._visible[0].setdefault(u, self.parameters.setdefault(u, name))
            return
        if u.op in (ops.END, ops.ENDIF):
            self._close(u, position)
            return
        operands = [self._operand(s) for s in u.src]
        if u.op is ops.RANGE:
            self._line(position, f"for {name} in {self._steps(u, name, operands)}:")
            self._open_block(u, name)
        elif u.op is ops.IF:
            self._line(position, f"if {operands[0]}:")
            self._open_block(u, name)
        elif u.dtype is dtypes.void:
            self._line(position, self._expression(position, u, operands))
        else:
            self._line(position, f"{name} = {self._expression(position, u, operands)}")
            self._visible[-1][u] = name

    def _line(self, position: int, text: str) -> None:
        self.lines.append("  " * (len(self._open) + 1) + text)
        self.positions.append(position)

    def _operand(self, u: UOp) -> str:
        for scope in reversed(self._visible):
            if u in scope:
                return scope[u]
        raise InternalError(f"its operand {expr(u)} is not visible here")

    def _open_block(self, u: UOp, name: str) -> None:
        self._open.append(u)
        self._visible.append({u: name})

    def _close(self, u: UOp, position: int) -> None:
        if not self._open or self._open[-1] is not u.src[0]:
            raise InternalError("it does not close the innermost open block")
        self._line(position, "...")  # a block may be empty
        self._open.pop()
        self._visible.pop()

    def _steps(self, u: UOp, name: str, operands: Sequence[str]) -> str:
        size = u.arg[1] if u.arg[1] is not None else operands[0]
        return f"map({self._named(name + '_type', _type(u.dtype))}, range({size}))"

    def _named(self, name: str, value: Any) -> str:
        """Make a value known to the function under a name of its own, and return the name."""
        self.names[name] = value
        return name

    def _call(self, position: int, f: Callable[..., Any], *operands: str) -> str:
        name = f"{_name_of(f)}{position}" if isinstance(f, partial) else _name_of(f)
        return f"{self._named(name, f)}({', '.join(operands)})"

    def _expression(self, position: int, u: UOp, operands: Sequence[str]) -> str:
        """Return the Python expression of a uop that opens and closes nothing."""
        match u.op:
            case ops.CONST:
                return self._named(f"c{position}", constant(u.arg, _concrete(u.dtype)))
            case ops.LOAD:
                return self._load(position, u, operands)
            case ops.STORE:
                return self._store(position, u, operands)
            case ops.BARRIER:
                self.meets = True
                return f"yield {position}, None"
            case ops.SHUFFLE:
                self.meets = True
                return f"yield {position}, {operands[0]}"
            case ops.WMMA:
                return self._wmma(position, u, operands)
            case ops.IMAGE_LOAD:
                return self._call(position, _load_texel, *operands)
            case ops.IMAGE_STORE:
                return self._call(position, _store_texel, *operands)
            case ops.STAGE_COPY:
                return f"stages.copy({', '.join(operands)}, {u.arg})"
            case ops.STAGE_COMMIT:
                return "stages.commit()"
            case ops.STAGE_WAIT:
                return f"stages.wait({u.arg})"
            case _ if u.op in _VECTOR:
                return self._call(position, partial(_VECTOR[u.op], u), *operands)
            case _ if u.op in ELEMENTWISE and "l" in u.op.levels:
                return self._elementwise(position, u, operands)
        raise InternalError("the op does not stand in a linear program")

    def _elementwise(self, position: int, u: UOp, operands: Sequence[str]) -> str:
        computed = u.src[0].dtype
        if u.op in _IN_PLACE and not is_narrow(computed):
            return _IN_PLACE[u.op].format(*operands)
        f = cast_in_range if u.op is ops.CAST else ELEMENTWISE[u.op]
        return self._call(position, partial(f, _concrete(u.dtype)), *operands)

    def _load(self, position: int, u: UOp, operands: Sequence[str]) -> str:
        lanes, index = u.dtype.lanes, u.src[1].dtype
        if u.src[0].dtype.lanes > 1:
            return self._call(position, _load_whole, *operands)
        if len(operands) == 3 or index.lanes > 1:
            return self._call(position, partial(_load_gated, lanes, u.arg or 1), *operands)
        if lanes == 1:
            return self._call(position, _load, *operands)
        return self._call(position, partial(_load_lanes, lanes, u.arg or 1), *operands)

    def _store(self, position: int, u: UOp, operands: Sequence[str]) -> str:
        buffer = u.src[0]
        if buffer.op is ops.PARAM and not buffer.arg[2]:
            raise InternalError(f"it stores to {buffer.arg[0]!r}, which is declared read-only")
        lanes, index = u.src[2].dtype.lanes, u.src[1].dtype
        alignment = lanes if u.arg == "stream" else u.arg or 1
        if buffer.dtype.lanes > 1:
            return self._call(position, _store_whole, *operands)
        if len(operands) == 4 or index.lanes > 1:
            return self._call(position, partial(_store_gated, max(lanes, index.lanes), alignment), *operands)
        if lanes == 1:
            return self._call(position, _store, *operands)
        return self._call(position, partial(_store_lanes, lanes, alignment), *operands)

    def _wmma(self, position: int, u: UOp, operands: Sequence[str]) -> str:
        found = self._tensor_cores.get(u.arg)
        if found is None:
            raise InternalError(f"no descriptor of a tensor core is called {u.arg!r}")
        unit = self.units[position] = _MatrixUnit(found)
        fragments = f"({', '.join(operands)})"
        if unit.threads == 1:
            return self._call(position, unit.multiply, f"[{fragments}]") + "[0]"
        self.meets = True
        return f"yield {position}, {fragments}"


def _name_of(f: Callable[..., Any]) -> str:
    """Return a name that tells a reader of the function's text what a call does."""
    return _name_of(f.func) if isinstance(f, partial) else f.__name__.strip("_<>")


def _concrete(dtype: DType) -> DType:
    """Return the scalar type that values of `dtype` are held in; indices have 64 bits."""
    return dtypes.int64 if dtype.kind == "index" else dtype.scalar


def _type(dtype: DType) -> Callable[[Any], Value]:
    return to_numpy(_concrete(dtype)).type


# -- vectors -------------------------------------------------------------------------------------------------


def _broadcast(u: UOp, x: Value) -> Array:
    return np.full(u.dtype.lanes, x)


def _vectorize(u: UOp, *lanes: Value) -> Array:
    return np.array(lanes, to_numpy(_concrete(u.dtype)))


def _gep(u: UOp, x: Array, *y: Array) -> Value:
    lanes = np.concatenate([np.atleast_1d(v) for v in (x, *y)])
    return lanes[list(u.arg)] if u.dtype.lanes > 1 else lanes[u.arg[0]]


def _fold(u: UOp, x: Array) -> Value:
    """Fold the upper half onto the lower until one lane is left; an odd middle lane goes last."""
    f, dtype = ELEMENTWISE[u.arg], _concrete(u.dtype)
    x = np.atleast_1d(x)
    while len(x) > 1:
        half = len(x) // 2
        x = np.concatenate([f(dtype, x[:half], x[len(x) - half :]), x[half : len(x) - half]])
    return x[0]


_VECTOR: dict[Op, Callable[..., Value]] = {
    ops.BROADCAST: _broadcast, ops.VECTORIZE: _vectorize, ops.GEP: _gep, ops.FOLD: _fold,
}  # fmt: skip

# -- memory --------------------------------------------------------------------------------------------------


def _poison(memory: Array) -> None:
    """Fill memory with what no program computes by accident: NaN, or bytes 0xA5."""
    if memory.dtype.kind in "iu":
        memory.view(np.uint8)[:] = 0xA5
    elif memory.dtype.kind == "b":
        memory[:] = True
    else:
        memory[:] = math.nan


def _outside(index: Any, buffer: Array) -> UndefinedError:
    return UndefinedError(f"index {index} is outside the buffer's {len(buffer)} elements")


def _load(buffer: Array, index: Value) -> Value:
    i = int(index)
    if not 0 <= i < len(buffer):
        raise _outside(i, buffer)
    return buffer[i]


def _first_lane(lanes: int, alignment: int, buffer: Array, index: Value) -> int:
    """Return where a contiguous access begins: a multiple of `alignment` elements, as the uop claims."""
    i = int(index)
    if not 0 <= i <= len(buffer) - lanes:
        raise _outside(f"{i} ... {i + lanes - 1}", buffer)
    if i % alignment:
        raise UndefinedError(f"index {i} is not a multiple of {alignment}, the alignment that the uop claims")
    return i


def _load_lanes(lanes: int, alignment: int, buffer: Array, index: Value) -> Array:
    i = _first_lane(lanes, alignment, buffer, index)
    return buffer[i : i + lanes].copy()


def _store(buffer: Array, index: Value, value: Value) -> None:
    i = int(index)
    if not 0 <= i < len(buffer):
        raise _outside(i, buffer)
    buffer[i] = value


def _store_lanes(lanes: int, alignment: int, buffer: Array, index: Value, value: Array) -> None:
    i = _first_lane(lanes, alignment, buffer, index)
    buffer[i : i + lanes] = value


def _lanes_at(lanes: int, alignment: int, buffer: Array, index: Value, gate: Value) -> tuple[Array, Array]:
    """Return which lanes access memory, and where those do; a scalar index is that of the first lane."""
    on = np.broadcast_to(gate, lanes)
    if np.ndim(index) == 0:
        if on.all():
            _first_lane(lanes, alignment, buffer, index)
        at = int(index) + np.arange(lanes)
    else:
        at = index.astype(np.int64)
    at = at[on]
    if at.size and (at.min() < 0 or at.max() >= len(buffer)):
        raise _outside(at, buffer)
    return on, at


def _load_gated(lanes: int, alignment: int, buffer: Array, index: Value, gate: Value = True) -> Value:
    on, at = _lanes_at(lanes, alignment, buffer, index, gate)
    loaded = np.zeros(lanes, buffer.dtype)
    loaded[on] = buffer[at]
    return loaded if lanes > 1 else loaded[0]


def _store_gated(
    lanes: int, alignment: int, buffer: Array, index: Value, value: Value, gate: Value = True
) -> None:
    on, at = _lanes_at(lanes, alignment, buffer, index, gate)
    buffer[at] = np.broadcast_to(value, lanes)[on]


def _load_whole(buffer: Array, index: Value, gate: Value = True) -> Array:
    """Load one element of an array of vectors; lanes whose gate is false are 0."""
    if not np.any(gate):
        return np.zeros_like(buffer[0])
    loaded: Array = np.where(gate, _load(buffer, index), buffer.dtype.type(0))
    return loaded


def _store_whole(buffer: Array, index: Value, value: Array, gate: Value = True) -> None:
    if np.any(gate):
        _store(buffer, index, np.where(gate, value, _load(buffer, index)))


def _texel(image: Array, x: Value, y: Value) -> tuple[int, int]:
    height, width, _ = image.shape
    if not (0 <= int(x) < width and 0 <= int(y) < height):
        raise UndefinedError(f"texel ({int(x)}, {int(y)}) is outside the image of {width} x {height}")
    return int(y), int(x)


def _load_texel(image: Array, x: Value, y: Value, gate: Value = True) -> Array:
    if not gate:
        return np.zeros(LANES, np.float32)
    texel: Array = image[_texel(image, x, y)].astype(np.float32)
    return texel


def _store_texel(image: Array, x: Value, y: Value, value: Array, gate: Value = True) -> None:
    if gate:
        image[_texel(image, x, y)] = value.astype(image.dtype)


class _Stages:
    """The asynchronous copies that one thread has in flight."""

    def __init__(self) -> None:
        self._open: list[tuple[Array, Array]] = []
        self._groups: deque[list[tuple[Array, Array]]] = deque()

    def copy(self, to: Array, to_index: Value, source: Array, source_index: Value, count: int) -> None:
        i, j = int(to_index), int(source_index)
        if not 0 <= i <= len(to) - count:
            raise _outside(f"{i} ... {i + count - 1}", to)
        if not 0 <= j <= len(source) - count:
            raise _outside(f"{j} ... {j + count - 1}", source)
        _poison(to[i : i + count])
        self._open.append((to[i : i + count], source[j : j + count]))

    def commit(self) -> None:
        self._groups.append(self._open)
        self._open = []

    def wait(self, in_flight: int) -> None:
        while len(self._groups) > in_flight:
            for to, source in self._groups.popleft():
                to[:] = source


# -- matrix instructions -------------------------------------------------------------------------------------


class _MatrixUnit:
    """A tensor core that is executed: fragments of all lanes to matrices, one product, and back."""

    def __init__(self, core: TensorCore) -> None:
        n, m, k = core.dims
        self.threads = core.threads
        self._out = dtypes.as_dtype(core.dtype_out)
        self._a = _Layout("A", (m, k), core.a_layout)
        self._b = _Layout("B", (k, n), core.b_layout)
        self._c = _Layout("C", (m, n), core.c_layout)

    def multiply(self, fragments: Sequence[tuple[Value, Value, Value]]) -> list[Value]:
        """Return each lane's fragment of A @ B + C: summed in a wider type, then rounded or wrapped once."""
        a, b, c = zip(*fragments, strict=True)
        wide = np.float64 if self._out.is_float else np.int64
        product = self._a.matrix(a).astype(wide) @ self._b.matrix(b).astype(wide) + self._c.matrix(c).astype(
            wide
        )
        results = self._c.fragments(ELEMENTWISE[ops.CAST](self._out, product))
        return [fragment if len(fragment) > 1 else fragment[0] for fragment in results]


class _Layout:
    """Where each lane's elements of one operand lie in the matrix."""

    def __init__(
        self, name: str, shape: tuple[int, int], layout: Sequence[Sequence[tuple[int, int]]]
    ) -> None:
        self._name, self._shape = name, shape
        table = np.array(layout)  # [lane, element, (row, column)]
        self._at = table[..., 0], table[..., 1]
        covered = np.zeros(shape, bool)
        covered[self._at] = True
        if not covered.all():
            raise InternalError(
                f"the layout of {name} leaves out {np.argwhere(~covered).tolist()[0]} of {shape}"
            )

    def matrix(self, fragments: Sequence[Value]) -> Array:
        """Gather the fragments; elements that several lanes hold must agree."""
        held = np.stack([np.atleast_1d(f) for f in fragments])
        if held.shape != self._at[0].shape:
            raise UndefinedError(
                f"fragments of {self._name} are {held.shape}, the layout is {self._at[0].shape}"
            )
        matrix = np.empty(self._shape, held.dtype)
        matrix[self._at] = held
        if self.fragments(matrix).tobytes() != held.tobytes():
            raise UndefinedError(
                f"lanes that hold the same element of {self._name} have different values for it"
            )
        return matrix

    def fragments(self, matrix: Array) -> Array:
        return np.ascontiguousarray(matrix[self._at])
