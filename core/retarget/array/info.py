"""Questions about dtypes and about the namespace itself, as the array API defines them."""

from __future__ import annotations

import math
from typing import Any

from ..errors import DTypeError
from ..ir import dtypes
from ..ir.dtypes import ARRAY_DTYPES, DType, as_dtype
from .array import Array, resolve_device, scalar_dtype

__all__ = ["__array_namespace_info__", "can_cast", "finfo", "iinfo", "isdtype", "result_type"]

_KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int",),
    "unsigned integer": ("uint",),
    "integral": ("int", "uint"),
    "real floating": ("float",),
    "complex floating": (),
    "numeric": ("int", "uint", "float"),
}


class finfo:
    """Limits of a floating-point dtype: bits, dtype, eps, max, min, smallest_normal, smallest_subnormal."""

    __slots__ = ("bits", "dtype", "eps", "max", "min", "smallest_normal", "smallest_subnormal")

    def __init__(self, type: Any, /) -> None:
        dtype = type.dtype if isinstance(type, Array) else as_dtype(type)
        if dtype.kind != "float":
            raise DTypeError(f"finfo needs a floating-point dtype, got {dtype}; use rt.iinfo")
        bias = (1 << (dtype.exponent - 1)) - 1
        fraction = 2.0**-dtype.mantissa
        self.dtype: DType = dtype
        self.bits: int = dtype.bits
        self.eps: float = fraction
        # float8_e4m3 has no infinity: its top exponent holds finite values, all but 1.111, which is NaN.
        self.max: float = 448.0 if dtype is dtypes.float8_e4m3 else math.ldexp(2.0 - fraction, bias)
        self.min: float = -self.max
        self.smallest_normal: float = math.ldexp(1.0, 1 - bias)
        self.smallest_subnormal: float = math.ldexp(1.0, 1 - bias - dtype.mantissa)

    def __repr__(self) -> str:
        return f"finfo({self.dtype}: eps={self.eps!r}, max={self.max!r}, min={self.min!r})"


class iinfo:
    """Limits of an integer dtype: bits, dtype, max, min."""

    __slots__ = ("bits", "dtype", "max", "min")

    def __init__(self, type: Any, /) -> None:
        dtype = type.dtype if isinstance(type, Array) else as_dtype(type)
        if not dtype.is_int:
            raise DTypeError(f"iinfo needs an integer dtype, got {dtype}; use rt.finfo")
        self.dtype: DType = dtype
        self.bits: int = dtype.bits
        self.max: int = int(dtype.max)
        self.min: int = int(dtype.min)

    def __repr__(self) -> str:
        return f"iinfo({self.dtype}: min={self.min}, max={self.max})"


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether `dtype` is, or is of the kind, `kind`: a dtype, a kind's name, or a tuple of them.

    Kinds: "bool", "signed integer", "unsigned integer", "integral", "real floating",
    "complex floating", "numeric".
    """
    found = as_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(found, k) for k in kind)
    if isinstance(kind, str) and kind in _KINDS:
        return found.kind in _KINDS[kind]
    if isinstance(kind, str):
        raise DTypeError(f"unknown kind of dtype {kind!r}; known: {', '.join(_KINDS)}")
    return found is as_dtype(kind)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Return whether arrays of `from_` (a dtype or an array) promote to `to`."""
    source = from_.dtype if isinstance(from_, Array) else as_dtype(from_)
    target = as_dtype(to)
    return dtypes.promote(source, target) is target


def result_type(*arrays_and_dtypes: Any) -> DType:
    """Return the dtype that arrays and dtypes promote to; Python scalars among them are weak."""
    strong: DType | None = None
    scalars: list[bool | int | float] = []
    for value in arrays_and_dtypes:
        if isinstance(value, (bool, int, float)) and type(value).__module__ != "numpy":
            scalars.append(value)
            continue
        found = value.dtype if isinstance(value, Array) else as_dtype(getattr(value, "dtype", value))
        strong = found if strong is None else dtypes.promote(strong, found)
    if strong is None:
        if not scalars:
            raise DTypeError("result_type needs at least one array or dtype")
        for value in scalars:
            found = scalar_dtype(value)
            strong = found if strong is None else dtypes.promote(strong, found)
    assert strong is not None  # there is a scalar or a dtype
    for value in scalars:
        strong = dtypes.promote_scalar(strong, value)
    return strong


class _Info:
    """What `__array_namespace_info__` returns."""

    __slots__ = ()

    def capabilities(self) -> dict[str, Any]:
        """Return what the standard leaves open: neither boolean indexing nor data-dependent shapes."""
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": None}

    def default_device(self) -> str:
        """Return the name of the default device."""
        return resolve_device(None)

    def devices(self) -> list[str]:
        """Return the names of the devices that are ready."""
        from ..registry import devices

        return [d.name for d in devices()]

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """Return the dtypes that are used where none is given."""
        return {"real floating": dtypes.float32, "integral": dtypes.int64, "indexing": dtypes.int64}

    def dtypes(self, *, device: str | None = None, kind: Any = None) -> dict[str, DType]:
        """Return the dtypes of a kind (see `isdtype`), or all, by name."""
        return {d.name: d for d in ARRAY_DTYPES if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> _Info:
    """Return the namespace's answers about itself (array API, "Inspection")."""
    return _Info()
