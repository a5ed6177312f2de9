"""The kernels of the demo: each as Retarget and as NumPy compute it, with operands of a given size.

Where both can evaluate one expression, it is written once, for a namespace `xp` of the array API standard.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

Operand = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel.

    Attributes
    ----------
    size, small_size
        What `operands` takes; the small one is for devices that interpret.
    operands
        Makes the operands of a size, float32 or uint8.
    compute
        Takes a namespace (`retarget` or `numpy`) and arrays of it.
    work
        Floating-point operations of a size where `unit` is GFLOP/s; bytes moved where it is GB/s.
    """

    name: str
    size: tuple[int, ...]
    small_size: tuple[int, ...]
    operands: Callable[..., tuple[Operand, ...]]
    compute: Callable[..., Any]
    work: Callable[..., float]
    unit: str


def photo() -> Operand:
    """Return the demo's photograph, uint8 of shape (256, 256); photo.txt says where it is from."""
    data = resources.files("retarget.demo").joinpath("photo.pgm").read_bytes()
    _, size, _, pixels = data.split(b"\n", 3)
    width, height = map(int, size.split())
    return np.frombuffer(pixels, np.uint8).reshape(height, width)


def normal(*shapes: tuple[int, ...]) -> tuple[Operand, ...]:
    """Return normally distributed float32 arrays, the same at every call."""
    source = np.random.default_rng(0)
    return tuple([source.standard_normal(shape, np.float32) for shape in shapes])


def dense(xp: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Return gelu(x @ weight + bias), gelu in its form with tanh."""
    h = x @ weight + bias
    return 0.5 * h * (1.0 + xp.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h * h * h)))


def softmax(xp: Any, x: Any) -> Any:
    """Return exp(x) over its sum in each row."""
    e = xp.exp(x - xp.max(x, axis=1, keepdims=True))
    return e / xp.sum(e, axis=1, keepdims=True)


def layer_norm(xp: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Return rows with mean 0 and variance 1, times weight plus bias."""
    centered = x - xp.mean(x, axis=1, keepdims=True)
    variance = xp.mean(centered * centered, axis=1, keepdims=True)
    return centered / xp.sqrt(variance + 1e-5) * weight + bias


def convolution(xp: Any, x: Any, weight: Any) -> Any:
    """Return the convolution of (1, channels, height, width) with (outputs, channels, 3, 3), zeros around."""
    if xp is not np:
        return xp.conv2d(x, weight, padding=1)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.tensordot(weight, windows[0], axes=((1, 2, 3), (0, 3, 4)))[None]


def edges(xp: Any, picture: Any) -> Any:
    """Return how strong the edges of a picture are, by Sobel's filters, without its outermost pixels."""
    p = picture.astype(xp.float32)
    columns = p[:-2] + 2 * p[1:-1] + p[2:]
    rows = p[:, :-2] + 2 * p[:, 1:-1] + p[:, 2:]
    across = columns[:, 2:] - columns[:, :-2]
    down = rows[2:] - rows[:-2]
    return xp.minimum(xp.sqrt(across * across + down * down), 255.0).astype(xp.uint8)


CASES = (
    Case(
        "matmul+bias+gelu", (512, 512, 512), (12, 16, 24),
        lambda n, k, m: normal((n, k), (k, m), (m,)), dense,
        lambda n, k, m: n * m * (2.0 * k + 1), "GFLOP/s",
    ),
    Case(
        "softmax", (1024, 1024), (12, 40), lambda n, m: normal((n, m)), softmax,
        lambda n, m: 8.0 * n * m, "GB/s",
    ),
    Case(
        "layer norm", (2048, 768), (12, 40), lambda n, m: normal((n, m), (m,), (m,)), layer_norm,
        lambda n, m: 8.0 * n * m, "GB/s",
    ),
    Case(
        "3x3 convolution", (32, 64, 64), (4, 10, 12),
        lambda c, h, w: normal((1, c, h, w), (c, c, 3, 3)), convolution,
        lambda c, h, w: 18.0 * c * c * h * w, "GFLOP/s",
    ),
    Case(
        "edges of photo", (256, 256), (24, 32), lambda h, w: (photo()[-h:, -w:],), edges,
        lambda h, w: 1.0 * h * w + (h - 2) * (w - 2), "GB/s",
    ),
)  # fmt: skip
