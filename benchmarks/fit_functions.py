"""Fit the polynomials of the elementary functions and print
`core/retarget/codegen/functions/coefficients.py`.

Each is the polynomial that minimises the largest weighted error on an interval, found by Remez exchange in 50
digits; the weight turns the polynomial's error into the function's relative error.  Needs mpmath.

    python benchmarks/fit_functions.py > core/retarget/codegen/functions/coefficients.py
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from mpmath import asin, atan, cos, erf, erfc, exp, log, lu_solve, matrix, mp, mpf, pi, sin, sinh, sqrt, tanh

mp.dps = 50
Real = Callable[[Any], Any]


def remez(g: Real, weight: Real, low: float, high: float, n: int) -> tuple[list[Any], Any]:
    """Return the n coefficients, lowest first, that minimise max |weight * (p - g)|, and that maximum."""
    a, b = mpf(low), mpf(high)
    grid = 200
    points = [(a + b) / 2 + (b - a) / 2 * cos(pi * (grid - i) / grid) for i in range(grid + 1)]
    points = [p for p in points if abs(p) > mpf(10) ** -12]  # g is often a quotient that needs its limit at 0
    values, weights = [g(p) for p in points], [weight(p) for p in points]
    at = [round((len(points) - 1) * i / n) for i in range(n + 1)]
    best: tuple[list[Any], Any] | None = None
    for _ in range(15):
        system, right = matrix(n + 1, n + 1), matrix(n + 1, 1)
        for row, i in enumerate(at):
            for column in range(n):
                system[row, column] = points[i] ** column
            system[row, n] = (-1) ** row / weights[i]
            right[row] = values[i]
        solution = lu_solve(system, right)
        coefficients = [solution[i] for i in range(n)]
        errors = [
            w * (mp.polyval(coefficients[::-1], p) - v)
            for p, v, w in zip(points, values, weights, strict=True)
        ]
        largest = max(abs(e) for e in errors)
        if best is None or largest < best[1]:
            best = coefficients, largest
        peaks: list[int] = []
        for i, e in enumerate(errors):
            if peaks and (errors[peaks[-1]] >= 0) == (e >= 0):
                if abs(e) > abs(errors[peaks[-1]]):
                    peaks[-1] = i
            else:
                peaks.append(i)
        while len(peaks) > n + 1:
            peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
        if len(peaks) < n + 1 or peaks == at:
            break
        at = peaks
    assert best is not None
    return best


LN2 = log(2)


def of_root(f: Real) -> Real:
    """Return f as a function of the square of its argument."""
    return lambda z: f(sqrt(z))


def erfc_weight(a: Any) -> Any:
    return erfc(a) / erf(a)


#: name: what is fitted in words, then function, weight, interval and number of coefficients; float32, then
#: float64.
Fit = tuple[Real, Real, float, float, int]
FITS: dict[str, tuple[str, Fit, Fit]] = {}


def both(name: str, text: str, g: Real, weight: Real, low: float, high: float, n32: int, n64: int) -> None:
    FITS[name] = (text, (g, weight, low, high, n32), (g, weight, low, high, n64))


both("EXP", "(e**r - 1 - r) / r**2 in r", lambda r: (exp(r) - 1 - r) / r**2, lambda r: r * r / exp(r),
     -0.3475, 0.3475, 5, 10)  # fmt: skip
both("EXP2", "(2**r - 1) / r in r", lambda r: (exp(r * LN2) - 1) / r, lambda r: abs(r) / exp(r * LN2),
     -0.5001, 0.5001, 6, 11)  # fmt: skip
both("LOG", "(log((1+s)/(1-s)) - 2*s) / s**3 in s**2",
     of_root(lambda s: (log((1 + s) / (1 - s)) - 2 * s) / s**3),
     lambda z: z / 2, 0, 0.02946, 3, 7)  # fmt: skip
both("POW", "(log((1+s)/(1-s)) / (2*s) - 1 - s**2/3) / s**4 in s**2",
     of_root(lambda s: (log((1 + s) / (1 - s)) / (2 * s) - 1 - s * s / 3) / s**4), lambda z: z * z,
     0, 0.02946, 3, 7)  # fmt: skip
both("SIN", "(sin(r) - r) / r**3 in r**2", of_root(lambda s: (sin(s) - s) / s**3), lambda z: z, 0, 0.62, 3, 6)
both("COS", "(cos(r) - 1 + r**2/2) / r**4 in r**2", of_root(lambda s: (cos(s) - 1 + s * s / 2) / s**4),
     lambda z: z * z, 0, 0.62, 3, 6)  # fmt: skip
both(
    "ATAN",
    "(atan(t) - t) / t**3 in t**2",
    of_root(lambda s: (atan(s) - s) / s**3),
    lambda z: z,
    0,
    0.17163,
    5,
    11,
)
both(
    "ASIN",
    "(asin(t) - t) / t**3 in t**2",
    of_root(lambda s: (asin(s) - s) / s**3),
    lambda z: z,
    0,
    0.25001,
    5,
    13,
)
both(
    "TANH",
    "(tanh(x) - x) / x**3 in x**2",
    of_root(lambda s: (tanh(s) - s) / s**3),
    lambda z: z,
    0,
    0.390626,
    5,
    11,
)
both(
    "SINH",
    "(sinh(x) - x) / x**3 in x**2",
    of_root(lambda s: (sinh(s) - s) / s**3),
    lambda z: z,
    0,
    1.0001,
    4,
    7,
)
both("ERF", "erf(x) / x - 1 in x**2", of_root(lambda s: erf(s) / s - 1), lambda z: mpf(1), 0, 0.8101, 7, 12)
FITS["ERFC"] = (
    "-log(erfc(x)) in x - 1",
    (lambda u: -log(erfc(u + 1)), lambda u: erfc_weight(u + 1), -0.1, 3.0, 7),
    (lambda u: -log(erfc(u + 1)), lambda u: erfc_weight(u + 1), -0.1, 5.0, 18),
)


def literal(value: Any, name: str) -> str:
    if name == "float64":
        return repr(float(value))
    rounded = struct.unpack("f", struct.pack("f", float(value)))[0]
    text = f"{rounded:.9g}"
    return text if any(c in text for c in ".en") else text + ".0"


def main() -> None:
    print('"""Polynomial coefficients of the elementary functions, lowest degree first, by dtype name.\n')
    print(
        "Printed by benchmarks/fit_functions.py, which says how; do not edit.  Each entry names"
    )
    print(
        'what is fitted, the interval of the variable, and the error relative to the function.\n"""\n'
    )
    print("from __future__ import annotations\n")
    print("POLYNOMIALS: dict[str, dict[str, tuple[float, ...]]] = {")
    for name, (text, single, double) in FITS.items():
        print(f"    # {text}")
        print(f'    "{name}": {{')
        for dtype, (g, weight, low, high, n) in (("float32", single), ("float64", double)):
            coefficients, error = remez(g, weight, low, high, n)
            print(f"        # [{low:g}, {high:g}], error 2**{float(log(error) / LN2):.1f}")
            print(f'        "{dtype}": (')
            words = [literal(c, dtype) for c in coefficients]
            for i in range(0, len(words), 4):
                print("            " + ", ".join(words[i : i + 4]) + ",")
            print("        ),")
        print("    },")
    print("}")


if __name__ == "__main__":
    main()
