"""Indexing and assignment, by NumPy's rules.

Ints, slices, None and Ellipsis become movement nodes.  Integer arrays become one GATHER: negative indices
count from the end, and an index out of range, which a lazy array cannot raise for, reads 0 (indices given as
lists or NumPy arrays are checked at once).  What depends on values, a boolean mask, is refused with advice.

Assignment is functional: the array gets a new node that chooses, by a mask, between the old value and the
new one, so that `a[1:] = a[:-1]` reads all of `a` as it was.  Arrays derived from `a` earlier keep their
values.
"""

from __future__ import annotations

import builtins
import operator
from typing import Any

from ..errors import DTypeError, IndexingError, ShapeError
from ..ir import ops
from ..ir.dtypes import bool_, int64
from ..ir.sizes import size_text, upper
from ..ir.uop import UOp
from . import movement
from .array import Array, cast, common_device, require_array, takes
from .creation import asarray, iota
from .manipulation import normal_axis

# An entry of a normalised key: ("new",), ("int", axis, i), ("slice", axis, begin, count, step), ("array",
# axis, Array).
_Entry = tuple[Any, ...]


def _normalise(x: Array, key: Any) -> list[_Entry]:
    """Return one entry for each item of the key, with Ellipsis and missing axes made slices."""
    items = list(key) if isinstance(key, tuple) else [key]
    shape = x.node.shape
    used, dots = 0, 0
    for item in items:
        if item is Ellipsis:
            dots += 1
        elif item is not None:
            used += 1
    if dots > 1:
        raise IndexingError("an index can have only one Ellipsis")
    if used > len(shape):
        raise IndexingError(f"{used} indices for an array of {len(shape)} axes (shape {shape})")
    if not dots:
        items.append(Ellipsis)
    entries: list[_Entry] = []
    axis = 0
    for item in items:
        if item is None:
            entries.append(("new",))
        elif item is Ellipsis:
            for _ in range(len(shape) - used):
                entries.append(("slice", axis, 0, shape[axis], 1))
                axis += 1
        else:
            entries.append(_entry(x, item, axis))
            axis += 1
    return entries


def _entry(x: Array, item: Any, axis: int) -> _Entry:
    n = x.node.shape[axis]
    if isinstance(n, UOp):
        return _symbolic_entry(x, item, axis, n)
    if type(item) is int and -n <= item < n:
        return ("int", axis, item % n)
    if isinstance(item, slice):
        try:
            begin, stop, step = item.indices(n)
        except (TypeError, ValueError) as error:
            raise IndexingError(f"axis {axis}: bad slice {item}: {error}") from None
        return ("slice", axis, begin, len(range(begin, stop, step)), step)
    if isinstance(item, bool):
        raise IndexingError(f"axis {axis}: a bool is no index; use None or an int")
    if not isinstance(item, Array) and not isinstance(item, (list, tuple)) and getattr(item, "ndim", 0) == 0:
        try:
            i = operator.index(item)
        except TypeError:
            raise IndexingError(
                f"axis {axis}: {type(item).__name__} is no index; use ints, slices, None, ... or int arrays"
            ) from None
        if not -n <= i < n:
            raise IndexingError(f"axis {axis}: index {i} is out of range for length {n}")
        return ("int", axis, i % n)
    return ("array", axis, _index_array(x, item, axis))


def _symbolic_entry(x: Array, item: Any, axis: int, n: UOp) -> _Entry:
    """Return the entry for an axis of length n, bound at launch; the item has to fit every length."""
    if isinstance(item, (Array, list, tuple)) or getattr(item, "ndim", 0) > 0:
        return ("array", axis, _index_array(x, item, axis))
    if isinstance(item, slice):
        if item.step not in (None, 1):
            raise IndexingError(
                f"axis {axis}: length {size_text(n)} is only bound at launch; slice it by steps of 1"
            )
        begin, stop = [
            default if end is None else end if end >= 0 else n + end
            for end, default in ((item.start, 0), (item.stop, n))
        ]
        if begin < 0 or stop < begin or n < stop:
            raise IndexingError(f"axis {axis}: slice {item} is not inside every length {size_text(n)}")
        return ("slice", axis, begin, stop - begin, 1)
    if not (type(item) is int or (isinstance(item, UOp) and item.dtype is n.dtype)):
        raise IndexingError(
            f"axis {axis}: {type(item).__name__} is no index; use ints, slices, None, ... or int arrays"
        )
    i = item if item >= 0 else n + item
    if i < 0 or i >= n:
        raise IndexingError(f"axis {axis}: index {size_text(item)} is out of range for length {size_text(n)}")
    return ("int", axis, i)


def _index_array(x: Array, item: Any, axis: int) -> Array:
    """Return an index array whose entries count from the front."""
    n = x.shape[axis]
    if not isinstance(item, Array):
        import numpy as np

        values = np.asarray(item)
        if values.size == 0 and isinstance(item, (list, tuple)):
            values = values.astype(np.int64)
        if values.dtype.kind in "iu" and values.size and (values.min() < -n or values.max() >= n):
            bad = int(values.min() if values.min() < -n else values.max())
            raise IndexingError(f"axis {axis}: index {bad} is out of range for length {n}")
        item = asarray(values, device=x._device or None)
    if item.dtype is bool_:
        raise IndexingError(
            f"axis {axis}: the shape of x[mask] depends on the mask's values, unknown to a lazy array; "
            "use rt.where(mask, x, other) to keep the shape, or numpy.asarray(x)[numpy.asarray(mask)]"
        )
    if not item.dtype.is_int:
        raise IndexingError(
            f"axis {axis}: index arrays have an integer dtype, got {item.dtype}; use astype(rt.int64)"
        )
    return from_front(item, n)


def from_front(indices: Array, n: int) -> Array:
    """Return indices with those below 0 counted from the end of an axis of length n."""
    if indices.dtype.kind == "uint":
        return indices
    node, shape = indices.node, indices.shape
    wide = cast(node, int64) if upper(n) > indices.dtype.max else node
    dtype = wide.dtype
    negative = UOp(ops.CMPLT, bool_, (wide, movement.full(0, dtype, shape)))
    wrapped = UOp(ops.ADD, dtype, (wide, movement.full_size(n, dtype, shape)))
    return Array(UOp(ops.WHERE, dtype, (negative, wrapped, wide)), indices._device)


def getitem(x: Array, key: Any) -> Array:
    """Return `x[key]`."""
    entries = _normalise(x, key)
    node = _slice(x.node, entries)
    # What is left of `node`'s axes: one for each slice, one of length 1 for each int, one for each array.
    arrays = [e for e in entries if e[0] == "array"]
    if not arrays:
        shape = [1 if e[0] == "new" else node.shape[e[1]] for e in entries if e[0] != "int"]
        return Array(movement.reshape(node, tuple(shape)), x._device)
    return _gather(x, node, entries, [e[2] for e in arrays])


def _slice(node: UOp, entries: list[_Entry]) -> UOp:
    """Apply ints (which leave an axis of length 1) and slices."""
    window = [(0, n) for n in node.shape]
    strided: list[tuple[int, int, int, int]] = []
    flipped: list[int] = []
    for entry in entries:
        if entry[0] == "int":
            window[entry[1]] = (entry[2], entry[2] + 1)
        elif entry[0] == "slice":
            _, axis, begin, count, step = entry
            if step < 0:
                flipped.append(axis)
                begin, step = begin + (count - 1) * step if count else 0, -step
            if step == 1 or count <= 1:
                begin = begin if count else 0
                window[axis] = (begin, begin + count)
            else:
                strided.append((axis, begin, count, step))
    node = movement.shrink(node, tuple(window))
    for axis, begin, count, step in strided:
        node = movement.stride(node, axis, begin, count, step)
    return movement.flip(node, flipped)


def _gather(x: Array, node: UOp, entries: list[_Entry], arrays: list[Array]) -> Array:
    device = x._device
    for a in arrays:
        device = common_device("indexing", device, a._device)
    shape = movement.broadcast_shapes(*[a.shape for a in arrays])
    indices = [movement.broadcast_to(a.node, shape) for a in arrays]
    picked = [e[1] for e in entries if e[0] == "array"]
    single = [e[1] for e in entries if e[0] == "int"]
    kept = [e[1] for e in entries if e[0] == "slice"]
    lengths = [node.shape[a] for a in kept]
    node = movement.permute(node, [*picked, *single, *kept])
    node = movement.reshape(node, (*[node.shape[i] for i in range(len(picked))], *lengths))
    node = UOp(ops.GATHER, node.dtype, (node, *indices))
    # NumPy: the indices' axes come where the ints and arrays stood if those stand together, else first.
    numbers = [i for i, e in enumerate(entries) if e[0] in ("int", "array")]
    together = numbers[-1] - numbers[0] == len(numbers) - 1
    place = builtins.sum([1 for e in entries[: numbers[0]] if e[0] != "new"]) if together else 0
    rank = len(shape)
    order = [*range(rank, rank + place), *range(rank), *range(rank + place, rank + len(kept))]
    node = movement.permute(node, order)
    final: list[int] = [] if together else list(shape)
    for i, entry in enumerate(entries):
        if together and i == numbers[0]:
            final += shape
        if entry[0] == "new":
            final.append(1)
        elif entry[0] == "slice":
            final.append(lengths[kept.index(entry[1])])
    return Array(movement.reshape(node, tuple(final)), device)


def _value(x: Array, value: Any) -> Array:
    """Return what is assigned, in x's dtype."""
    if isinstance(value, Array) or (takes(value) and type(value).__module__ == "numpy"):
        found = value if isinstance(value, Array) else asarray(value, device=x._device or None)
        if x.dtype.kind != "float" and found.dtype.kind == "float" and x.dtype is not bool_:
            raise DTypeError(
                f"a {found.dtype} array does not go into one of {x.dtype}; cast it with astype first"
            )
        return Array(cast(found.node, x.dtype), found._device)
    return asarray(
        value, dtype=x.dtype, device=x._device or None if isinstance(value, (list, tuple)) else None
    )


def setitem(x: Array, key: Any, value: Any) -> None:
    """Make `x[key]` have `value`; see the module for what that means to other arrays."""
    if isinstance(key, Array) or getattr(key, "ndim", 0) > 0:
        mask = key if isinstance(key, Array) else asarray(key, device=x._device or None)
        if mask.dtype is bool_:
            _set_masked(x, mask, value)
            return
    entries = _normalise(x, key)
    if builtins.any(e[0] == "array" for e in entries):
        raise IndexingError(
            "assignment through integer arrays is not supported; build a mask, for example "
            "x = rt.where(rt.any(rt.arange(n)[:, None] == indices, axis=1), value, x), or assign slices"
        )
    new = _value(x, value)
    node, region = new.node, [1 if e[0] == "new" else e[3] for e in entries if e[0] != "int"]
    while len(node.shape) > len(region) and node.shape[0] == 1:
        node = movement.drop_axes(node, (0,))  # NumPy drops leading axes of length 1 of what is assigned
    try:
        node = movement.broadcast_to(node, tuple(region))
    except ShapeError:
        raise ShapeError(
            f"a value of shape {new.shape} does not broadcast to the region's shape {tuple(region)}"
        ) from None
    device = common_device("assignment", x._device, new._device)
    placed = _place(node, entries, x.shape)
    mask_node = _place(movement.full(True, bool_, tuple(region)), entries, x.shape)
    everything = movement.constant_of(mask_node)
    if everything is None or everything.arg is not True:
        placed = UOp(ops.WHERE, x.dtype, (mask_node, placed, x.node))
    x.node, x._device = placed, device


def _place(node: UOp, entries: list[_Entry], shape: tuple[int, ...]) -> UOp:
    """Put a region back where `_slice` would take it from, with zeros elsewhere."""
    node = movement.reshape(node, tuple([1 if e[0] == "int" else e[3] for e in entries if e[0] != "new"]))
    flipped = [e[1] for e in entries if e[0] == "slice" and e[4] < 0]
    node = movement.flip(node, flipped)
    pads = [(0, 0)] * len(shape)
    strided: list[tuple[int, int, int]] = []
    for entry in entries:
        if entry[0] == "int":
            pads[entry[1]] = (entry[2], shape[entry[1]] - entry[2] - 1)
        elif entry[0] == "slice":
            _, axis, begin, count, step = entry
            if step < 0:
                begin, step = begin + (count - 1) * step, -step
            if step == 1 or count <= 1:
                begin = begin if count else 0
                pads[axis] = (begin, shape[axis] - begin - count)
            else:
                strided.append((axis, begin, step))
    for axis, begin, step in strided:
        node = movement.unstride(node, axis, begin, step, shape[axis])
    return movement.pad(node, tuple(pads))


def _set_masked(x: Array, mask: Array, value: Any) -> None:
    if mask.shape != x.shape:
        raise IndexingError(
            f"a mask for assignment has the array's shape {x.shape}, got {mask.shape}; broadcast it"
        )
    new = _value(x, value)
    try:
        node = movement.broadcast_to(new.node, x.shape)
    except ShapeError:
        raise ShapeError(
            f"x[mask] = value takes a scalar, or an array that broadcasts to shape {x.shape}, whose elements "
            f"go to their own places (as rt.where does); got shape {new.shape}"
        ) from None
    device = common_device("assignment", common_device("assignment", x._device, mask._device), new._device)
    x.node, x._device = UOp(ops.WHERE, x.dtype, (mask.node, node, x.node)), device


def take(x: Array, indices: Any, /, *, axis: int | None = None) -> Array:
    """Return the elements of x at `indices` along `axis`, which an array of one axis need not name.

    Indices below 0 count from the end; one out of range reads 0.
    """
    x = require_array("take", x)
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(f"take needs an axis for an array of shape {x.shape}")
        axis = 0
    number = normal_axis("take", axis, x.ndim)
    return getitem(x, (*[slice(None)] * number, asarray_indices(indices)))


def asarray_indices(indices: Any) -> Any:
    """Return indices as a key item: an Array, a NumPy array, or an int."""
    if isinstance(indices, (list, tuple)):
        import numpy as np

        return np.asarray(indices, dtype=np.int64 if not len(indices) else None)
    return indices


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """Return x's elements at the places of `indices`, except that these give the index along `axis`.

    The other axes of `indices` broadcast against x's.  Indices below 0 count from the end; one out of range
    reads 0.
    """
    x, chosen = require_array("take_along_axis", x), require_array("take_along_axis", indices)
    number = normal_axis("take_along_axis", axis, x.ndim)
    if chosen.ndim != x.ndim:
        raise ShapeError(f"take_along_axis needs indices of {x.ndim} axes, got shape {chosen.shape}")
    if not chosen.dtype.is_int:
        raise IndexingError(
            f"take_along_axis needs integer indices, got {chosen.dtype}; use astype(rt.int64)"
        )
    rest = movement.broadcast_shapes(
        tuple([1 if i == number else n for i, n in enumerate(x.shape)]),
        tuple([1 if i == number else n for i, n in enumerate(chosen.shape)]),
    )
    shape = tuple([chosen.shape[number] if i == number else n for i, n in enumerate(rest)])
    source = movement.broadcast_to(
        x.node, tuple([x.shape[number] if i == number else n for i, n in enumerate(rest)])
    )
    sources = [source]
    for i, n in enumerate(shape):
        if i == number:
            sources.append(movement.broadcast_to(from_front(chosen, x.shape[number]).node, shape))
        else:
            position = movement.reshape(iota(n), tuple([n if j == i else 1 for j in range(len(shape))]))
            sources.append(movement.expand(position, shape))
    device = common_device("take_along_axis", x._device, chosen._device)
    return Array(UOp(ops.GATHER, x.dtype, tuple(sources)), device)


# The operators that are these functions; the type checkers know them from their declarations in `Array`.
for _name, _function in (("__getitem__", getitem), ("__setitem__", setitem)):
    setattr(Array, _name, _function)
