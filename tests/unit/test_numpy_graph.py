"""The graph evaluator of the NumPy backend, op by op against NumPy expressions."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from retarget.errors import InternalError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType, as_dtype, to_numpy
from retarget.ir.ops import Op
from retarget.ir.simplify import alu
from retarget.ir.uop import UOp, const
from retarget_numpy.graph import evaluate

Array = np.ndarray[Any, Any]


class Inputs:
    """Makes BUFFER nodes for arrays."""

    def __init__(self) -> None:
        self.arrays: dict[UOp, Array] = {}

    def __call__(self, data: Any, dtype: DType | None = None) -> UOp:
        array = np.asarray(data, None if dtype is None else to_numpy(dtype))
        node = UOp(ops.BUFFER, as_dtype(array.dtype), (), (len(self.arrays), array.shape, "numpy:0"))
        self.arrays[node] = array
        return node

    def evaluate(self, *roots: UOp) -> list[Array]:
        return evaluate(roots, self.arrays.__getitem__)


@pytest.fixture
def inputs() -> Inputs:
    return Inputs()


def node(op: Op, x: UOp, arg: Any, *more: UOp) -> UOp:
    return UOp(op, x.dtype, (x, *more), arg)


def check(inputs: Inputs, root: UOp, wanted: Any) -> None:
    (result,) = inputs.evaluate(root)
    assert result.dtype == to_numpy(root.dtype)
    assert result.shape == np.shape(wanted)
    np.testing.assert_array_equal(result, wanted)


DATA = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def test_movement(inputs: Inputs) -> None:
    x = inputs(DATA)
    check(inputs, node(ops.RESHAPE, x, (4, 6)), DATA.reshape(4, 6))
    check(inputs, node(ops.PERMUTE, x, (2, 0, 1)), DATA.transpose(2, 0, 1))
    check(inputs, node(ops.PAD, x, ((1, 0), (0, 2), (0, 0))), np.pad(DATA, ((1, 0), (0, 2), (0, 0))))
    check(inputs, node(ops.SHRINK, x, ((0, 1), (1, 3), (2, 2))), DATA[0:1, 1:3, 2:2])
    check(inputs, node(ops.FLIP, x, (0, 2)), DATA[::-1, :, ::-1])
    row = inputs(DATA[:, :1])
    check(inputs, node(ops.EXPAND, row, (2, 3, 4)), np.broadcast_to(DATA[:, :1], (2, 3, 4)))
    check(inputs, node(ops.CONTIGUOUS, node(ops.PERMUTE, x, (2, 1, 0)), None), DATA.T)
    check(inputs, node(ops.COPY, x, "llvm:0"), DATA)


def test_a_reshape_of_permuted_data_is_row_major(inputs: Inputs) -> None:
    x = inputs(DATA)
    check(inputs, node(ops.RESHAPE, node(ops.PERMUTE, x, (2, 1, 0)), (24,)), DATA.T.reshape(24))


def test_constants_and_counting(inputs: Inputs) -> None:
    check(inputs, const(2.5, dtypes.bfloat16), np.float32(2.5))
    check(inputs, UOp(ops.IOTA, dtypes.uint8, (), 300), np.arange(300) % 256)
    check(inputs, UOp(ops.IOTA, dtypes.float16, (), 3), [0.0, 1.0, 2.0])
    check(inputs, UOp(ops.IOTA, dtypes.int64, (), 0), np.zeros(0))


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (ops.ADD, DATA.sum((0, 2), keepdims=True)),
        (ops.MAXIMUM, DATA.max((0, 2), keepdims=True)),
        (ops.MINIMUM, DATA.min((0, 2), keepdims=True)),
        (ops.MUL, DATA.prod((0, 2), keepdims=True)),
    ],
    ids=repr,
)
def test_reductions(inputs: Inputs, op: Op, wanted: Array) -> None:
    check(inputs, node(ops.REDUCE_AXIS, inputs(DATA), (op, (0, 2))), wanted)


def test_gather_gives_zero_out_of_bounds(inputs: Inputs) -> None:
    x = inputs(DATA)
    first, second = [[0, 1, 2], [-1, 1, 0]], [[0, 2, 0], [0, 3, 1]]
    zero = np.zeros(4)
    wanted = [[DATA[0, 0], DATA[1, 2], zero], [zero, zero, DATA[0, 1]]]
    check(inputs, node(ops.GATHER, x, None, inputs(first, dtypes.int8), inputs(second, dtypes.int64)), wanted)
    check(inputs, node(ops.GATHER, x, None, inputs([2**64 - 1, 1], dtypes.uint64)), [DATA[0] * 0, DATA[1]])
    empty = inputs(np.zeros((0, 2), np.float32))
    check(inputs, node(ops.GATHER, empty, None, inputs([0, 5], dtypes.int32)), np.zeros((2, 2)))


def test_elementwise_with_scalars(inputs: Inputs) -> None:
    x = inputs(DATA)
    check(inputs, alu(ops.MUL, x, const(2.0, dtypes.float32)), DATA * 2)
    small = alu(ops.CMPLT, x, const(5.0, dtypes.float32))
    check(inputs, alu(ops.WHERE, small, x, node(ops.EXPAND, inputs([[[7.0]]], dtypes.float32), (2, 3, 4))),
          np.where(DATA < 5, DATA, 7))  # fmt: skip


def test_several_roots_that_share_nodes(inputs: Inputs) -> None:
    x = inputs(DATA)
    doubled = alu(ops.ADD, x, x)
    a, b, c = inputs.evaluate(doubled, x, alu(ops.ADD, doubled, x))
    np.testing.assert_array_equal(a, DATA * 2)
    np.testing.assert_array_equal(b, DATA)
    np.testing.assert_array_equal(c, DATA * 3)
    b[:] = 0
    assert inputs.arrays[x] is DATA and DATA.max() == 23, "results are copies"


def test_long_chains_need_no_stack(inputs: Inputs) -> None:
    x = inputs(np.zeros(1, np.int32))
    y, one = x, const(1, dtypes.int32)
    for _ in range(20000):
        y = alu(ops.ADD, y, one)
    check(inputs, y, [20000])


def test_intermediate_values_are_freed_after_their_last_use(inputs: Inputs) -> None:
    y = inputs(np.zeros(1 << 17))
    for _ in range(50):
        y = alu(ops.NEG, y)
    tracemalloc.start()
    inputs.evaluate(y)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 << 20, "three arrays of 1 MiB, not fifty"


def test_values_of_variables(inputs: Inputs) -> None:
    n = UOp(ops.VAR, dtypes.int32, (), ("n", 1, 10))
    (result,) = evaluate([alu(ops.MUL, n, n)], inputs.arrays.__getitem__, {"n": 7})
    assert result.dtype == np.int32 and result == 49


def test_a_buffer_of_another_type_is_refused() -> None:
    x = UOp(ops.BUFFER, dtypes.float32, (), (0, (3,), "numpy:0"))
    wrong: Sequence[Array] = [np.zeros(3), np.zeros(4, np.float32)]
    for array in wrong:
        with pytest.raises(InternalError, match="BUFFER gave"):
            evaluate([x], {x: array}.__getitem__)


def test_ops_of_other_levels_are_refused() -> None:
    with pytest.raises(InternalError, match="RANGE does not stand in a graph"):
        evaluate([UOp(ops.RANGE, dtypes.index, (), ("r0", 4, "loop"))], lambda _: np.zeros(1))
