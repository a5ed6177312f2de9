"""FP-05, FP-07: every cast between every two dtypes, at the values where casts go wrong.

Floats round to nearest, ties to even, once; what is too large becomes infinity; NaN stays NaN. A float
becomes an integer by truncation to int64 (to uint64 for large values of uint64) and then wraps to the
width; NaN, infinities and what fits no 64-bit integer become the least integer of the 64-bit
intermediate, so 0 in narrower ones. Anything but 0 is true. Half-precision arithmetic rounds after every
operation, also inside one kernel.
"""

from __future__ import annotations

import itertools
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import retarget as rt
from retarget.errors import DeviceError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import as_dtype
from retarget.ir.simplify import cast as fold_cast
from retarget.ir.uop import const
from retarget_numpy.graph import evaluate

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
NAN, INF = float("nan"), float("inf")


def values_of(name: str) -> np.ndarray[Any, Any]:
    if name == "bool":
        return np.array([True, False, True])
    dtype = as_dtype(name)
    if dtype.is_int:
        found = {
            0,
            1,
            2,
            127,
            128,
            255,
            256,
            -1,
            -128,
            -129,
            -256,
            65536,
            2**24 + 1,
            2**31,
            2**53 + 1,
            2**62 + 1,
            3_000_000_000,
        }
        found |= {int(dtype.min), int(dtype.max), int(dtype.max) - 1}
        return np.array(sorted(v for v in found if dtype.min <= v <= dtype.max), name)
    numbers = [
        NAN,
        INF,
        -INF,
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.0,
        -1.0,
        2.9,
        -2.9,
        255.9,
        256.0,
        -3.0,
        3e9,
        1e10,
        -1e10,
        65504.0,
        65519.0,
        65520.0,
        65536.0,
        -65536.0,
        2.0**31,
        2.0**32,
        2.0**62,
        -(2.0**63),
        1e-8,
        6e-8,
        1e-40,
        0.1,
        1 / 3,
        2049.0,
        257.0,
    ]
    with np.errstate(over="ignore"):
        return np.array(numbers, dtypes.to_numpy(dtype))


def to_float(value: float, name: str) -> float:
    """Round a value that is exact in float64 to a float format, by rational arithmetic."""
    if value != value or value in (INF, -INF) or value == 0:
        return value
    precision, least, most = {
        "float16": (11, -24, 65504.0),
        "bfloat16": (8, -133, 3.3895313892515355e38),
        "float32": (24, -149, 3.4028234663852886e38),
        "float64": (53, -1074, 1.7976931348623157e308),
    }[name]
    exact = Fraction(value)
    exponent = 0
    while abs(exact) >= Fraction(2) ** (exponent + precision):
        exponent += 1
    while abs(exact) < Fraction(2) ** (exponent + precision - 1):
        exponent -= 1
    unit = Fraction(2) ** max(exponent, least)
    rounded = round(exact / unit) * unit  # round() of a fraction: to even
    if abs(rounded) > Fraction(most):
        return INF if rounded > 0 else -INF
    return float(rounded) if rounded else (-0.0 if value < 0 else 0.0)


def to_int(value: float, name: str) -> int | None:
    """Return the integer, or None where only a fixed answer is asked for."""
    dtype = as_dtype(name)
    if value != value or value in (INF, -INF):
        return None
    whole = int(value)
    if not (-(2**63) <= whole < 2**63 or (name == "uint64" and 0 <= whole < 2**64)):
        return None
    whole &= (1 << dtype.bits) - 1
    return whole - (1 << dtype.bits) if dtype.kind == "int" and whole >> (dtype.bits - 1) else whole


def right(values: np.ndarray[Any, Any], target: str) -> list[Any]:
    out: list[Any] = []
    for v in values.astype("f8") if values.dtype.kind in "fV" else values.tolist():
        if target == "bool":
            out.append(bool(v != 0))
        elif as_dtype(target).is_float:
            out.append(to_float(float(v) if isinstance(v, float) else v, target))
        elif isinstance(v, float):
            out.append(to_int(v, target))
        else:
            out.append(to_int_from_int(int(v), target))
    return out


def to_int_from_int(value: int, name: str) -> int:
    dtype = as_dtype(name)
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def agree(found: list[Any], expected: list[Any], values: Any, what: str) -> None:
    for f, e, v in zip(found, expected, values, strict=True):
        if e is None:
            continue
        assert (f != f and e != e) or (
            f == e and (f != 0 or np.signbit(np.float64(f)) == np.signbit(np.float64(e)))
        ), f"{what} of {v!r}: {f!r}, not {e!r}"


def as_list(values: np.ndarray[Any, Any]) -> list[Any]:
    return (values.astype("f8") if values.dtype.kind in "fV" else values).tolist()


NAMES = ["bool", *INTEGERS, *FLOATS]


@pytest.mark.parametrize("source", NAMES)
def test_casts(device: str, compute: Any, source: str) -> None:
    values = values_of(source)
    values = np.concatenate([values, values[: 1 + len(values) % 2]])
    x = rt.asarray(values)
    for target, found in zip(NAMES, compute(*[x.astype(t) for t in NAMES]), strict=True):
        agree(as_list(found), right(values, target), values, f"{source} -> {target} on {device}")


@pytest.mark.parametrize("source", NAMES)
def test_the_oracle_and_the_folder_agree(source: str) -> None:
    """What a cast out of range gives is one value everywhere; the folder and the graph oracle show which."""
    values = values_of(source)
    x = rt.asarray(values, device="numpy")
    for target in NAMES:
        (by_graph,) = evaluate([x.astype(target).node], lambda n: rt.Array(n, "numpy:0").numpy())
        agree(as_list(by_graph), right(values, target), values, f"{source} -> {target} in the oracle")
        for v, e, by_oracle in zip(as_list(values), right(values, target), as_list(by_graph), strict=True):
            folded = fold_cast(const(v, as_dtype(source)), as_dtype(target))
            if folded.op is ops.CONST:
                agree([folded.arg], [by_oracle if e is None else e], [v], f"{source} -> {target} folded")


@pytest.mark.parametrize("source", FLOATS)
def test_out_of_range_is_one_value_on_every_device(source: str) -> None:
    values = values_of(source)
    answers: dict[str, list[Any]] = {}
    for name in ("llvm", "clang", "numpy"):
        try:
            x = rt.asarray(values, device=name)
        except DeviceError:
            continue
        answers[name] = [x.astype(t).numpy().tolist() for t in INTEGERS]
    (oracle,) = ([evaluate([x.astype(t).node], lambda n: values)[0].tolist() for t in INTEGERS],)
    answers["oracle"] = oracle
    first = next(iter(answers.values()))
    assert len(answers) >= 2
    for name, found in answers.items():
        for target, a, b in zip(INTEGERS, first, found, strict=True):
            assert a == b, (
                name,
                source,
                target,
                [v for v, p, q in zip(as_list(values), a, b, strict=True) if p != q],
            )


def test_policy_values(device: str, compute: Any) -> None:
    f = rt.asarray(np.array([-3, -0.5, 2.9, 255.9], "f4"))
    big = rt.asarray(np.array([3e9], "f4"))
    truth = rt.asarray(np.array([0.5, 2, 0, -0.0, NAN, -1], "f4"))
    whole = rt.asarray(np.array([256, -256, 0, 65536], "i4"))
    t = rt.asarray(np.array([True]))
    found = compute(
        f.astype("uint8"),
        big.astype("uint32"),
        rt.asarray(np.array([-2.9, 2.9], "f4")).astype("int32"),
        truth.astype("bool"),
        whole.astype("bool"),
        t.astype("float32"),
        t + t,
    )
    expected = [[253, 0, 2, 255], [3_000_000_000], [-2, 2], [1, 1, 0, 0, 1, 1], [1, 1, 0, 1], [1], [1]]
    assert [v.tolist() for v in found] == expected


# -- FP-05 -----------------------------------------------------------------------------------------------


def test_bfloat16_bits(device: str, compute: Any) -> None:
    bits = [
        0x3F808000,
        0x3F818000,
        0x3F808001,
        0x7F7FFFFF,
        0x7F800001,
        0x7FFF8C22,
        0xFFC00001,
        0x80000001,
        0x00008000,
        0x00018000,
    ]
    x = rt.asarray(np.array(bits, "u4").view("f4"))
    (found,) = compute(x.astype("bfloat16"))
    raw = found.view("u2").tolist()
    assert [hex(b) for b in raw[:4]] == ["0x3f80", "0x3f82", "0x3f81", "0x7f80"]
    assert all(b & 0x7F80 == 0x7F80 and b & 0x7F for b in raw[4:7])  # NaNs
    assert [hex(b) for b in raw[7:]] == ["0x8000", "0x0", "0x2"]


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_pattern_widens_exactly(device: str, compute: Any, name: str) -> None:
    """All 65536 values, to float32 and back."""
    raw = np.arange(65536, dtype="u2")
    if device == "numpy":
        raw = raw[::97]
    x = rt.asarray(raw.view(dtypes.to_numpy(as_dtype(name))))
    wide, back = compute(x.astype("float32"), x.astype("float32").astype(name))
    if name == "bfloat16":
        expected = (raw.astype("u4") << 16).view("f4")
    else:
        expected = np.array([struct.unpack("<e", struct.pack("<H", b))[0] for b in raw], "f4")
    np.testing.assert_array_equal(wide, expected)
    numbers = expected == expected
    np.testing.assert_array_equal(back.view("u2")[numbers], raw[numbers])
    assert np.isnan(back.astype("f4")[~numbers]).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_half_way_point_rounds_to_even(device: str, compute: Any, name: str) -> None:
    """Between any two neighbours: half way, and one float32 step to either side."""
    raw = np.arange(0, 0x7C00 if name == "float16" else 0x7F80, 7 if device != "numpy" else 331, dtype="u2")
    if name == "bfloat16":
        low, high = ((raw.astype("u4") + d) << 16 for d in (0, 1))
        low, high = low.view("f4").astype("f8"), high.view("f4").astype("f8")
        high[~np.isfinite(high)] = 2.0**128
    else:
        low, high = raw.view("f2").astype("f8"), (raw + 1).view("f2").astype("f8")
        high[~np.isfinite(high)] = 65536
    middle = ((low + high) / 2).astype("f4")
    keep = middle.astype("f8") == (low + high) / 2
    middle, raw = middle[keep], raw[keep]
    points = [middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(INF)), -middle]
    found = [f.view("u2") for f in compute(*[rt.asarray(p).astype(name) for p in points])]
    np.testing.assert_array_equal(found[0], raw + (raw & 1))
    np.testing.assert_array_equal(found[1], raw)
    np.testing.assert_array_equal(found[2], raw + 1)
    np.testing.assert_array_equal(found[3], (raw + (raw & 1)) | 0x8000)


def test_half_precision_rounds_after_every_operation(device: str, compute: Any) -> None:
    big = rt.asarray(np.array([60000, 1, 2048], "f2"))
    a, b, c = compute((big + big) - big, (big * 2) / 2, (big + 1) - 1)
    assert a.tolist() == [INF, 1, 2048] and b.tolist() == [INF, 1, 2048] and c.tolist() == [60000, 1, 2047]
    rng = np.random.default_rng(5)
    v, w = rng.standard_normal(301).astype("f2"), rng.standard_normal(301).astype("f2")
    x, y = rt.asarray(v), rt.asarray(w)
    found = compute(x * y + x, x / y - y, (x + y) * (x - y))
    for f, e in zip(found, [v * w + v, v / w - w, (v + w) * (v - w)], strict=True):
        np.testing.assert_array_equal(f, e)


@pytest.mark.parametrize("name", ["bfloat16"])
def test_bfloat16_rounds_after_every_operation(device: str, compute: Any, name: str) -> None:
    rng = np.random.default_rng(6)
    kind = dtypes.to_numpy(as_dtype(name))
    v, w = (rng.standard_normal(301).astype(kind) for _ in range(2))
    x, y = rt.asarray(v), rt.asarray(w)

    def r(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.array([to_float(float(e), name) for e in values.astype("f8")])

    a, b = v.astype("f8"), w.astype("f8")
    found = compute(x * y + x, (x + y) * (x - y), (x + y) - y)
    for f, e in zip(found, [r(r(a * b) + a), r(r(a + b) * r(a - b)), r(r(a + b) - b)], strict=True):
        np.testing.assert_array_equal(f.astype("f8"), e)


@pytest.mark.parametrize(
    ("first", "second"),
    list(itertools.product(["float16", "bfloat16", "int8", "uint8"], ["float32", "int32"])),
)
def test_a_cast_there_and_back_is_kept(device: str, compute: Any, first: str, second: str) -> None:
    """Narrowing loses what it loses, also when it is undone at once."""
    values = np.array([70000, 0.1, -1.5, 300, 65535, 2**20 + 1], "f4").astype(second)
    x = rt.asarray(values)
    (found,) = compute(x.astype(first).astype(second))
    expected = right(np.array(right(values, first), "f8" if first in FLOATS else "i8"), second)
    agree(as_list(found), expected, values, f"{second} -> {first} -> {second}")
