"""Tensor cores of GPUs as data, one function a family, each from the formula in its vendor's manual.

Backends own their descriptors; these are what the core is tested with.  `l` lane, `e` element, `k` the index
that is summed over.
"""

from __future__ import annotations

from retarget.registry.capabilities import TensorCore
from retarget.registry.layouts import by_element, by_lane

_HALVES = ("float16", "bfloat16")
_BYTES = ("float8_e4m3", "float8_e5m2")
_TF32 = "operands are rounded to 10 bits of significand"
_HALF_SUM = "sums are rounded to float16"


def nvidia() -> list[TensorCore]:
    """Return mma.sync of sm_75 to sm_90: PTX ISA, "Matrix Fragments for mma.m16n8k8" and its neighbours.

    Elements are packed in registers of 32 bits: `p` of them.  A lane has registers of A for the row below 8
    and the one above, each for the lower and, where there is one, the upper half of the terms.
    """

    def mma(dtype: str, out: str, k: int, p: int, loses: str = "") -> TensorCore:
        half = 4 * p  # terms that one register of each lane covers
        return TensorCore(
            f"mma_m16n8k{k}_{dtype}_{out}", (8, 16, k), dtype, out, 32,
            by_element(32, k // 2, 16, k, lambda row, i: (
                i % half // p + 4 * (row % 8), i % p + p * (row // 8) + 2 * p * (i // half))),
            by_element(32, k // 4, k, 8, lambda i, col: (i % half // p + 4 * col, i % p + p * (i // half))),
            by_lane(32, 4, lambda lane, e: (lane // 4 + 8 * (e // 2), e % 2 + 2 * (lane % 4))),
            loses=loses,
        )  # fmt: skip

    return [
        mma("float16", "float32", 8, 2), mma("float16", "float16", 8, 2, _HALF_SUM),
        *[mma(d, "float32", 16, 2) for d in _HALVES], mma("float16", "float16", 16, 2, _HALF_SUM),
        mma("float32", "float32", 8, 1, _TF32),
        mma("int8", "int32", 32, 4), mma("uint8", "int32", 32, 4),
        *[mma(d, "float32", 32, 4) for d in _BYTES],
    ]  # fmt: skip


def rdna3() -> list[TensorCore]:
    """Return v_wmma of gfx11: RDNA3 ISA, 7.9; lanes 16 to 31 hold the same of A and B as 0 to 15."""
    return [
        TensorCore(
            f"wmma_16x16x16_{dtype}_{out}", (16, 16, 16), dtype, out, 32,
            by_lane(32, 16, lambda lane, e: (lane % 16, e)),
            by_lane(32, 16, lambda lane, e: (e, lane % 16)),
            by_lane(32, 8, lambda lane, e: (lane // 16 + 2 * e, lane % 16)),
        )
        for dtype, out in (("float16", "float32"), ("bfloat16", "float32"), ("int8", "int32"))
    ]  # fmt: skip


def rdna4() -> list[TensorCore]:
    """Return v_wmma of gfx12: terms 0-3 and 8-11 are in lanes 0 to 15, the others in 16 to 31."""
    return [
        TensorCore(
            f"wmma12_16x16x16_{dtype}_{out}", (16, 16, 16), dtype, out, 32,
            by_element(32, 8, 16, 16, lambda row, k: (row + 16 * (k // 4 % 2), k % 4 + 4 * (k // 8))),
            by_element(32, 8, 16, 16, lambda k, col: (col + 16 * (k // 4 % 2), k % 4 + 4 * (k // 8))),
            by_lane(32, 8, lambda lane, e: (8 * (lane // 16) + e, lane % 16)),
            loses=_HALF_SUM if out == "float16" else "",
        )
        for dtype, out in (("float16", "float32"), ("bfloat16", "float32"), ("float16", "float16"))
    ]  # fmt: skip


def cdna() -> list[TensorCore]:
    """Return v_mfma of gfx942 and gfx950: MI300 ISA, 7.1; waves of 64 lanes, each with a run of terms."""

    def mfma(dtype: str, k: int) -> TensorCore:
        each = k // 4
        return TensorCore(
            f"mfma_16x16x{k}_{dtype}", (16, 16, k), dtype, "float32", 64,
            by_element(64, each, 16, k, lambda row, i: (row + 16 * (i // each), i % each)),
            by_element(64, each, k, 16, lambda i, col: (col + 16 * (i // each), i % each)),
            by_lane(64, 4, lambda lane, e: (4 * (lane // 16) + e, lane % 16)),
        )  # fmt: skip

    return [
        *[mfma(d, 16) for d in _HALVES], *[mfma(d, 32) for d in (*_BYTES, *_HALVES)],
        *[mfma(d, 128) for d in _BYTES],
    ]  # fmt: skip


def metal() -> list[TensorCore]:
    """Return simdgroup_multiply_accumulate of 8 x 8 matrices, whose layout was found by experiment."""

    def lane_of(i: int, j: int) -> int:
        return i // 2 % 2 + 2 * (j % 4) + 8 * (i // 4) + 16 * (j // 4)

    return [
        TensorCore(
            f"simdgroup_8x8x8_{dtype}_{out}", (8, 8, 8), dtype, out, 32,
            by_element(32, 2, 8, 8, lambda row, k: (lane_of(k, row), k % 2)),
            by_element(32, 2, 8, 8, lambda k, col: (lane_of(col, k), col % 2)),
            by_lane(32, 2, lambda lane, e: (
                lane // 2 % 4 + 4 * (lane // 16), e + 2 * (lane % 2) + 4 * (lane // 8 % 2))),
            loses=_HALF_SUM if out == "float16" else "",
        )
        for dtype, out in (("float32", "float32"), ("float16", "float32"), ("float16", "float16"),
                           ("bfloat16", "float32"))
    ]  # fmt: skip


FAMILIES = {"nvidia": nvidia, "rdna3": rdna3, "rdna4": rdna4, "cdna": cdna, "metal": metal}
