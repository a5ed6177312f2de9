"""Gates of vector accesses: scalar gates of gathers, and vectors that are wider than the target's."""

from __future__ import annotations

import numpy as np
import pytest
from devices import require

import retarget as rt

DEVICES = ("llvm", "clang", "numpy")


@pytest.mark.parametrize("device", DEVICES)
def test_gather_under_a_scalar_gate(device: str) -> None:
    require(device)
    values = np.array([[True, False], [False, True], [True, True], [False, False]])
    for position in (0, -1, 5):
        index = np.asarray(position, "i4")
        view = rt.permute_dims(rt.asarray(values, device=device)[2:4, 1:2], (1, 0))
        got = np.asarray(rt.take(view, rt.reshape(rt.asarray(index, device=device), (1,)), axis=0))
        inside = values[2:4, 1:2].T
        expected = inside[[position]] if -1 <= position < 1 else np.zeros_like(inside)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int8", "uint16", "bool"])
def test_vectors_wider_than_the_target_keep_their_gates(device: str, dtype: str) -> None:
    values = (np.arange(8).reshape(2, 2, 2) % 3).astype(dtype)
    schedule = "r0=r0o,r0l/3; r2=r2o,r2v/16:v; r1=r1o,r1u/3:u; order=r2v,r1u,r1o"
    x = rt.asarray(values, device=require(device))
    with rt.with_schedule(schedule):
        got = np.asarray(rt.broadcast_to(rt.max(x, axis=2, keepdims=True), (2, 2, 2)))
    np.testing.assert_array_equal(got, np.broadcast_to(values.max(axis=2, keepdims=True), (2, 2, 2)))
