"""`jit`: capture what a function of arrays launches, and replay it with one call.

The first call with arguments of given dtypes and shapes runs the function on placeholders and keeps the plan
of its results; later ones go straight to the launches.  The Python code of the function is not run again, so
it must not depend on anything but its arguments, and must not ask for values.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..array.array import Array
from ..errors import DTypeError, ShapeError, UnknownNameError, UserError
from ..ir import dtypes, ops
from ..ir.uop import UOp
from ..pipeline import runtime
from .buffers import Buffer, buffer_node, data_of, placeholder_node
from .realize import Plan, capturing, plan_for


class CaptureError(UserError, RuntimeError):
    """A captured function did something that cannot be replayed."""


class _Capture:
    """The launches of one call signature.

    Attributes
    ----------
    plan
        What runs.
    fixed
        The plan's inputs as buffers, with None where an argument goes.
    argument_of
        (plan input, argument) pairs.
    rebuild
        Makes the function's result of the computed arrays and the arguments.
    replay
        Computes the function on arguments of the captured dtypes and shapes.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: list[Array],
        call: tuple[Any, ...],
        device: str,
        leading: Sequence[UOp | None] = (),
    ) -> None:
        args, kwargs = call
        placeholders = [Array(buffer_node(data_of(a.node), a.dtype, a.shape), device) for a in arguments]
        for n, size in enumerate(leading):  # an array whose length is bound at launch has no values yet
            if size is not None:
                a = arguments[n]
                shape: tuple[Any, ...] = (size, *a.shape[1:])
                placeholders[n] = Array(placeholder_node(a.dtype, shape, device), device)
        fill = iter(placeholders)
        filled = [next(fill) if isinstance(a, Array) else a for a in args]
        filled_kwargs = {k: next(fill) if isinstance(v, Array) else v for k, v in kwargs.items()}
        number = {p.node: n for n, p in enumerate(placeholders)}  # before `x += 1` gives one another node
        with capturing():
            result = function(*filled, **filled_kwargs)
        leaves: list[Array] = []
        self.rebuild = _structure(result, leaves)
        roots = list(dict.fromkeys(x.node for x in leaves if x.node.op is not ops.BUFFER))
        self.device = device
        self.plan: Plan | None = None
        inputs: list[UOp] = []
        if roots:
            self.plan, inputs = plan_for(roots, device, bool(leading))
        self.argument_of = [(n, number[u]) for n, u in enumerate(inputs) if u in number]
        self.fixed: list[Buffer | None] = [None if u in number else data_of(u) for u in inputs]
        # Each leaf is a computed root, an argument returned as it is, or an array from outside the function.
        self.leaves: list[tuple[int, int, Array | None]] = []
        for x in leaves:
            if x.node in number:
                self.leaves.append((-1, number[x.node], None))
            elif x.node.op is ops.BUFFER:
                self.leaves.append((-1, -1, x))
            else:
                self.leaves.append((roots.index(x.node), -1, None))
        self.replay = self._replay()

    def bind(self, values: Mapping[str, int]) -> _Capture:
        """Return the capture for these values of the variables of a symbolic one."""
        bound = copy.copy(self)
        bound.plan = self.plan and self.plan.bind(values)
        bound.replay = bound._replay()
        return bound

    def _replay(self) -> Callable[[Sequence[Array]], Any]:
        if (
            self.plan is not None
            and len(self.plan.steps) == 1
            and self.rebuild is _only
            and self.leaves[0][0] == 0
        ):
            return self._single(self.plan)
        return self.run

    def _single(self, plan: Plan) -> Callable[[Sequence[Array]], Array]:
        """Return the replay of one launch with one result, with everything looked up beforehand."""
        (step,) = plan.steps
        ((slot, dtype, shape),) = plan.results
        size, device = plan.sizes[slot - plan.inputs], self.device
        on = runtime(device)
        allocate, free, launch = on.allocate, on.free, step.executable
        argument = dict(self.argument_of)
        # For each buffer of the kernel behind the output: the argument that it is, or a fixed buffer.
        sources = [(argument.get(n, -1), self.fixed[n]) for n in step.slots[1:]]

        def replay(arguments: Sequence[Array]) -> Array:
            buffer = Buffer(allocate(size), size, device, free)
            launch([buffer.handle, *[
                arguments[n].node.data.handle if fixed is None else fixed.handle for n, fixed in sources
            ]])  # fmt: skip
            return Array(buffer_node(buffer, dtype, shape), device)

        return replay

    def run(self, arguments: Sequence[Array]) -> Any:
        """Launch the plan on these arguments and return the function's result."""
        made: list[UOp] = []
        plan = self.plan
        device = self.device
        if plan is not None:
            inputs = self.fixed.copy()
            for n, a in self.argument_of:
                inputs[n] = arguments[a].node.data
            slots = plan.run(inputs, device)  # type: ignore[arg-type]
            made = [buffer_node(slots[s], d, shape) for s, d, shape in plan.results]  # type: ignore[arg-type]
        out = []
        for root, argument, outside in self.leaves:
            if root >= 0:
                out.append(Array(made[root], device))
            else:
                out.append(Array(arguments[argument].node, device) if outside is None else outside)
        return self.rebuild(iter(out))


def _only(leaves: Any) -> Any:
    return next(leaves)


def _structure(result: Any, leaves: list[Array]) -> Callable[[Any], Any]:
    """Collect the arrays of a nested result; return a function that builds it again from other arrays."""
    if isinstance(result, Array):
        leaves.append(result)
        return _only
    if isinstance(result, tuple | list):
        parts = [_structure(r, leaves) for r in result]
        kind = type(result)
        if hasattr(kind, "_fields"):
            return lambda arrays: kind(*[p(arrays) for p in parts])
        return lambda arrays: kind([p(arrays) for p in parts])
    if isinstance(result, dict):
        keyed = {k: _structure(v, leaves) for k, v in result.items()}
        return lambda arrays: {k: p(arrays) for k, p in keyed.items()}
    raise CaptureError(
        f"a function under rt.jit returned {type(result).__name__}; it may return arrays, "
        "and tuples, lists and dicts of them"
    )


def _distinct(value: Any) -> Any:
    """Return a key in which -0.0 is not 0.0, NaN is NaN, and 1 in a tuple is neither 1.0 nor True."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, tuple):
        return tuple([(type(v), _distinct(v)) for v in value])
    return value


class Jit:
    """A function that is captured once for each combination of argument dtypes, shapes and other values."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._captures: dict[Any, _Capture] = {}
        functools.update_wrapper(self, function, updated=())  # a callable object keeps its attributes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key: list[Any] = []
        arrays: list[Array] = []
        for a in args if not kwargs else (*args, *kwargs.values()):
            if type(a) is Array:
                node = a.node
                if node.op is not ops.BUFFER:
                    node = a.realize().node
                arrays.append(a)
                key += (node.dtype, node.shape, node.arg[2])
            else:
                key += (type(a), a if type(a) is not float and type(a) is not tuple else _distinct(a))
        signature = tuple(key) if not kwargs else (*key, *kwargs)
        try:
            capture = self._captures.get(signature)
        except TypeError as error:
            raise DTypeError(
                f"{self.function.__name__} was called with an argument that is neither an array "
                f"nor hashable; pass NumPy arrays through rt.asarray ({error})"
            ) from None
        if capture is None:
            capture = self._captures[signature] = self._capture(arrays, args, kwargs)
        return capture.replay(arrays)

    def _capture(
        self,
        arrays: list[Array],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leading: Sequence[UOp | None] = (),
    ) -> _Capture:
        devices = {a.device for a in arrays}
        if len(devices) > 1:
            raise DTypeError(
                f"the arguments of {self.function.__name__} are on {', '.join(sorted(devices))}; "
                "use one device"
            )
        from ..array.array import resolve_device

        device = devices.pop() if devices else resolve_device(None)
        return _Capture(self.function, arrays, (args, kwargs), device, leading)


#: Plans that are kept with the values of their variables, for each capture.
_BOUND_LIMIT = 64


class SymbolicJit(Jit):
    """A function that is captured once for all sizes within bounds; these are bound at each call."""

    def __init__(self, function: Callable[..., Any], symbolic: Mapping[str, tuple[str, int, int]]) -> None:
        super().__init__(function)
        self._signature = inspect.signature(function)
        self._variables: dict[str, UOp] = {}
        known: dict[str, UOp] = {}
        for parameter, (name, lowest, highest) in symbolic.items():
            found = self._signature.parameters.get(parameter)
            if found is None or found.kind in (found.VAR_POSITIONAL, found.VAR_KEYWORD):
                raise UnknownNameError("parameter", parameter, self._signature.parameters)
            if not (type(lowest) is int and type(highest) is int and 1 <= lowest <= highest):
                raise ShapeError(f"{name!r} has the bounds {lowest}, {highest}; give 1 <= lowest <= highest")
            if not (name.isascii() and name.isidentifier()):
                raise ShapeError(f"the variable {name!r} needs a name of letters, digits and underscores")
            size = UOp(ops.VAR, dtypes.index, (), (f"size_{name}", lowest, highest))
            if known.setdefault(name, size) is not size:
                raise ShapeError(f"the variable {name!r} has two pairs of bounds; give it one")
            self._variables[parameter] = size
        self._bound: dict[Any, _Capture] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self._signature.bind(*args, **kwargs)
        call.apply_defaults()
        values: dict[str, int] = {}
        key: list[Any] = []
        arrays: list[Array] = []
        leading: list[UOp | None] = []
        filled = dict(call.arguments)
        for parameter, value in call.arguments.items():
            size = self._variables.get(parameter)
            if isinstance(value, Array):
                value.realize()
                shape: tuple[Any, ...] = value.shape
                if size is not None:
                    self._bind(values, parameter, size, shape[0] if shape else None)
                    shape = (size, *shape[1:])
                arrays.append(value)
                leading.append(size)
                key += (value.dtype, shape, value.device)
            elif size is not None:
                self._bind(values, parameter, size, value if type(value) is int else None)
                filled[parameter] = size
                key.append(size)
            else:
                key += (type(value), value)
        signature = tuple(key)
        bound_key = (signature, *values.values())
        try:
            bound = self._bound.get(bound_key)
        except TypeError as error:
            raise DTypeError(
                f"{self.function.__name__} was called with an argument that is neither array nor hashable; "
                f"pass NumPy arrays through rt.asarray ({error})"
            ) from None
        if bound is None:
            capture = self._captures.get(signature)
            if capture is None:
                call.arguments.update(filled)
                capture = self._capture(arrays, call.args, call.kwargs, leading or [None])
                self._captures[signature] = capture
            if len(self._bound) >= _BOUND_LIMIT:
                self._bound.clear()
            bound = self._bound[bound_key] = capture.bind(values)
        return bound.replay(arrays)

    def _bind(self, values: dict[str, int], parameter: str, size: UOp, value: int | None) -> None:
        """Bind a variable to what a call gives."""
        name, lowest, highest = size.arg
        shown = name.removeprefix("size_")
        if value is None:
            raise ShapeError(
                f"{self.function.__name__}: {parameter} gives {shown!r}; pass an int or an array with axes"
            )
        if not lowest <= value <= highest:
            raise ShapeError(
                f"{self.function.__name__}: {parameter} makes {shown!r} {value}, outside its bounds "
                f"{lowest} ... {highest}"
            )
        if values.setdefault(name, value) != value:
            raise ShapeError(
                f"{self.function.__name__}: {parameter} makes {shown!r} {value}, "
                f"another argument {values[name]}"
            )


def jit(function: Callable[..., Any], *, symbolic: Mapping[str, tuple[str, int, int]] | None = None) -> Jit:
    """Return a version of `function` that is captured at its first call and replayed afterwards.

    Parameters
    ----------
    function
        Takes arrays (and hashable values, which become part of what is captured) and returns an array, or
        nested tuples, lists and dicts of arrays.  Arrays that it uses from outside are captured with the
        values they have then.
    symbolic
        For parameters, by name, the variable that they give and its inclusive bounds:
        `{"x": ("n", 1, 4096)}`.  It is the length of an array's leading axis, or the value of an int, which
        the function sees as a size without a value.  One capture serves every value.  Parameters that give
        the same variable have to agree at each call.

    Raises
    ------
    CaptureError
        At a call, if the function asks for a value (`item()`, `numpy.asarray`, `if x:`) or returns something
        else.
    ShapeError
        At a call, if a variable is out of bounds, two arguments disagree on it, or the function's result
        depends on it in a way that cannot be decided for all values.

    Examples
    --------
    >>> step = rt.jit(lambda x: rt.sum(x * x, axis=0))
    >>> step(x)
    """
    return SymbolicJit(function, symbolic) if symbolic else Jit(function)
