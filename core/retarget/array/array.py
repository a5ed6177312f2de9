"""`Array`: a lazy array, and the elementwise operators, whose cost is what building an expression costs.

An `Array` holds a graph node and the name of the device that it will be computed on.  Operators make nodes;
nothing runs until a value is needed.  Arrays have value semantics: assignment (`x[1:] = y`, `x += y`) gives
this `Array` object another node, so overlapping assignments are right by construction, and arrays derived
from it earlier keep their values.

Type rules: two arrays promote by `dtypes.promote`, Python scalars are weak (`dtypes.promote_scalar`), NumPy
scalars and arrays count as arrays.  Where a floating-point operation is given integers or bool, they become
float32, the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union

from ..errors import CopyError, DeviceError, DTypeError, ShapeError
from ..ir import dtypes, ops
from ..ir.dtypes import ARRAY_DTYPES, DType, bool_, float32, promote, promote_scalar
from ..ir.ops import Op
from ..ir.sizes import shape_text, size_text
from ..ir.uop import Shape, UOp
from .movement import _full_cache as _constants
from .movement import broadcast_shapes, broadcast_to, constant_of, full

if TYPE_CHECKING:
    import types

    import numpy as np
    from typing_extensions import CapsuleType

Scalar = bool | int | float
#: What elementwise functions take: an array, a Python scalar, or a NumPy array or scalar.
Operand = Union["Array", bool, int, float, "np.ndarray[Any, Any]", "np.generic"]
Axis = int | Sequence[int] | None

FLOATS = frozenset(d for d in ARRAY_DTYPES if d.kind == "float")
INTS = frozenset(d for d in ARRAY_DTYPES if d.is_int)
NUMERIC = FLOATS | INTS
INTS_AND_BOOL = INTS | {bool_}
ALL_DTYPES = frozenset(ARRAY_DTYPES)

_REPR_LIMIT = 1000  # elements: repr shows values of smaller arrays


def resolve_device(name: str | None) -> str:
    """Return the full name of a device ("llvm:0"); None and "auto" mean the current default."""
    from ..registry import device

    return device(name).name


class Array:
    """A lazy array of the array API standard (2024.12).

    Made by the creation functions (`rt.asarray`, `rt.zeros` ...) and by operations on other arrays, not
    directly.

    Attributes
    ----------
    node
        The graph node that says what the array is; a BUFFER node once it was realized.
    """

    __slots__ = ("__weakref__", "_device", "node")
    node: UOp
    _device: str  # "" while nothing ties the array to a device: it is built from constants alone

    __array_ufunc__ = None  # NumPy's operators leave mixed expressions to ours

    def __init__(self, node: UOp, device: str = "") -> None:
        self.node = node
        self._device = device

    # -- what it is ----------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def ndim(self) -> int:
        return len(self.node.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        n = 1
        for length in self.node.shape:
            n *= length
        return n

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.node.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def device(self) -> str:
        """Name of the device that the array is computed on."""
        return self._device or resolve_device(None)

    @property
    def T(self) -> Array:
        """The transpose of a matrix."""
        from .manipulation import permute_dims

        if self.ndim != 2:
            raise ShapeError(
                f".T is for 2 axes, and this array has shape {self.shape}; use .mT or rt.permute_dims"
            )
        return permute_dims(self, (1, 0))

    @property
    def mT(self) -> Array:
        """The transpose of each matrix in a stack: the last two axes swapped."""
        from .manipulation import matrix_transpose

        return matrix_transpose(self)

    def __array_namespace__(self, *, api_version: str | None = None) -> types.ModuleType:
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            raise ValueError(
                f"array API version {api_version!r} is not supported; the newest known is '2024.12'"
            )
        import retarget

        return retarget

    # -- values --------------------------------------------------------------------------------------------

    def realize(self) -> Array:
        """Compute the array now, and return it.  Its node becomes the BUFFER that holds the values."""
        if self.node.op is not ops.BUFFER:
            from ..runtime.realize import realize

            device = self.device
            self.node = realize([self.node], device)[0]
            self._device = device
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the values as a new NumPy array; bfloat16 and float8 have dtypes of ml_dtypes."""
        from ..runtime.buffers import to_numpy

        return to_numpy(self.realize().node)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise CopyError("converting to NumPy copies; use numpy.from_dlpack(x) to share memory")
        values = self.numpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __dlpack__(
        self,
        *,
        stream: int | Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        from ..runtime.buffers import to_dlpack

        node = self.realize().node
        capsule: CapsuleType = to_dlpack(
            node, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        from ..runtime.buffers import dlpack_device

        return dlpack_device(self.device)

    def to_device(self, device: str, /, *, stream: int | Any | None = None) -> Array:
        """Return the array on another device; the copy is made when a value is needed."""
        if stream is not None:
            raise DeviceError("to_device takes no stream: copies are ordered by what they depend on")
        name = resolve_device(device)
        if not self._device or name == self._device:
            return Array(self.node, name)
        return Array(UOp(ops.COPY, self.node.dtype, (self.node,), name), name)

    def item(self) -> bool | int | float:
        """Return the only element as a Python scalar."""
        if self.size != 1:
            raise ShapeError(f"item() needs an array of one element, and this one has shape {self.shape}")
        value = self.numpy().reshape(())[()].item()
        return float(value) if self.dtype.kind == "float" else value

    def tolist(self) -> Any:
        """Return the values as nested lists of Python scalars, or the scalar of a 0-d array."""
        values = self.numpy()
        return (
            values.astype("float32") if self.dtype.name.startswith(("float8", "bfloat")) else values
        ).tolist()

    def _scalar(self, what: str) -> bool | int | float:
        if self.node.shape:
            advice = "use item(), any() or all()" if what == "bool" else "use item() or astype()"
            raise ShapeError(f"{what}() takes a 0-d array, and this one has shape {self.shape}; {advice}")
        return self.item()

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __index__(self) -> int:
        if not self.dtype.is_int:
            raise DTypeError(
                f"only integer arrays are indices, and this one is {self.dtype}; use x.astype(rt.int64)"
            )
        return int(self._scalar("index"))

    def __len__(self) -> int:
        if not self.node.shape:
            raise ShapeError("a 0-d array has no length; use item() for its value")
        length = self.node.shape[0]
        if isinstance(length, UOp):
            raise ShapeError(
                f"the length {size_text(length)} is only bound at launch; use x.shape[0], a symbolic size"
            )
        return length

    def __iter__(self) -> Iterator[Array]:
        return iter([self[i] for i in range(len(self))])

    def __contains__(self, value: Operand) -> bool:
        from .reduction import any as any_

        return bool(any_(self == value))

    def __repr__(self) -> str:
        """Show shape, dtype and device, and values that are there already; nothing is ever run."""
        text = f"shape={shape_text(self.shape)}, dtype={self.dtype}"
        if self._device:
            text += f", device={self._device!r}"
        if self.node.data is None or self.size > _REPR_LIMIT:
            return f"Array({text})"
        import numpy as np

        return f"Array({np.array2string(self.numpy(), separator=', ', prefix='Array(')}, {text})"

    __hash__ = object.__hash__

    # -- operators: from one table below, and in elementwise.py --------------------------------------------

    if TYPE_CHECKING:

        def __add__(self, other: Operand, /) -> Array: ...
        def __sub__(self, other: Operand, /) -> Array: ...
        def __mul__(self, other: Operand, /) -> Array: ...
        def __truediv__(self, other: Operand, /) -> Array: ...
        def __floordiv__(self, other: Operand, /) -> Array: ...
        def __mod__(self, other: Operand, /) -> Array: ...
        def __pow__(self, other: Operand, /) -> Array: ...
        def __and__(self, other: Operand, /) -> Array: ...
        def __or__(self, other: Operand, /) -> Array: ...
        def __xor__(self, other: Operand, /) -> Array: ...
        def __lshift__(self, other: Operand, /) -> Array: ...
        def __rshift__(self, other: Operand, /) -> Array: ...
        def __lt__(self, other: Operand, /) -> Array: ...
        def __le__(self, other: Operand, /) -> Array: ...
        def __gt__(self, other: Operand, /) -> Array: ...
        def __ge__(self, other: Operand, /) -> Array: ...
        def __eq__(self, other: Operand, /) -> Array: ...  # type: ignore[override]
        def __ne__(self, other: Operand, /) -> Array: ...  # type: ignore[override]
        def __radd__(self, other: Operand, /) -> Array: ...
        def __rsub__(self, other: Operand, /) -> Array: ...
        def __rmul__(self, other: Operand, /) -> Array: ...
        def __rtruediv__(self, other: Operand, /) -> Array: ...
        def __rfloordiv__(self, other: Operand, /) -> Array: ...
        def __rmod__(self, other: Operand, /) -> Array: ...
        def __rpow__(self, other: Operand, /) -> Array: ...
        def __rand__(self, other: Operand, /) -> Array: ...
        def __ror__(self, other: Operand, /) -> Array: ...
        def __rxor__(self, other: Operand, /) -> Array: ...
        def __rlshift__(self, other: Operand, /) -> Array: ...
        def __rrshift__(self, other: Operand, /) -> Array: ...
        def __neg__(self) -> Array: ...
        def __pos__(self) -> Array: ...
        def __invert__(self) -> Array: ...

    def __abs__(self) -> Array:
        from .elementwise import abs as abs_

        return abs_(self)

    def __matmul__(self, other: Operand, /) -> Array:
        from .linalg import matmul

        return matmul(self, other)

    def __rmatmul__(self, other: Operand, /) -> Array:
        from .linalg import matmul

        return matmul(other, self)

    def _assign(self, value: Array) -> Array:
        """Become `value`, as in-place operators do; shape and dtype have to stay."""
        if value.node.shape != self.node.shape:
            raise ShapeError(f"in-place operation would change the shape from {self.shape} to {value.shape}")
        if value.node.dtype is not self.node.dtype:
            raise DTypeError(
                f"in-place operation would change the dtype from {self.dtype} to {value.dtype}; "
                "write x = x + y, or cast the operand"
            )
        self.node, self._device = value.node, value._device
        return self

    def __imatmul__(self, other: Operand, /) -> Array:
        return self._assign(self @ other)

    # -- indexing: in indexing.py --------------------------------------------------------------------------

    if TYPE_CHECKING:

        def __getitem__(self, key: Any, /) -> Array: ...
        def __setitem__(self, key: Any, value: Any, /) -> None: ...

    # -- NumPy's methods of the most used functions --------------------------------------------------------

    def astype(self, dtype: Any, /, *, copy: bool = True) -> Array:
        """Return the array cast to `dtype`, as `rt.astype`."""
        from .elementwise import astype

        return astype(self, dtype, copy=copy)

    def reshape(self, *shape: int | Sequence[int]) -> Array:
        """Return the array with another shape, as `rt.reshape`; `x.reshape(2, -1)` is x.reshape((2, -1))`."""
        from .manipulation import reshape

        return reshape(self, shape[0] if len(shape) == 1 else shape)  # type: ignore[arg-type]

    def flatten(self) -> Array:
        """Return the array with one axis."""
        return self.reshape(-1)

    def sum(self, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
        """Return `rt.sum` of the array."""
        from .reduction import sum as function

        return function(self, axis=axis, dtype=dtype, keepdims=keepdims)

    def prod(self, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
        """Return `rt.prod` of the array."""
        from .reduction import prod

        return prod(self, axis=axis, dtype=dtype, keepdims=keepdims)

    def max(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        """Return `rt.max` of the array."""
        from .reduction import max as function

        return function(self, axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        """Return `rt.min` of the array."""
        from .reduction import min as function

        return function(self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        """Return `rt.mean` of the array."""
        from .reduction import mean

        return mean(self, axis=axis, keepdims=keepdims)

    def any(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        """Return `rt.any` of the array."""
        from .reduction import any as function

        return function(self, axis=axis, keepdims=keepdims)

    def all(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        """Return `rt.all` of the array."""
        from .reduction import all as function

        return function(self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Array:
        """Return `rt.argmax` of the array."""
        from .reduction import argmax

        return argmax(self, axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Array:
        """Return `rt.argmin` of the array."""
        from .reduction import argmin

        return argmin(self, axis=axis, keepdims=keepdims)


# -- operands ----------------------------------------------------------------------------------------------

_PYTHON_SCALARS = frozenset({bool, int, float})
_RANGES = {d: range(int(d.min), int(d.max) + 1) for d in INTS}


def as_array(value: Operand, device: str = "") -> Array | None:
    """Return `value` as an array if it is one, or a NumPy array or scalar; None otherwise."""
    if isinstance(value, Array):
        return value
    if type(value) in _PYTHON_SCALARS:
        return None
    if type(value).__module__ == "numpy":
        from .creation import asarray

        return asarray(value, device=device or None)
    return None


def takes(value: object) -> bool:
    """Whether `value` may be an operand."""
    kind = type(value)
    return (
        kind is Array
        or kind in _PYTHON_SCALARS
        or kind.__module__ == "numpy"
        or isinstance(value, (int, float))
    )


def common_device(name: str, a: str, b: str) -> str:
    """Return the device of an operation between arrays on `a` and `b`; "" goes with any."""
    if a == b or not b:
        return a
    if not a:
        return b
    raise DeviceError(f"{name} was given arrays on {a!r} and {b!r}; move one with x.to_device({a!r})")


def require_array(name: str, value: Operand) -> Array:
    """Return `value` as an array, making a 0-d constant of a Python scalar."""
    if type(value) is Array:
        return value
    if not takes(value):
        raise DTypeError(
            f"{name} takes arrays and scalars, got {type(value).__name__}; convert it with rt.asarray"
        )
    found = as_array(value)
    return scalar_array(value) if found is None else found  # type: ignore[arg-type]


def scalar_array(value: Scalar, dtype: DType | None = None) -> Array:
    """Return a 0-d constant; without `dtype`: bool, int64 or float32 by the scalar's type."""
    return Array(full(value, scalar_dtype(value) if dtype is None else dtype, ()))


def scalar_dtype(value: Scalar) -> DType:
    """Return the default dtype of a Python scalar: bool, int64 or float32."""
    return bool_ if isinstance(value, bool) else dtypes.int64 if isinstance(value, int) else float32


def cast(node: UOp, dtype: DType) -> UOp:
    """Return `node` converted to `dtype`; constants stay so where Python converts them exactly."""
    if node.dtype is dtype:
        return node
    scalar = constant_of(node)
    if scalar is not None:
        value = scalar.arg
        # Beyond 2**53 an integer would be rounded twice, and a float that does not fit int64 has no exact
        # conversion.
        limit = 2.0**53 if scalar.dtype.kind != "float" else 2.0**63
        if dtype is bool_ or (dtype.is_float and scalar.dtype.is_float) or -limit < value < limit:
            return full(value, dtype, node.shape)
    return UOp(ops.CAST, dtype, (node,))


def operands(name: str, *values: Operand) -> tuple[list[UOp], str]:
    """Return nodes of one dtype and shape for the operands of an elementwise operation, and their device."""
    device = ""
    for value in values:
        if isinstance(value, Array):
            device = common_device(name, device, value._device)
    shapes: list[Shape] = []
    nodes: list[UOp | None] = []
    dtype: DType | None = None
    for value in values:
        kind = type(value)
        array = value if isinstance(value, Array) else None
        if array is None and kind not in _PYTHON_SCALARS:
            if not takes(value):
                raise DTypeError(
                    f"{name} takes arrays and scalars, got {kind.__name__}; convert it with rt.asarray"
                )
            array = as_array(value, device)
        if array is None:
            nodes.append(None)
            continue
        device = device or array._device
        nodes.append(array.node)
        shapes.append(array.node.shape)
        dtype = array.node.dtype if dtype is None else promote(dtype, array.node.dtype)
    scalars: list[Any] = [v for v, n in zip(values, nodes, strict=True) if n is None]
    if dtype is None:
        for value in scalars:
            found = scalar_dtype(value)
            dtype = found if dtype is None else promote(dtype, found)
        assert dtype is not None  # there is at least one operand
    for value in scalars:
        dtype = promote_scalar(dtype, value)
    shape = shapes[0] if len(shapes) == 1 else broadcast_shapes(*shapes)
    return [
        full(value, dtype, shape)  # type: ignore[arg-type]
        if node is None
        else broadcast_to(cast(node, dtype), shape)
        for value, node in zip(values, nodes, strict=True)
    ], device


def refuse_dtype(name: str, dtype: DType, accepted: frozenset[DType]) -> DTypeError:
    """Return the error for an operation that is not defined for `dtype`."""
    kinds = {
        NUMERIC: "a numeric",
        FLOATS: "a floating-point",
        INTS: "an integer",
        INTS_AND_BOOL: "an integer or bool",
    }
    example = "rt.float32" if accepted == FLOATS else "rt.int32"
    return DTypeError(f"{name} needs {kinds[accepted]} array, got {dtype}; use x.astype({example})")


# -- the fast paths ----------------------------------------------------------------------------------------

Binary = Callable[[Any, Any], Any]
Unary = Callable[[Any], Array]


def _binary_method(
    name: str,
    op: Op,
    accepted: frozenset[DType],
    *,
    result: DType | None = None,
    swap: bool = False,
    to_float: bool = False,
    special: Callable[[Array, Any], Array | None] | None = None,
) -> tuple[Binary, Binary, Binary]:
    """Return `x op y` as a method, its reflected form and a function.

    Parameters
    ----------
    accepted
        Dtypes, after promotion, that the operation is defined for.
    result
        The result's dtype, if it is not that of the operands.
    swap
        Whether the node has its operands the other way round.
    to_float
        Whether integers and bool become float32.
    special
        Called first when the second operand is a Python scalar; None from it means no special case.
    """
    new, array_type = UOp, Array
    lookup = _constants.get

    def slow(x: Operand, y: Operand) -> Array:
        (a, b), device = operands(name, x, y)
        if to_float and a.dtype not in FLOATS:
            a, b = cast(a, float32), cast(b, float32)
        dtype = a.dtype
        if dtype not in accepted:
            raise refuse_dtype(name, dtype, accepted)
        return array_type(new(op, result or dtype, (b, a) if swap else (a, b)), device)

    def forward(self: Array, other: Any, /) -> Any:  # an Array, or NotImplemented
        a = self.node
        dtype = a.dtype
        if dtype in accepted:
            kind = type(other)
            if kind is array_type:
                b = other.node
                device = self._device
                if b.dtype is dtype and b.shape == a.shape and other._device == device:
                    return array_type(new(op, result or dtype, (b, a) if swap else (a, b)), device)
                if b.dtype is dtype and (other._device == device or not other._device):
                    shape = broadcast_shapes(a.shape, b.shape)
                    a, b = broadcast_to(a, shape), broadcast_to(b, shape)
                    return array_type(new(op, result or dtype, (b, a) if swap else (a, b)), device)
            elif kind is float or kind is int:
                if special is not None:
                    found = special(self, other)
                    if found is not None:
                        return found
                if dtype in FLOATS or (kind is int and dtype in _RANGES and other in _RANGES[dtype]):
                    b = lookup((other or str(other), dtype, a.shape))
                    if b is None:
                        b = full(other, dtype, a.shape)
                    return array_type(new(op, result or dtype, (b, a) if swap else (a, b)), self._device)
        if not takes(other):
            return NotImplemented
        return slow(self, other)

    def reflected(self: Array, other: Any, /) -> Any:
        a = self.node
        dtype = a.dtype
        kind = type(other)
        if (kind is float or kind is int) and dtype in FLOATS and dtype in accepted:
            b = full(other, dtype, a.shape)
            return array_type(new(op, result or dtype, (a, b) if swap else (b, a)), self._device)
        if not takes(other):
            return NotImplemented
        return slow(other, self)

    def function(x1: Operand, x2: Operand, /) -> Any:
        if type(x1) is array_type and takes(x2):
            return forward(x1, x2)
        return slow(x1, x2)

    function.__name__ = function.__qualname__ = name
    meaning = op.meaning.replace("<", ">") if swap else op.meaning
    function.__doc__ = f"Return {meaning}."
    return forward, reflected, function


def _integer_power(x: Array, exponent: Any) -> Array | None:
    """x ** n for Python numbers n of which a few products do: ints for integers, 2 for floats."""
    node = x.node
    if node.dtype in FLOATS:
        if exponent == 2:
            return Array(UOp(ops.MUL, node.dtype, (node, node)), x._device)
        return None
    if type(exponent) is not int:
        return None
    if exponent < 0:
        raise DTypeError(
            f"integers of {node.dtype} have no power {exponent}; use x.astype(rt.float32) ** {exponent}"
        )
    result: UOp | None = None
    while exponent:
        if exponent & 1:
            result = node if result is None else UOp(ops.MUL, node.dtype, (result, node))
        exponent >>= 1
        if exponent:
            node = UOp(ops.MUL, node.dtype, (node, node))
    return Array(full(1, node.dtype, node.shape) if result is None else result, x._device)


def _check_shift(x: Array, count: Any) -> None:
    if count < 0:
        raise DTypeError(f"shift by {count}: counts must not be negative; shift the other way")


_FUNCTIONS: dict[str, Any] = {}


def _define(dunder: str, name: str, op: Op, accepted: frozenset[DType], **options: Any) -> None:
    forward, reflected, function = _binary_method(name, op, accepted, **options)
    _FUNCTIONS[name] = function
    if dunder:
        setattr(Array, f"__{dunder}__", forward)
        if options.get("result") is None:
            setattr(Array, f"__r{dunder}__", reflected)

            def in_place(self: Array, other: Operand, /) -> Any:
                value = forward(self, other)
                return value if value is NotImplemented else self._assign(value)

            setattr(Array, f"__i{dunder}__", in_place)


_define("add", "add", ops.ADD, ALL_DTYPES)
_define("sub", "subtract", ops.SUB, NUMERIC)
_define("mul", "multiply", ops.MUL, ALL_DTYPES)
_define("truediv", "divide", ops.FDIV, FLOATS, to_float=True)
_define("floordiv", "floor_divide", ops.FLOORDIV, NUMERIC)
_define("mod", "remainder", ops.MOD, NUMERIC)
_define("pow", "pow", ops.POW, NUMERIC, special=_integer_power)
_define("and", "bitwise_and", ops.AND, INTS_AND_BOOL)
_define("or", "bitwise_or", ops.OR, INTS_AND_BOOL)
_define("xor", "bitwise_xor", ops.XOR, INTS_AND_BOOL)
_define("lshift", "bitwise_left_shift", ops.SHL, INTS, special=_check_shift)
_define("rshift", "bitwise_right_shift", ops.SHR, INTS, special=_check_shift)
_define("lt", "less", ops.CMPLT, ALL_DTYPES, result=bool_)
_define("le", "less_equal", ops.CMPLE, ALL_DTYPES, result=bool_)
_define("gt", "greater", ops.CMPLT, ALL_DTYPES, result=bool_, swap=True)
_define("ge", "greater_equal", ops.CMPLE, ALL_DTYPES, result=bool_, swap=True)
_define("eq", "equal", ops.CMPEQ, ALL_DTYPES, result=bool_)
_define("ne", "not_equal", ops.CMPNE, ALL_DTYPES, result=bool_)
_define("", "maximum", ops.MAXIMUM, ALL_DTYPES)
_define("", "minimum", ops.MINIMUM, ALL_DTYPES)
_define("", "atan2", ops.ATAN2, FLOATS, to_float=True)
