"""Data types: one interned `DType` per scalar kind and vector width, and the promotion rules.

Promotion is the array API's, and NumPy's where that is silent.  A vector dtype (`float32.vector(8)`) exists
only in linear programs; arrays and kernels hold scalar dtypes.  `index` is the type of index arithmetic
before the linearizer picks 32 or 64 bits.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Literal

from ..errors import DTypeError, UnknownNameError

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["void", "bool", "int", "uint", "float", "index"]


class DType:
    """A scalar or vector element type.  Interned: equal means identical.

    Attributes
    ----------
    name
        The scalar's name, as in the array API ("float32"), without the vector width.
    kind
        "bool", "int", "uint", "float", "index" or "void".
    bits
        Width of one element in bits; bool is stored in 8.
    lanes
        Number of vector lanes, 1 for a scalar.
    """

    __slots__ = ("__weakref__", "_vectors", "bits", "exponent", "kind", "lanes", "mantissa", "name", "scalar")
    name: str
    kind: Kind
    bits: int
    lanes: int
    scalar: DType
    mantissa: int
    exponent: int

    def __init__(self, name: str, kind: Kind, bits: int, mantissa: int = 0, exponent: int = 0) -> None:
        self.name, self.kind, self.bits, self.lanes = name, kind, bits, 1
        self.mantissa, self.exponent = mantissa, exponent
        self.scalar = self
        self._vectors: dict[int, DType] = {1: self}

    def vector(self, lanes: int) -> DType:
        """Return this scalar type with `lanes` lanes."""
        vectors = self.scalar._vectors
        found = vectors.get(lanes)
        if found is None:
            found = DType(self.name, self.kind, self.bits, self.mantissa, self.exponent)
            found.lanes, found.scalar, found._vectors = lanes, self.scalar, vectors
            found = vectors.setdefault(lanes, found)  # another thread may have been first
        return found

    @property
    def itemsize(self) -> int:
        """Bytes of one scalar element in memory."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """Whether this is a signed or unsigned integer (not bool, not index)."""
        return self.kind in ("int", "uint")

    @property
    def min(self) -> int | float | bool:
        """The smallest value: -infinity for floats that have it."""
        if self.kind == "float":
            return -math.inf if self.name != "float8_e4m3" else -448.0
        if self.kind == "bool":
            return False
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def max(self) -> int | float | bool:
        """The largest value: infinity for floats that have it."""
        if self.kind == "float":
            return math.inf if self.name != "float8_e4m3" else 448.0
        if self.kind == "bool":
            return True
        return (1 << (self.bits - (self.kind == "int"))) - 1

    def __repr__(self) -> str:
        return self.name if self.lanes == 1 else f"{self.name}x{self.lanes}"

    def __reduce__(self) -> tuple[Any, ...]:
        return parse_dtype, (repr(self),)


void = DType("void", "void", 0)
index = DType("index", "index", 64)
bool_ = DType("bool", "bool", 8)
int8, int16, int32, int64 = (DType(f"int{b}", "int", b) for b in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (DType(f"uint{b}", "uint", b) for b in (8, 16, 32, 64))
# e4m3 is the "fn" flavour (no infinity, NaN = S.1111.111), e5m2 is like IEEE's: OCP 8-bit floating point
# specification, revision 1.0.
float8_e4m3 = DType("float8_e4m3", "float", 8, 3, 4)
float8_e5m2 = DType("float8_e5m2", "float", 8, 2, 5)
float16 = DType("float16", "float", 16, 10, 5)
bfloat16 = DType("bfloat16", "float", 16, 7, 8)
float32 = DType("float32", "float", 32, 23, 8)
float64 = DType("float64", "float", 64, 52, 11)

#: Every dtype that an array may have, in the order documentation lists them.
ARRAY_DTYPES: tuple[DType, ...] = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float8_e4m3, float8_e5m2, float16, bfloat16, float32, float64,
)  # fmt: skip
_BY_NAME: dict[str, DType] = {d.name: d for d in (*ARRAY_DTYPES, void, index)}


@functools.cache
def parse_dtype(text: str) -> DType:
    """Return the dtype that prints as `text`, e.g. "float32" or "int8x16"."""
    found = _BY_NAME.get(text)
    if found is not None:
        return found
    name, _, lanes = text.rpartition("x")
    if name in _BY_NAME and lanes.isdigit() and int(lanes) > 1:
        return _BY_NAME[name].vector(int(lanes))
    raise UnknownNameError("dtype", text, _BY_NAME)


@functools.cache
def _numpy_map() -> dict[Any, DType]:
    import ml_dtypes
    import numpy as np

    found: dict[Any, DType] = {np.dtype(bool): bool_}
    for d in ARRAY_DTYPES[1:]:
        if not d.name.startswith(("float8", "bfloat")):
            found[np.dtype(d.name)] = d
    found[np.dtype(ml_dtypes.bfloat16)] = bfloat16
    found[np.dtype(ml_dtypes.float8_e4m3fn)] = float8_e4m3
    found[np.dtype(ml_dtypes.float8_e5m2)] = float8_e5m2
    return found


@functools.cache
def to_numpy(dtype: DType) -> np.dtype[Any]:
    """Return NumPy's dtype for a scalar dtype; bfloat16 and float8 come from the package ml_dtypes."""
    import numpy as np

    if dtype.name in ("bfloat16", "float8_e4m3", "float8_e5m2"):
        import ml_dtypes

        name = "float8_e4m3fn" if dtype is float8_e4m3 else dtype.name
        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
    return np.dtype(dtype.name)


@functools.cache
def _from_numpy_dtype(dtype: np.dtype[Any]) -> DType:
    import numpy as np

    if dtype.kind in "biuf" and dtype.isnative and dtype.name in _BY_NAME:
        return _BY_NAME[dtype.name]  # without importing ml_dtypes
    native = np.dtype(dtype).newbyteorder("=")
    found = _numpy_map().get(native)
    if found is None:
        names = ", ".join(d.name for d in ARRAY_DTYPES)
        raise DTypeError(f"arrays of NumPy dtype {dtype} are not supported; cast to one of {names}")
    return found


def as_dtype(value: Any) -> DType:
    """Return the scalar `DType` for a DType, a name, a NumPy dtype or a Python type.

    Raises
    ------
    DTypeError
        If there is no such dtype; the text lists the known ones.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        try:
            return parse_dtype(value)
        except UnknownNameError as error:
            raise DTypeError(str(error)) from None
    if value is bool:
        return bool_
    if value is int:
        return int64
    if value is float:
        return float64
    import numpy as np

    try:
        return _from_numpy_dtype(np.dtype(value))
    except TypeError as error:
        if isinstance(error, DTypeError):
            raise
        names = ", ".join(d.name for d in ARRAY_DTYPES)
        raise DTypeError(f"{value!r} is not a dtype; use one of {names}") from None


_LATTICE_FLOATS = ("float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32", "float64")


@functools.cache
def promote(a: DType, b: DType) -> DType:
    """Return the dtype that the dtypes of two arrays promote to.

    Beyond the standard: bool promotes to the other; an integer with a float gives the float (the array API
    leaves it open; NumPy would widen), float16 with bfloat16 gives float32, and a float8 gives way to any
    wider float. Signed and unsigned integers give the next wider signed integer, and uint64 with a signed
    one gives float64 as in NumPy.
    """
    if a is b:
        return a
    if a.kind == "bool":
        return b
    if b.kind == "bool":
        return a
    if a.kind == "float" and b.kind == "float":
        if a.bits == b.bits:  # float16 and bfloat16, or the two float8
            return float32 if a.bits == 16 else float16
        return a if a.bits > b.bits else b
    if a.kind == "float":
        return a
    if b.kind == "float":
        return b
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    return float64 if unsigned.bits == 64 else _BY_NAME[f"int{unsigned.bits * 2}"]


def promote_scalar(dtype: DType, value: bool | int | float) -> DType:
    """Return the dtype of an operation between an array of `dtype` and a Python scalar (a weak operand).

    A scalar of the array's kind or a lower one adopts the array's dtype; a float with an integer or bool
    array gives the default float32, an int with a bool array int64 (array API, "mixing arrays with Python
    scalars").

    Raises
    ------
    DTypeError
        If an integer scalar does not fit the array's integer dtype.
    """
    if isinstance(value, bool):
        return dtype
    if isinstance(value, int):
        if dtype.kind == "bool":
            return int64
        if dtype.is_int and not dtype.min <= value <= dtype.max:
            raise DTypeError(f"the integer {value} does not fit {dtype}; cast the array to a wider one first")
        return dtype
    return dtype if dtype.kind == "float" else float32
