"""The kernels that are lowered by `latency`, in one place so that each peer lowers the same."""

from __future__ import annotations

#: Case -> shapes of its operands; `0` stands for a size that is new in each repetition.  Targets are
#: milliseconds.
LOWERING: dict[str, tuple[tuple[tuple[int, ...], ...], float]] = {
    "add": (((0, 1024), (0, 1024)), 0.8),
    "sum": (((0, 1024),), 1.2),
    "softmax": (((0, 1024),), 4.0),
    "matmul": (((0, 1024), (1024, 1024)), 3.0),
    "conv3x3": (((8, 64, 0, 56), (64, 64, 3, 3)), 6.0),
    "layernorm": (((0, 768), (768,), (768,)), 5.0),
}

#: Case -> milliseconds that tinygrad needed to lower it on the machine on which the targets were set, two
#: cores with AVX-512.  Its time here over these tells how fast this machine is.
TINYGRAD_REFERENCE: dict[str, float] = {
    "add": 25.0, "sum": 38.0, "softmax": 263.0, "matmul": 172.0, "conv3x3": 509.0, "layernorm": 141.0,
}  # fmt: skip

#: The size that stands in the place of 0 in the first repetition, and how it grows.
SIZES = {"conv3x3": (56, 2)}


def shapes(case: str, repetition: int) -> list[tuple[int, ...]]:
    """Return the operands' shapes in one repetition; no two repetitions have the same."""
    first, step = SIZES.get(case, (1024, 8))
    size = first + step * repetition
    return [tuple(size if n == 0 else n for n in shape) for shape in LOWERING[case][0]]
