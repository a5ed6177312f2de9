"""`rt.jit`: what is captured, when it is captured again, and what cannot be captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from devices import require

import retarget as rt
from retarget.errors import DeviceError
from retarget.runtime.jit import CaptureError


@pytest.fixture(params=["numpy", "llvm"], autouse=True)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("RETARGET_CACHE", "0")
    require(request.param)
    with rt.default_device(request.param):
        yield request.param


def array(*values: float, dtype: str = "f4") -> rt.Array:
    return rt.asarray(np.array(values, dtype))


class Counted:
    """A function that counts how often its Python code runs."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls, self.__name__ = function, 0, "counted"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)


def test_replays_with_other_values() -> None:
    function = Counted(lambda x, y: rt.sum(x * y) + 1)
    step = rt.jit(function)
    for k in range(5):
        assert step(array(1, 2, k), array(3, 4, 5)).item() == 12 + 5 * k
    assert function.calls == 1


def test_captures_for_each_dtype_shape_and_value() -> None:
    function = Counted(lambda x, n=1: x * n)
    step = rt.jit(function)
    calls: list[tuple[Any, ...]] = [
        (array(1, 2),),
        (array(1, 2, 3),),
        (array(1, 2, dtype="f8"),),
        (rt.reshape(array(1, 2), (1, 2)),),
        (array(1, 2), 2),
        (array(1, 2), 3),
    ]
    for _ in range(2):
        found = [step(*c).numpy().tolist() for c in calls]
        assert found == [[1, 2], [1, 2, 3], [1, 2], [[1, 2]], [2, 4], [3, 6]]
    assert function.calls == len(calls)


@pytest.mark.parametrize(("first", "second"), [(1, 1.0), (1, True), (0.0, -0.0), (2, 2.0)])
def test_equal_values_that_are_not_the_same(first: Any, second: Any) -> None:
    step = rt.jit(
        lambda x, c: (
            rt.copysign(rt.ones_like(x), x * c) if isinstance(c, float) else x + (10 if c is True else 20)
        )
    )
    alone = [step.function(array(1.0), c).item() for c in (first, second)]
    assert [step(array(1.0), c).item() for c in (first, second)] == alone


def test_not_a_number_is_captured_once() -> None:
    function = Counted(lambda x, c: x + c)
    step = rt.jit(function)
    for _ in range(3):
        assert np.isnan(step(array(1.0), float("nan")).item())
    assert function.calls == 1


@pytest.mark.parametrize(
    "values", [((1, 0.0), (True, 0.0)), ((0.0,), (-0.0,)), ((1,), (1.0,)), (((2,),), ((2.0,),))]
)
def test_equal_tuples_that_are_not_the_same(values: tuple[Any, Any]) -> None:
    function = Counted(lambda x, c: x + 1)
    step = rt.jit(function)
    for v in values * 2:
        step(array(1.0), v)
    assert function.calls == 2


def test_keyword_arguments() -> None:
    step = rt.jit(lambda x, *, scale, shift=0: x * scale + shift)
    x, y = array(1, 2), array(10, 20)
    assert step(x, scale=y).numpy().tolist() == [10, 40]
    assert step(x, scale=y, shift=x).numpy().tolist() == [11, 42]
    assert step(x, shift=y, scale=x).numpy().tolist() == [11, 24]
    assert step(x, scale=2, shift=1).numpy().tolist() == [3, 5]
    assert step(x, scale=x, shift=y).numpy().tolist() == [11, 24]


def test_the_same_array_twice() -> None:
    step = rt.jit(lambda a, b: a * 10 + b)
    x, y = array(1, 2), array(3, 4)
    assert step(x, x).numpy().tolist() == [11, 22]
    assert step(x, y).numpy().tolist() == [13, 24]  # not taken for the same two again
    assert step(y, y).numpy().tolist() == [33, 44]


def test_lazy_arguments_are_computed() -> None:
    step = rt.jit(lambda x: x + 1)
    assert [step(array(k) * 2).item() for k in range(3)] == [1, 3, 5]


def test_arrays_from_outside_are_captured() -> None:
    weight = array(2, 3)
    lazy = weight * 10
    step = rt.jit(lambda x: x * weight + lazy)
    assert step(array(1, 1)).numpy().tolist() == [22, 33]
    weight += 100
    assert step(array(2, 2)).numpy().tolist() == [24, 36]


class Pair(NamedTuple):
    left: rt.Array
    right: rt.Array


def test_nested_results() -> None:
    outside = array(7)

    def function(x: rt.Array, y: rt.Array) -> Any:
        total = x + y
        return {
            "sum": total,
            "again": [total, (x, outside)],
            "pair": Pair(x - y, rt.full((2,), 5)),
            "none": (),
        }

    step = rt.jit(function)
    for k in range(3):
        found = step(array(k), array(1))
        assert list(found) == ["sum", "again", "pair", "none"] and found["none"] == ()
        assert found["sum"].item() == k + 1 and found["again"][0].item() == k + 1
        assert found["again"][1][0].item() == k and found["again"][1][1].item() == 7
        assert isinstance(found["pair"], Pair) and found["pair"].left.item() == k - 1
        assert found["pair"].right.numpy().tolist() == [5, 5]


def test_results_are_arrays_of_their_own() -> None:
    """A later call writes to new memory."""
    step = rt.jit(lambda x: x * 2)
    first = step(array(1, 2))
    second = step(array(3, 4))
    assert first.numpy().tolist() == [2, 4] and second.numpy().tolist() == [6, 8]


def test_several_kernels_and_temporaries() -> None:
    step = rt.jit(lambda x: rt.softmax(x, axis=0) @ rt.softmax(x, axis=1))
    for k in range(3):
        v = np.arange(9, dtype="f4").reshape(3, 3) * k

        def softmax(axis: int, v: np.ndarray[Any, Any] = v) -> np.ndarray[Any, Any]:
            e = np.exp(v - v.max(axis=axis, keepdims=True))
            return e / e.sum(axis=axis, keepdims=True)

        np.testing.assert_allclose(step(rt.asarray(v)).numpy(), softmax(0) @ softmax(1), rtol=1e-5, atol=1e-6)


def test_views_zero_sizes_and_constants() -> None:
    step = rt.jit(lambda x: (x[::-1], x[:0] + 1, rt.zeros((2,)), rt.reshape(x, (3, 1)), x))
    for k in range(2):
        a, b, c, d, e = step(array(k, 2, 3))
        assert a.numpy().tolist() == [3, 2, k] and b.shape == (0,) and c.numpy().tolist() == [0, 0]
        assert b.numpy().size == 0 and d.shape == (3, 1) and d.numpy()[0, 0] == k and e.numpy()[0] == k


def test_in_place_operators_change_no_argument() -> None:
    def function(x: rt.Array) -> rt.Array:
        x += 1
        x[0] = 9
        return x

    step = rt.jit(function)
    x = array(1, 2)
    for _ in range(2):
        assert step(x).numpy().tolist() == [9, 3] and x.numpy().tolist() == [1, 2]


def test_random_looking_recursion() -> None:
    """A captured function may call another."""
    inner = rt.jit(lambda x: x + 1)
    assert rt.jit(lambda x: inner.function(x) * 2)(array(3)).item() == 8


ASKING = {
    "item": lambda x: x * x.sum().item(),
    "numpy": lambda x: x + np.asarray(x * 2),
    "if": lambda x: x if x[0] > 0 else -x,
    "float": lambda x: x * float(x[1] + 1),
    "realize": lambda x: (x + 1).realize(),
}


@pytest.mark.parametrize("how", ASKING)
def test_a_value_asked_for_while_capturing(how: str) -> None:
    step = rt.jit(ASKING[how])
    for _ in range(2):
        with pytest.raises(CaptureError, match="asked for a value"):
            step(array(1, 2))
    assert (array(1) + 1).item() == 2  # capturing is over


@pytest.mark.parametrize("result", [None, 3, "text", np.ones(2), [1.0], object()])
def test_results_that_are_no_arrays(result: Any) -> None:
    with pytest.raises(CaptureError, match=type(result[0] if isinstance(result, list) else result).__name__):
        rt.jit(lambda x: result)(array(1))


def test_arguments_that_are_neither_arrays_nor_hashable() -> None:
    with pytest.raises(TypeError, match="hashable"):
        rt.jit(lambda x: x)([1, 2])


def test_errors_of_the_function_pass() -> None:
    step = rt.jit(lambda x: x @ array(1, 2, 3))
    for _ in range(2):
        with pytest.raises(ValueError, match="shape"):
            step(array(1, 2))


def test_arguments_on_two_devices(device: str) -> None:
    other = "numpy" if device == "llvm" else "llvm"
    with pytest.raises((TypeError, DeviceError), match="use one device"):
        rt.jit(lambda a, b: a)(array(1), rt.asarray([1.0], device=other))


def test_copies_are_not_captured(device: str) -> None:
    other = "numpy" if device == "llvm" else "llvm"
    with pytest.raises(DeviceError, match="copies between devices"):
        rt.jit(lambda x: (x + 1).to_device(other).to_device(device))(array(1))


def test_name_and_documentation() -> None:
    def function(x: rt.Array) -> rt.Array:
        """Double."""
        return x * 2

    step = rt.jit(function)
    assert step.__name__ == "function" and step.__doc__ == "Double."
