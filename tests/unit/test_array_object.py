"""`Array` itself: laziness, conversion, devices, repr, deep graphs, and what importing costs."""

from __future__ import annotations

import copy
import gc
import inspect
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import retarget as rt
from retarget.errors import DTypeError, ShapeError
from retarget.ir import ops

pytestmark = pytest.mark.usefixtures("oracle_runtime")


def test_nothing_runs_before_a_value_is_needed() -> None:
    x = rt.exp(rt.asarray([0.0, 1.0])) * 2
    assert x.node.op is ops.MUL
    assert repr(x) == "Array(shape=(2,), dtype=float32, device='cpu:0')"
    assert x.node.op is ops.MUL
    assert x.realize() is x
    assert x.node.op is ops.BUFFER
    node = x.node
    assert x.realize().node is node
    assert repr(x) == "Array([2.       , 5.4365635], shape=(2,), dtype=float32, device='cpu:0')"
    assert repr(rt.zeros((2, 3))) == "Array(shape=(2, 3), dtype=float32)"
    assert "..." not in repr(rt.ones(2000).realize())


def test_equal_expressions_are_one_node() -> None:
    x = rt.asarray([1.0, 2.0])
    assert (rt.exp(x * 2) + 1).node is (rt.exp(x * 2.0) + 1.0).node
    assert (x * 0.0).node is not (x * -0.0).node


def test_attributes() -> None:
    x = rt.zeros((2, 3, 4), dtype="int16")
    assert (x.shape, x.ndim, x.size, x.itemsize, x.nbytes, len(x)) == ((2, 3, 4), 3, 24, 2, 48, 2)
    assert x.dtype is rt.int16
    assert x.__array_namespace__() is rt
    assert x.__array_namespace__(api_version="2024.12") is rt
    with pytest.raises(ValueError, match="1999"):
        x.__array_namespace__(api_version="1999.12")
    assert len({x, x, rt.zeros((2, 3, 4), dtype="int16")}) == 2
    with pytest.raises(AttributeError):
        x.shape = (1,)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        x.spam = 1  # type: ignore[attr-defined]


def test_conversion_to_python() -> None:
    assert rt.asarray(3).item() == int(rt.asarray(3)) == 3
    assert isinstance(rt.asarray(3.5).item(), float)
    assert isinstance(rt.full((1, 1), 1.5, dtype="bfloat16").item(), float)
    assert rt.asarray(np.float16(0.5)).tolist() == 0.5
    assert rt.asarray([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    assert rt.full((2,), 1.5, dtype="bfloat16").tolist() == [1.5, 1.5]
    assert bool(rt.asarray(2.0))
    assert not bool(rt.asarray(0))
    assert float(rt.asarray(2)) == 2.0
    assert [10, 20, 30][rt.asarray(1)] == 20
    assert 3 in rt.arange(5)
    assert [int(v) for v in rt.arange(3)] == [0, 1, 2]
    with pytest.raises(
        ShapeError, match=r"bool\(\) takes a 0-d array, and this one has shape \(2,\); use item"
    ):
        bool(rt.ones(2))
    with pytest.raises(ShapeError, match="one element"):
        rt.ones(2).item()
    with pytest.raises(DTypeError, match="integer"):
        [1][rt.asarray(0.0)]
    with pytest.raises(ShapeError):
        iter(rt.asarray(1))


def test_conversion_to_numpy() -> None:
    x = rt.arange(3)
    assert np.asarray(x, dtype="f4").dtype == np.float32
    values = np.array(x)
    values[0] = 9
    assert x.tolist() == [0, 1, 2]
    assert np.from_dlpack(x).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="from_dlpack"):
        np.asarray(x, copy=False)
    assert rt.zeros(2, dtype="bfloat16").numpy().dtype.name == "bfloat16"


def test_devices() -> None:
    x = rt.asarray([1.0], device="gpu")
    assert x.device == (x + 1).device == x[0].device == rt.sum(x).device == "gpu:0"
    assert rt.arange(3).device == "cpu:0"
    moved = x.to_device("cpu")
    assert (moved.node.op, moved.node.arg, moved.device) == (ops.COPY, "cpu:0", "cpu:0")
    assert x.to_device("gpu").node is x.node
    assert rt.arange(3).to_device("gpu").node.op is ops.IOTA
    assert rt.zeros(2, device="gpu").device == "gpu:0"
    assert rt.zeros_like(x).device == "gpu:0"
    assert rt.concat([x, rt.ones(2)]).device == "gpu:0"
    assert (np.float32(2) * x).device == "gpu:0"
    assert (np.ones(1, "f4") * x).device == "gpu:0"


def test_namespace_info() -> None:
    info = rt.__array_namespace_info__()
    assert info.capabilities()["data-dependent shapes"] is False
    assert info.default_dtypes()["real floating"] is rt.float32
    assert set(info.dtypes(kind="unsigned integer")) == {"uint8", "uint16", "uint32", "uint64"}
    assert info.dtypes()["bool"] is rt.bool
    assert info.default_device() == "cpu:0"


def test_copies_of_arrays_are_independent() -> None:
    x = rt.arange(3)
    other = copy.copy(x)
    other[0] = 7
    assert (x.tolist(), other.tolist()) == ([0, 1, 2], [7, 1, 2])


def test_deep_graphs_neither_recurse_when_built_nor_when_deleted() -> None:
    x, y = rt.asarray([1.0]), rt.asarray([1.0])
    for _ in range(20000):
        x = x + y
    assert x.tolist() == [20001.0]
    z = x
    for _ in range(100_000):
        z = z + y
    assert z.shape == (1,)
    del z
    gc.collect()
    x = y
    gc.collect()
    assert x.tolist() == [1.0]


def test_sum_of_many_arrays() -> None:
    for n, expected in ((31, 465), (600, 179700)):
        total: Any = 0.0
        for i in range(n):
            total = total + rt.asarray([float(i)])
        assert float(total[0]) == expected


def test_division_of_a_magnitude_by_itself() -> None:
    t = rt.arange(1, 1025, dtype="float32")
    assert (rt.abs(t) / t).astype("int32").tolist() == [1] * 1024


STANDARD = """
    abs acos acosh add arange argmax argmin asarray asin asinh astype atan atan2 atanh bitwise_and
    bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor bool broadcast_arrays
    broadcast_to can_cast ceil clip concat copysign cos cosh count_nonzero cumulative_prod cumulative_sum
    diff divide e empty empty_like equal exp expand_dims expm1 eye finfo flip float32 float64 floor
    floor_divide from_dlpack full full_like greater greater_equal hypot iinfo inf int16 int32 int64 int8
    isdtype isfinite isinf isnan less less_equal linspace log log10 log1p log2 logaddexp logical_and
    logical_not logical_or logical_xor matmul matrix_transpose max maximum mean meshgrid min minimum
    moveaxis multiply nan negative newaxis nextafter not_equal ones ones_like permute_dims pi positive pow
    prod reciprocal remainder repeat reshape result_type roll round sign signbit sin sinh sqrt square
    squeeze stack std subtract sum take take_along_axis tan tanh tensordot tile tril triu trunc uint16
    uint32 uint64 uint8 unstack var vecdot where zeros zeros_like __array_namespace_info__
"""


def test_the_standard_names_are_there_and_documented() -> None:
    for name in STANDARD.split():
        assert name in rt.__all__
    for name in rt.array.__all__:
        value = getattr(rt, name)
        if inspect.isfunction(value):
            assert value.__doc__, name
    assert set(rt.__all__) <= set(dir(rt))
    with pytest.raises(AttributeError, match="spam"):
        rt.spam  # noqa: B018


def test_import_loads_no_heavy_module() -> None:
    program = (
        "import sys, numpy; import retarget as rt; rt.exp(rt.arange(3) / 2)[1:].sum(); import json; "
        "print(json.dumps(sorted(m.partition('.')[0] for m in sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    modules = json.loads(out.stdout)
    assert not {"llvmlite", "ml_dtypes", "pluggy", "rich", "click", "cffi"} & set(modules)
