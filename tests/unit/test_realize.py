"""Computing graphs: plans that serve every graph of one form and no other; roots, copies, wrong devices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from devices import require

import retarget as rt
from retarget.errors import DeviceError
from retarget.ir import ops
from retarget.ir.text import dump, parse
from retarget.runtime import realize as realizing
from retarget.runtime.realize import normal_form, realize


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Count the plans that are made, from an empty memory cache and without a disk cache."""
    monkeypatch.setenv("RETARGET_CACHE", "0")
    realizing.clear_memory_cache()
    found: list[Any] = []
    original = realizing._make_plan

    def make(*arguments: Any) -> Any:
        found.append(arguments[0])
        return original(*arguments)

    monkeypatch.setattr(realizing, "_make_plan", make)
    with rt.default_device("numpy"):
        yield found


def array(*values: float, dtype: str = "f4") -> rt.Array:
    return rt.asarray(np.array(values, dtype), device="numpy")


def test_a_plan_serves_other_buffers(made: list[Any]) -> None:
    for k in range(4):
        x, y = array(k, 1), array(2, 3)
        assert (x * y + x).numpy().tolist() == [3 * k, 4]
    assert len(made) == 1


def test_which_operands_are_one_matters(made: list[Any]) -> None:
    x, y = array(1, 2), array(3, 4)
    assert (x * y).numpy().tolist() == [3, 8]
    assert (x * x).numpy().tolist() == [1, 4]
    assert (y * y).numpy().tolist() == [9, 16]
    assert (y * x + y).numpy().tolist() == [6, 12]
    assert (y * x + x).numpy().tolist() == [4, 10]
    assert len(made) == 4


CONSTANTS = [0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, 2.0, 5e-324, 0.1, 0.1 + 1e-17]


def test_constants_are_part_of_a_plan(made: list[Any]) -> None:
    """Also those that compare equal, or not even to themselves."""
    found = [rt.copysign(array(3.0, dtype="f8"), array(1.0, dtype="f8") * c).item() for c in CONSTANTS[:2]]
    assert found == [3, -3]
    made.clear()
    for _ in range(2):
        for c in CONSTANTS:
            value = (array(-0.0, dtype="f8") + c).item()
            assert (value != value and c != c) or (
                value == c and math.copysign(1, value) == math.copysign(1, c)
            )
    assert len(made) == len({repr(c) for c in CONSTANTS})


def test_constants_of_other_dtypes(made: list[Any]) -> None:
    one, whole = array(1, 2), rt.asarray(np.array([1, 2], "i4"), device="numpy")
    truth = rt.asarray(np.array([True, False]), device="numpy")
    found = [
        (one + 1).numpy(),
        (whole + 1).numpy(),
        (whole + True).numpy(),
        (truth ^ True).numpy(),
        (truth + 1).numpy(),
        (one + True).numpy(),
        (one + 1.0).numpy(),
    ]
    assert [f.dtype.name for f in found] == [
        "float32",
        "int32",
        "int32",
        "bool",
        "int64",
        "float32",
        "float32",
    ]
    assert [f.tolist() for f in found] == [[2, 3], [2, 3], [2, 3], [False, True], [2, 1], [2, 3], [2, 3]]


def test_shapes_and_dtypes_are_part_of_a_plan(made: list[Any]) -> None:
    for shape in ((4,), (2, 2), (1, 4), (4, 1)):
        for dtype in ("f4", "f8", "i4"):
            assert (rt.asarray(np.ones(shape, dtype), device="numpy") * 3).numpy().tolist() == np.full(
                shape, 3
            ).tolist()
    assert len(made) == 12


def test_schedules_do_not_share_plans(made: list[Any]) -> None:
    x = array(*range(8))
    for text in ("", "r0=a,b/4:v", "r0=a,b/4:u", ""):
        with rt.with_schedule(text):
            assert (x + 1).numpy().tolist() == [*range(1, 9)]
    assert len(made) == 3


def test_normal_form() -> None:
    x, y, z = array(1), array(2), array(3)
    (first, inputs), (second, others) = normal_form([(x + y * x).node]), normal_form([(z + x * z).node])
    assert first == second and hash(first) == hash(second)
    assert inputs == [x.node, y.node] and others == [z.node, x.node]
    assert normal_form([(x + y * y).node])[0] != first
    assert normal_form([(x + y).node, (x * y).node])[0] != normal_form([(x * y).node, (x + y).node])[0]
    a, b = (x + 0.0).node, (x + -0.0).node
    assert normal_form([a])[0] != normal_form([b])[0]


def test_several_roots() -> None:
    x = array(1, 2, 3)
    y = x * 2
    nodes = [
        y.node,
        x.node,
        (y + 1).node,
        y.node,
        rt.sum(y).node,
        rt.reshape(y, (3, 1)).node,
        rt.zeros((2,)).node,
    ]
    found = [rt.Array(n, "numpy:0").numpy().tolist() for n in realize(nodes, "numpy:0")]
    assert found == [[2, 4, 6], [1, 2, 3], [3, 5, 7], [2, 4, 6], 12, [[2], [4], [6]], [0, 0]]
    assert realize([x.node], "numpy:0") == [x.node] and realize([], "numpy:0") == []


def test_roots_that_share_a_buffer_are_arrays_of_their_own() -> None:
    y = array(1, 2) * 2
    a, b = rt.reshape(y, (2, 1)), rt.reshape(y, (1, 2))
    first, second = (rt.Array(n, "numpy:0") for n in realize([a.node, b.node], "numpy:0"))
    first += 1
    assert first.numpy().tolist() == [[3], [5]] and second.numpy().tolist() == [[2, 4]]


def test_zero_sizes() -> None:
    x = rt.asarray(np.ones((0, 3), "f4"), device="numpy")
    roots = [(x + 1).node, rt.sum(x, axis=0).node, (x @ rt.zeros((3, 2))).node]
    found = [rt.Array(n, "numpy:0").numpy() for n in realize(roots, "numpy:0")]
    assert [f.shape for f in found] == [(0, 3), (3,), (0, 2)] and found[1].tolist() == [0, 0, 0]


def test_a_realized_array_is_not_computed_again(made: list[Any]) -> None:
    x = array(1, 2)
    y = (x + 1).realize()
    assert y.node.op is ops.BUFFER and y.realize() is y
    assert (y * 2).numpy().tolist() == [4, 6] and y.numpy().tolist() == [2, 3]
    assert len(made) == 2


# -- devices -----------------------------------------------------------------------------------------------


@pytest.fixture
def llvm() -> str:
    return require("llvm")


def test_copies_between_devices(llvm: str) -> None:
    x = array(1, 2, 3)
    y = (x + 1).to_device(llvm)
    z = (y * 10).to_device("numpy")
    both = z + x
    assert (y.device, z.device, both.device) == (llvm, "numpy:0", "numpy:0")
    assert both.numpy().tolist() == [21, 32, 43] and y.numpy().tolist() == [2, 3, 4]
    assert rt.sum(x.to_device(llvm)).item() == 6
    assert x.to_device(llvm).to_device("numpy").to_device(llvm)[1:].numpy().tolist() == [2, 3]
    assert x.to_device("numpy").node is x.node


def test_copies_of_constants(llvm: str) -> None:
    assert (rt.zeros((2,)).to_device(llvm) + 1).device == llvm
    assert rt.zeros((2,), device="numpy").to_device(llvm).numpy().tolist() == [0, 0]
    assert (rt.arange(3, device="numpy").to_device(llvm) * 2).numpy().tolist() == [0, 2, 4]


def test_operands_on_two_devices(llvm: str) -> None:
    x, y = array(1, 2), rt.asarray(np.array([3, 4], "f4"), device=llvm)
    for expression in (
        lambda: x + y,
        lambda: y @ x,
        lambda: rt.where(x > 0, y, x),
        lambda: rt.concat([x, y]),
    ):
        with pytest.raises(DeviceError, match="to_device"):
            expression()
    with pytest.raises(DeviceError, match="to_device"):
        realize([(x + 1).node], llvm)


def test_a_buffer_that_is_only_a_name() -> None:
    (node,) = parse(dump([(array(1, 2) + 1).node]))
    with pytest.raises(DeviceError, match="only a name"):
        realize([node], "numpy:0")


def test_failures_are_not_kept(made: list[Any]) -> None:
    """What failed once is tried again, and works when the reason is gone."""
    x = array(*range(6))
    with rt.with_schedule("r0=a/2"), pytest.raises(ValueError, match="cover"):
        (x + 1).realize()
    assert (x + 1).numpy()[5] == 6
