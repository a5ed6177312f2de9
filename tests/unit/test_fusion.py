"""Which expressions are one kernel, which are cut, and why: a table that documents `schedule/fusion.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import retarget as rt
from retarget.ir import ops
from retarget.pipeline import lower_graph, strip_reshape
from retarget.schedule.fusion import MAX_DEPTH, Fusion, fuse


def ones(*shape: int) -> rt.Array:
    return rt.asarray(np.ones(shape, "f4"), device="numpy")


x, w, b, row = ones(64, 256), ones(256, 128), ones(128), ones(256)
q, image, filters = ones(8, 16, 32), ones(2, 3, 16, 16), ones(4, 3, 3, 3)
places = rt.asarray(np.zeros(10, "i8"), device="numpy")

ROW = "its results would be computed again for each index of a broadcast axis"
COSTLY = "costly, and broadcast along an outer axis"
INSIDE = "a reduction inside another one"

#: (what, expression, reasons for which something besides the result is stored, in the order in which it runs)
TABLE: list[tuple[str, Callable[[], rt.Array], list[str]]] = [
    # one kernel
    ("elementwise chain", lambda: rt.exp(x * 2 + 1) / (x - 3), []),
    ("softmax", lambda: rt.softmax(x, axis=1), []),
    ("softmax of a stack", lambda: rt.softmax(q, axis=-1), []),
    ("layer norm", lambda: rt.layer_norm(x, row, row), []),
    ("variance in two passes", lambda: rt.var(x, axis=1), []),
    ("standard deviation", lambda: rt.std(x, axis=1), []),
    ("matmul", lambda: x @ w, []),
    ("matmul, bias, gelu", lambda: rt.gelu(x @ w + b), []),
    ("convolution, relu", lambda: rt.relu(rt.conv2d(image, filters)), []),
    ("centred rows", lambda: x - rt.mean(x, axis=1, keepdims=True), []),
    ("argmax", lambda: rt.argmax(x, axis=1), []),
    ("short cumulative sum", lambda: rt.cumulative_sum(x[:, :60], axis=1), []),
    ("concat of expressions", lambda: rt.concat([x, x * 2]), []),
    ("transposed, then summed", lambda: rt.sum(x.T * 2, axis=0), []),
    ("rows by an index array", lambda: rt.take(x, places, axis=0) + 1, []),
    ("function of a column, broadcast along rows", lambda: ones(64, 128) * rt.exp(ones(64, 1)), []),
    (
        "sums along both axes of a square",
        lambda: rt.sum(q[0, :, :16], axis=0) + rt.sum(q[0, :, :16], axis=1),
        [],
    ),
    ("few results of a small sum, broadcast", lambda: x[:2, :8] / rt.max(x[:2, :8]), []),
    # cut
    ("softmax over rows", lambda: rt.softmax(x, axis=0), [ROW, "costly, and used by several kernels", ROW]),
    ("centred columns", lambda: x - rt.mean(x, axis=0, keepdims=True), [ROW]),
    ("variance of everything", lambda: rt.var(x), [ROW]),
    ("divided by the largest of all", lambda: x / rt.max(x), [ROW]),
    ("function of a row, broadcast along columns", lambda: rt.exp(b) + ones(64, 128), [COSTLY]),
    ("function before a matmul", lambda: rt.exp(x) @ w, [COSTLY]),
    ("softmax of a matmul", lambda: rt.softmax(x @ w, axis=1), [INSIDE]),
    ("attention", lambda: rt.softmax(q @ rt.matrix_transpose(q), axis=-1) @ q, [INSIDE, ROW]),
    ("sum of sums, with work between", lambda: rt.sum(rt.sum(x, axis=1) * 2), [INSIDE]),
    ("reversed sums", lambda: rt.sum(x, axis=1)[::-1] + 1, ["moved by FLIP"]),
    ("padded sums", lambda: rt.pad(rt.sum(x, axis=1), (1, 1)), ["moved by PAD"]),
    ("reshaped sums", lambda: rt.reshape(rt.sum(x, axis=1), (8, 8)) + 1, ["moved by RESHAPE"]),
    ("a slice of sums", lambda: rt.sum(x, axis=1)[3:] + 1, ["moved by SHRINK"]),
    (
        "sums along both axes",
        lambda: rt.sum(x, axis=0, keepdims=True) + rt.sum(x, axis=1, keepdims=True),
        [ROW],
    ),
    (
        "sums of a row and of a plane",
        lambda: q / rt.sum(q, axis=2, keepdims=True) / rt.sum(q, axis=(1, 2), keepdims=True),
        ["two reductions with different row axes"] * 2,
    ),
    ("functions by an index array", lambda: rt.take(rt.exp(x), places, axis=0), ["indexed by an array"]),
    ("long cumulative sum", lambda: rt.cumulative_sum(x, axis=1), [ROW, "contiguous"]),
]


def fusion_of(*arrays: rt.Array) -> Fusion:
    return fuse([strip_reshape(a.node) for a in arrays])


@pytest.mark.parametrize(("what", "expression", "reasons"), TABLE, ids=[t[0] for t in TABLE])
def test_table(what: str, expression: Callable[[], rt.Array], reasons: list[str]) -> None:
    fusion = fusion_of(expression())
    found = list(fusion.stored.values())
    assert found == [*reasons, "asked for"]
    assert len(fusion.groups) == len(found)


def test_reductions_of_one_row_share_a_kernel() -> None:
    total, high, spread = rt.sum(x, axis=1), rt.max(x, axis=1), rt.var(x, axis=1)
    assert len(fusion_of(total, high, spread).groups) == 1


def test_outputs_of_other_shapes_or_inputs_do_not() -> None:
    assert len(fusion_of(rt.sum(x, axis=1), rt.sum(x, axis=0)).groups) == 2
    assert len(fusion_of(x + 1, ones(64, 256) + 1).groups) == 2
    assert len(fusion_of(x + 1, x * 2, rt.exp(x)).groups) == 1


def test_an_output_that_another_one_uses() -> None:
    y = rt.exp(x)
    assert len(fusion_of(y, y + 1).groups) == 1  # computed once, stored and used
    total = rt.sum(y)
    z = y / total
    fusion = fusion_of(y, z)
    place = {n: k for k, group in enumerate(fusion.groups) for n in group}
    assert place[y.node] < place[strip_reshape(z.node)]


def test_groups_run_in_an_order_that_works() -> None:
    """Every stored operand of a group is made by an earlier one."""
    h = x
    for k in range(4):
        h = rt.softmax(h @ ones(256, 256), axis=1) + h * k
    fusion = fusion_of(h, rt.sum(h), rt.max(h, axis=0))
    place = {n: k for k, group in enumerate(fusion.groups) for n in group}
    for _, kernel in lower_graph([h.node]):
        for output in kernel.outputs:
            for source in kernel.inputs:
                if source.op is not ops.BUFFER:
                    assert place[source] < place[output]


@pytest.mark.parametrize("n", [10, MAX_DEPTH, 3 * MAX_DEPTH])
def test_deep_expressions_are_cut(n: int) -> None:
    y = x
    for k in range(n):
        y = y * 2 + float(k)
    fusion = fusion_of(y)
    assert len(fusion.groups) == 1 + 2 * n // MAX_DEPTH
    assert set(list(fusion.stored.values())[:-1]) <= {"the expression is too deep"}


def test_kernels_with_many_buffers_are_cut() -> None:
    total = ones(3)
    for _ in range(150):
        total = total + ones(3)
    fusion = fusion_of(total)
    assert len(fusion.groups) == 3
    assert all(len(kernel.inputs) <= 61 for _, kernel in lower_graph([total.node]))


def test_nothing_to_do() -> None:
    assert rt.lower(x) == [] and rt.lower(x.reshape(-1)) == []
    with pytest.raises(TypeError, match="lazy arrays"):
        rt.lower(np.ones(3))  # type: ignore[arg-type]
