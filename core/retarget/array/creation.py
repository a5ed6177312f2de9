"""Creation functions.  Those that follow a rule (`zeros`, `arange`, `eye` ...) make no buffer, only a graph.

Default dtypes: bool, int64 and float32.  Copy rule: `asarray` of NumPy arrays, lists and buffers copies at
once, so that later changes of the source never show; `from_dlpack` shares memory where it can.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import CopyError, DTypeError, ShapeError
from ..ir import dtypes, ops
from ..ir.dtypes import DType, as_dtype, bool_, float32, int64
from ..ir.sizes import upper
from ..ir.uop import Shape, UOp, round_float
from . import movement
from .array import Array, Scalar, cast, require_array, resolve_device, scalar_dtype

if TYPE_CHECKING:
    import numpy as np


def normal_shape(shape: int | Sequence[int], where: str) -> Shape:
    """Return `shape` as a tuple of ints that are not negative."""
    try:
        out: Shape = (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        try:
            out = tuple([operator.index(n) for n in shape])  # type: ignore[union-attr]
        except TypeError:
            out = _symbolic_shape(shape)
            if not out:
                raise ShapeError(f"{where} needs a shape: an int or a tuple of ints, got {shape!r}") from None
    if builtins.any(n < 0 for n in out):
        raise ShapeError(f"{where} needs lengths that are not negative, got {shape!r}")
    return out


def is_size(n: object) -> bool:
    """Whether `n` is a size that is bound at launch."""
    return isinstance(n, UOp) and n.dtype is dtypes.index


def _symbolic_shape(shape: Any) -> Shape:
    """Return a shape in which sizes are bound at launch, or () if it is no shape."""
    lengths = (shape,) if is_size(shape) else tuple(shape) if isinstance(shape, Sequence) else ()
    if not builtins.all(is_size(n) or hasattr(n, "__index__") for n in lengths):
        return ()
    return tuple([n if is_size(n) else operator.index(n) for n in lengths])


def _named(device: str | None) -> str:
    return "" if device is None else resolve_device(device)


def iota(n: int) -> UOp:
    """Return the node of 0, 1 ... n - 1 in int64."""
    return UOp(ops.IOTA, int64, (), n) if n else movement.full(0, int64, (0,))


# -- from data ---------------------------------------------------------------------------------------------


def asarray(obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: bool | None = None) -> Array:
    """Return an array of `obj`.

    Parameters
    ----------
    obj
        An Array, a Python scalar, nested lists or tuples of them, a NumPy array (any strides and byte
        order), or an object with the buffer protocol, `__array__` or `__dlpack__`.
    dtype
        The result's dtype.  By default an array keeps its own; scalars and lists become bool, int64 or
        float32.
    device
        Name of the device; by default that of an Array, else the default device.
    copy
        An Array is returned as it is where nothing has to change, unless `copy` is true.  Everything else is
        copied, and `copy=False` is refused.

    Raises
    ------
    DTypeError
        If an element is no number, or (NaN, infinities and integers out of range) has no value in `dtype`.
    ShapeError
        If nested lists are ragged.
    CopyError
        If `copy=False` and a copy is needed.
    """
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(obj, Array):
        return _from_array(obj, wanted, device, copy)
    if copy is False:
        raise CopyError("asarray copies what is not an Array; use rt.from_dlpack(x) to share memory")
    if isinstance(obj, (bool, int, float)) and type(obj).__module__ != "numpy":
        _check_value(obj, wanted)
        target = scalar_dtype(obj) if wanted is None else wanted
        if wanted is None and target is int64:
            _check_value(obj, int64)
        return Array(movement.full(_exact(obj, target), target, ()), _named(device))
    if isinstance(obj, (list, tuple)):
        return _from_nested(obj, wanted, device)

    import numpy as np

    source: Any = obj
    if not isinstance(obj, (np.ndarray, np.generic)):
        if hasattr(obj, "__array__") or hasattr(obj, "__array_interface__"):
            source = np.asarray(obj)
        elif _has_buffer(obj):
            source = np.asarray(memoryview(source))
        elif hasattr(obj, "__dlpack__"):
            source = np.from_dlpack(source)
        else:
            raise DTypeError(
                f"cannot make an array of {type(obj).__name__}; give numbers, lists, a NumPy array, or "
                "an object with __array__, __dlpack__ or the buffer protocol"
            )
    return _from_numpy(source, wanted, device)


def _has_buffer(obj: Any) -> bool:
    try:
        memoryview(obj)
    except TypeError:
        return False
    return True


def _exact(value: Scalar, dtype: DType) -> Scalar:
    return int(value) if dtype.is_int else value


def _check_value(value: Scalar, dtype: DType | None, where: str = "") -> None:
    """Refuse a Python scalar that has no value in an integer `dtype`."""
    if dtype is None or not dtype.is_int:
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise DTypeError(f"{value}{where} has no value in {dtype}; give a floating-point dtype")
    if not dtype.min <= int(value) <= dtype.max:
        raise DTypeError(f"{value}{where} does not fit {dtype}, whose range is [{dtype.min}, {dtype.max}]")


def _from_array(x: Array, wanted: DType | None, device: str | None, copy: bool | None) -> Array:
    target = x.to_device(device) if device is not None else x
    same = (wanted is None or wanted is x.dtype) and target.node is x.node
    if same and not copy and target._device in (x._device, ""):
        return x
    if copy is False and not same:
        raise CopyError(
            f"asarray of an array of {x.dtype} on {x.device} needs a copy here, and copy=False forbids it"
        )
    return Array(cast(target.node, wanted or x.dtype), target._device)


def _from_nested(obj: Sequence[Any], wanted: DType | None, device: str | None) -> Array:
    """Build an array of nested lists, telling where they are ragged or hold something else than numbers."""
    import numpy as np

    shape: list[int] = []
    probe: Any = obj
    while isinstance(probe, (list, tuple)):
        shape.append(len(probe))
        if not probe:
            break
        probe = probe[0]
    leaves: list[Any] = []
    _flatten(obj, tuple(shape), "", leaves)
    if wanted is None:
        wanted = _common_dtype(leaves)
    # Leaf by leaf, so that no value passes through a narrower or wider type on the way, and each error has
    # a number.
    for n, leaf in enumerate(leaves):
        if isinstance(leaf, (bool, int, float)):
            _check_value(leaf, wanted, f" (element {n})")
    target = dtypes.to_numpy(wanted)
    try:
        values = np.array([_exact(v, wanted) for v in leaves], target)
    except OverflowError:
        raise DTypeError(f"an integer in the list is too large for {wanted}") from None
    return _from_numpy(values.reshape(shape), wanted, device)


def _flatten(obj: Any, shape: tuple[int, ...], path: str, leaves: list[Any]) -> None:
    if isinstance(obj, (list, tuple)):
        if not shape or len(obj) != shape[0]:
            expected = f"a list of length {shape[0]}" if shape else "a number"
            raise ShapeError(
                f"ragged nested list: item {path or '[]'} is a list of length {len(obj)}, expected {expected}"
            )
        for i, item in enumerate(obj):
            _flatten(item, shape[1:], f"{path}[{i}]", leaves)
        return
    if isinstance(obj, Array):
        raise DTypeError(f"item {path} of the list is an Array; use rt.stack to join arrays")
    if not isinstance(obj, (bool, int, float)) and not (
        type(obj).__module__ == "numpy" and getattr(obj, "ndim", 1) == 0
    ):
        raise DTypeError(f"item {path} of the list is {type(obj).__name__}, expected a real number")
    if shape:
        raise ShapeError(f"ragged nested list: item {path} is a number, expected a list of length {shape[0]}")
    leaves.append(obj)


def _common_dtype(leaves: list[Any]) -> DType:
    """Return bool, int64 or float32 for Python scalars; NumPy's scalars promote with their own dtypes."""
    found: DType | None = None
    for leaf in leaves:
        d = scalar_dtype(leaf) if type(leaf).__module__ != "numpy" else as_dtype(leaf.dtype)
        if d is not found:
            found = d if found is None else dtypes.promote(found, d)
    return float32 if found is None else found


def _from_numpy(values: np.ndarray[Any, Any] | np.generic, wanted: DType | None, device: str | None) -> Array:
    import numpy as np

    from ..runtime.buffers import from_numpy

    source = as_dtype(values.dtype)
    target = source if wanted is None else wanted
    if target is not source and target.is_int and source.is_float and values.size:
        kept = np.trunc(values.astype(np.float64))
        good = np.isfinite(kept) & (kept >= float(target.min)) & (kept < float(target.max) + 1.0)
        if not good.all():
            bad = np.argwhere(~good)[0].tolist()
            raise DTypeError(
                f"element {bad} of the array, {float(values[tuple(bad)])}, has no value in {target}; "  # type: ignore[index]
                "clean it with numpy.nan_to_num or numpy.clip, or give a floating-point dtype"
            )
    if isinstance(values, np.generic) or (values.ndim == 0 and device is None):
        value: Any = values.item() if source.name in _PLAIN else float(values)
        return Array(movement.full(_exact(value, target), target, ()), _named(device))
    native = np.asarray(values, dtypes.to_numpy(target), order="C")
    name = resolve_device(device)
    return Array(from_numpy(native, name), name)


_PLAIN = frozenset(d.name for d in dtypes.ARRAY_DTYPES if not d.name.startswith(("float8", "bfloat")))


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Array:
    """Return an array that shares the memory of `x`, an object with `__dlpack__` (NumPy's, PyTorch's ...).

    The caller must not change that memory while the array, or anything lazy made of it, is in use.
    `copy=True` copies instead; `copy=False` refuses where sharing is impossible.
    """
    if not hasattr(x, "__dlpack__"):
        raise DTypeError(
            f"from_dlpack needs an object with __dlpack__, got {type(x).__name__}; use rt.asarray"
        )
    if isinstance(x, Array):
        return _from_array(x, None, device, copy)
    if copy:
        import numpy as np

        return _from_numpy(np.from_dlpack(x), None, device)
    from ..runtime.buffers import from_dlpack as share

    name = resolve_device(device)
    return Array(share(x, name), name)


# -- by rule -----------------------------------------------------------------------------------------------


def full(
    shape: int | Sequence[int], fill_value: Scalar | Array, *, dtype: Any = None, device: str | None = None
) -> Array:
    """Return an array of one value; without `dtype` bool, int64 or float32 by the value's type."""
    dims = normal_shape(shape, "full")
    if isinstance(fill_value, (bool, int, float)) and type(fill_value).__module__ != "numpy":
        target = scalar_dtype(fill_value) if dtype is None else as_dtype(dtype)
        _check_value(fill_value, target)
        return Array(movement.full(_exact(fill_value, target), target, dims), _named(device))
    value = require_array("full", fill_value)
    if value.ndim:
        raise ShapeError(f"full takes a scalar or a 0-d array, got shape {value.shape}; use rt.broadcast_to")
    if device is not None:
        value = value.to_device(device)
    node = cast(value.node, value.dtype if dtype is None else as_dtype(dtype))
    return Array(movement.broadcast_to(node, dims), value._device)


def zeros(shape: int | Sequence[int], *, dtype: Any = None, device: str | None = None) -> Array:
    """Return an array of zeros, float32 by default."""
    return full(shape, 0, dtype=dtype or float32, device=device)


def ones(shape: int | Sequence[int], *, dtype: Any = None, device: str | None = None) -> Array:
    """Return an array of ones, float32 by default."""
    return full(shape, 1, dtype=dtype or float32, device=device)


def empty(shape: int | Sequence[int], *, dtype: Any = None, device: str | None = None) -> Array:
    """Return an array of unspecified values (zeros: a lazy array has no memory to leave uninitialised)."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Array, /, fill_value: Scalar, *, dtype: Any = None, device: str | None = None) -> Array:
    """Return an array of one value with the shape, and by default the dtype and device, of x."""
    out = full(x.shape, fill_value, dtype=dtype or x.dtype, device=device)
    return Array(out.node, out._device or x._device)


def zeros_like(x: Array, /, *, dtype: Any = None, device: str | None = None) -> Array:
    """Return zeros with the shape, and by default the dtype and device, of x."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Array, /, *, dtype: Any = None, device: str | None = None) -> Array:
    """Return ones with the shape, and by default the dtype and device, of x."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Array, /, *, dtype: Any = None, device: str | None = None) -> Array:
    """Return unspecified values (zeros) with the shape, and by default the dtype and device, of x."""
    return full_like(x, 0, dtype=dtype, device=device)


def arange(
    start: int | float,
    /,
    stop: int | float | None = None,
    step: int | float = 1,
    *,
    dtype: Any = None,
    device: str | None = None,
) -> Array:
    """Return evenly spaced values of [start, stop), NumPy's bit for bit in the same dtype.

    Without `dtype`, int64 if start, stop and step are ints, else float32.
    """
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ShapeError("arange needs a step other than 0")
    default = int64 if builtins.all(isinstance(v, int) for v in (start, stop, step)) else float32
    target = default if dtype is None else as_dtype(dtype)
    if is_size(start) or is_size(stop):
        return _symbolic_arange(start, stop, step, dtype, device)
    span = (stop - start) / step if default is float32 else -((start - stop) // step)
    if not math.isfinite(span):
        raise ShapeError(f"arange from {start} to {stop} by {step} has no finite length")
    n = builtins.max(0, math.ceil(span))
    name = _named(device)
    if target.kind == "bool":
        raise DTypeError("arange needs a numeric dtype, got bool")
    if target.is_int:
        first, delta = int(start), int(start + step) - int(start)
        for value in (first, first + builtins.max(n - 1, 0) * delta):
            _check_value(value, target, " (an end of arange)")
        node = iota(n)
        if delta != 1:
            node = UOp(ops.MUL, int64, (node, movement.full(delta, int64, (n,))))
        if first:
            node = UOp(ops.ADD, int64, (node, movement.full(first, int64, (n,))))
        return Array(cast(node, target), name)
    # As NumPy fills: the difference of the first two values, rounded, times the number, in float32 for
    # narrower types.
    first_value, second = round_float(float(start), target), round_float(float(start + step), target)
    work = target if target.bits >= 32 else float32
    difference = round_float(second - first_value, work)
    base, scale = movement.full(first_value, work, (n,)), movement.full(difference, work, (n,))
    node = UOp(ops.ADD, work, (base, UOp(ops.MUL, work, (cast(iota(n), work), scale))))
    if n > 1 and round_float(round_float(first_value + difference, work), target) != second:
        at = UOp(ops.CMPEQ, bool_, (iota(n), movement.full(1, int64, (n,))))
        node = UOp(ops.WHERE, work, (at, movement.full(second, work, (n,)), node))
    return Array(cast(node, target), name)


def _symbolic_arange(start: Any, stop: Any, step: Any, dtype: Any, device: str | None) -> Array:
    """Return `arange` between ends of which one is bound at launch: integers, in ascending steps."""
    ends_fit = builtins.all(type(v) is int or is_size(v) for v in (start, stop))
    if not (ends_fit and type(step) is int and step > 0):
        raise ShapeError(
            "arange with an end that is bound at launch takes integers and a positive step, "
            f"got {start!r}, {stop!r}, {step!r}"
        )
    target = int64 if dtype is None else as_dtype(dtype)
    if target.kind == "bool":
        raise DTypeError("arange needs a numeric dtype, got bool")
    if stop < start:
        raise ShapeError("arange with an end that is bound at launch needs a stop not below its start")
    n = (stop - start + (step - 1)) // step
    for value in (upper(stop), start if type(start) is int else start.vmin):
        _check_value(value, target, " (an end of arange)")
    node = iota(n)
    if step != 1:
        node = UOp(ops.MUL, int64, (node, movement.full(step, int64, (n,))))
    if start != 0:
        node = UOp(ops.ADD, int64, (node, movement.full_size(start, int64, (n,))))
    return Array(cast(node, target), _named(device))


def linspace(
    start: int | float,
    stop: int | float,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Array:
    """Return `num` evenly spaced values from start to stop (`endpoint`: inclusive); float32 by default.

    Computed in float64 and then rounded, as NumPy does, so the values are NumPy's.
    """
    target = float32 if dtype is None else as_dtype(dtype)
    n = operator.index(num)
    if n < 0:
        raise ShapeError(f"linspace needs a number of values that is not negative, got {num}")
    f64 = dtypes.float64
    low, high = float(start), float(stop)
    intervals = n - 1 if endpoint else n
    delta = high - low
    node = cast(iota(n), f64)
    if intervals > 0:
        step = delta / intervals
        if step:
            node = UOp(ops.MUL, f64, (node, movement.full(step, f64, (n,))))
        else:  # the division underflows, or start equals stop
            node = UOp(ops.FDIV, f64, (node, movement.full(float(intervals), f64, (n,))))
            node = UOp(ops.MUL, f64, (node, movement.full(delta, f64, (n,))))
    else:
        node = UOp(ops.MUL, f64, (node, movement.full(delta, f64, (n,))))
    node = UOp(ops.ADD, f64, (node, movement.full(low, f64, (n,))))
    if endpoint and n > 1:
        last = UOp(ops.CMPEQ, bool_, (iota(n), movement.full(n - 1, int64, (n,))))
        node = UOp(ops.WHERE, f64, (last, movement.full(high, f64, (n,)), node))
    if target.is_int:
        node = UOp(ops.FLOOR, f64, (node,))
    return Array(cast(node, target), _named(device))


def _diagonal(rows: int, columns: int, k: int) -> tuple[UOp, UOp]:
    """Return row number + k and column number, both of shape (rows, columns)."""
    shape = (rows, columns)
    row = movement.expand(movement.reshape(iota(rows), (rows, 1)), shape)
    column = movement.expand(movement.reshape(iota(columns), (1, columns)), shape)
    if k:
        row = UOp(ops.ADD, int64, (row, movement.full(k, int64, shape)))
    return row, column


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: str | None = None
) -> Array:
    """Return ones on diagonal k and zeros elsewhere, float32 by default."""
    rows, columns = normal_shape((n_rows, n_rows if n_cols is None else n_cols), "eye")
    mask = UOp(ops.CMPEQ, bool_, _diagonal(rows, columns, operator.index(k)))
    return Array(cast(mask, as_dtype(dtype or float32)), _named(device))


def _triangle(name: str, x: Array, k: int, lower: bool) -> Array:
    x = require_array(name, x)
    if x.ndim < 2:
        raise ShapeError(f"{name} needs at least two axes, got shape {x.shape}")
    row, column = _diagonal(x.shape[-2], x.shape[-1], operator.index(k))
    inside = UOp(ops.CMPLE, bool_, (column, row) if lower else (row, column))
    sources = (movement.broadcast_to(inside, x.shape), x.node, movement.full(0, x.dtype, x.shape))
    return Array(UOp(ops.WHERE, x.dtype, sources), x._device)


def tril(x: Array, /, *, k: int = 0) -> Array:
    """Return the lower triangles of a stack of matrices: what is above diagonal k becomes 0."""
    return _triangle("tril", x, k, True)


def triu(x: Array, /, *, k: int = 0) -> Array:
    """Return the upper triangles of a stack of matrices: what is below diagonal k becomes 0."""
    return _triangle("triu", x, k, False)


def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """Return coordinate grids of one-dimensional arrays; "xy" swaps the first two axes, "ij" does not."""
    if indexing not in ("xy", "ij"):
        raise ShapeError(f"meshgrid takes indexing 'xy' or 'ij', got {indexing!r}")
    vectors = [require_array("meshgrid", a) for a in arrays]
    for v in vectors:
        if v.ndim > 1:
            raise ShapeError(f"meshgrid takes one-dimensional arrays, got shape {v.shape}")
    order = list(range(len(vectors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    shape = tuple([vectors[i].size for i in order])
    out = []
    for v, axis in zip(vectors, order, strict=True):
        ones_around = tuple([v.size if i == axis else 1 for i in range(len(order))])
        out.append(Array(movement.expand(movement.reshape(v.node, ones_around), shape), v._device))
    return out
