"""The demo: what it prints, what it finds wrong, and its operands."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from retarget import demo
from retarget.demo import kernels, measure
from retarget.errors import CompileError, UnknownNameError


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=110, highlight=False)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every device the small sizes, and time little."""
    monkeypatch.setattr(measure, "SLOW", 0.0)
    monkeypatch.setattr(measure, "REPEATS", 3)


def test_all_kernels_are_right_and_the_source_is_shown(console: Console) -> None:
    assert demo.run(["llvm"], console=console)
    shown = text(console)
    for case in kernels.CASES:
        assert case.name in shown
        assert "x".join(map(str, case.size)) in shown
    assert "GFLOP/s" in shown and "GB/s" in shown
    assert "Everything equals NumPy" in shown
    assert "softmax for llvm/native" in shown
    assert "define void @" in shown


@pytest.mark.usefixtures("quick")
def test_a_device_that_interprets_gets_small_sizes(console: Console) -> None:
    assert demo.run(["numpy"], source_of="layer norm", console=console)
    assert "numpy:0 interprets its programs" in text(console)
    assert "layer norm for numpy/uops" in text(console)


@pytest.mark.usefixtures("quick")
def test_a_wrong_result_is_shown_and_makes_the_demo_fail(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(xp: object, x: object) -> object:
        return kernels.softmax(xp, x) * (1.0 if xp is np else 1.001)

    cases = [dataclasses.replace(c, compute=wrong) if c.name == "softmax" else c for c in kernels.CASES]
    monkeypatch.setattr(measure, "CASES", tuple(cases))
    assert not demo.run(["llvm"], console=console)
    assert "llvm:0, softmax: element (" in text(console)
    assert "Everything equals" not in text(console)


@pytest.mark.usefixtures("quick")
def test_a_kernel_that_fails_does_not_stop_the_others(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(xp: object, x: object) -> object:
        if xp is not np:
            raise CompileError("no such instruction")
        return kernels.softmax(xp, x)

    cases = [dataclasses.replace(c, compute=fails) if c.name == "softmax" else c for c in kernels.CASES]
    monkeypatch.setattr(measure, "CASES", tuple(cases))
    assert not demo.run(["llvm"], console=console)
    assert "llvm:0, softmax: no such instruction" in text(console)
    assert [r.problem for r in measure.measure("llvm")].count("") == len(cases) - 1


def test_unknown_names_are_refused(console: Console) -> None:
    with pytest.raises(UnknownNameError, match="softmax"):
        demo.run(["llvm"], source_of="softmx", console=console)
    with pytest.raises(UnknownNameError, match="llvm"):
        demo.run(["llvn"], console=console)


def test_compare_says_where_the_largest_error_is() -> None:
    expected = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert measure.compare(expected.astype(np.float32), expected) == (0.0, "")
    error, problem = measure.compare(np.float32([[1, 2], [3.5, 4]]), expected)
    assert error == 0.125
    assert problem.startswith("element (1, 0) is 3.5")
    assert measure.compare(np.float32([[1, np.nan], [3, 4]]), expected)[1].startswith("element (0, 1) is nan")
    assert "shape (2,)" in measure.compare(np.float32([1, 2]), expected)[1]


def test_the_photo_is_one() -> None:
    picture = kernels.photo()
    assert picture.shape == (256, 256)
    assert picture.dtype == np.uint8
    assert len(np.unique(picture)) > 100
    found = kernels.edges(np, picture)
    assert found.shape == (254, 254)
    assert found.dtype == np.uint8
    assert 10 < found.mean() < 100
