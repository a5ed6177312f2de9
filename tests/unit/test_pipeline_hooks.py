"""The hooks of the pipeline, through extensions that are registered in this process; and fast math."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retarget as rt
from retarget import registry
from retarget.codegen.driver import HOOK_OF
from retarget.codegen.functions import FAST_ULP_BOUNDS
from retarget.codegen.hooks import HOOKS, hookimpl

CORE = Path(rt.__file__).parent


@pytest.fixture(autouse=True)
def no_disk_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETARGET_CACHE", "0")


@pytest.fixture
def extend() -> Iterator[Any]:
    """Return a function that registers an extension for the duration of a test."""
    names: list[str] = []

    def register(extension: object) -> None:
        names.append(f"test-{len(names)}")
        registry.registry().register(extension, names[-1], targets=["llvm/*"])

    yield register
    for name in names:
        registry.registry().unregister(name)


def test_every_hook_has_a_caller() -> None:
    """What is published is called: by the driver for uops, by name for the rest."""
    sources = "".join(
        path.read_text() for path in CORE.rglob("*.py") if path.name not in ("hookspecs.py", "hook_docs.py")
    )
    by_uop = {hook for hook, _ in HOOK_OF.values()} | {"define_register"}
    for name in HOOKS:
        assert name in by_uop or f'chain("{name}"' in sources, name


def test_a_kernel_that_is_claimed(extend: Any) -> None:
    launches: list[int] = []

    class Doubler:
        """Takes kernels with one input and adds 100 to it, so that its work can be told from ours."""

        @hookimpl
        def claim_kernel(self, kernel: Any, target: str) -> Any:
            assert target == "llvm/native"
            if len(kernel.inputs) != 1:
                return None

            def launch(buffers: Sequence[int], variables: Sequence[int] = ()) -> None:
                out, x = (np.ctypeslib.as_array((ctypes.c_float * 4).from_address(b)) for b in buffers)
                out[:] = x + 100
                launches.append(len(buffers))

            return launch

    x = rt.asarray(np.arange(4, dtype="f4"), device="llvm")
    plain = np.asarray(x + 3)
    extend(Doubler())
    np.testing.assert_array_equal(np.asarray(x + 3), np.arange(4) + 100)
    np.testing.assert_array_equal(np.asarray(x + 3), np.arange(4) + 100)
    y = rt.asarray(np.ones(4, "f4"), device="llvm")
    np.testing.assert_array_equal(np.asarray(x + y), np.arange(4) + 1)
    assert launches == [2, 2]
    np.testing.assert_array_equal(plain, np.arange(4) + 3)


def test_who_is_told_of_a_compilation(extend: Any) -> None:
    told: list[tuple[str, str]] = []

    class Witness:
        @hookimpl
        def on_compiled(self, kernel: Any, source: Any, binary: Any) -> None:
            assert source.entry == binary.entry and source.entry in source.text
            told.append((str(kernel), binary.entry))

    extend(Witness())
    x = rt.asarray(np.arange(5, dtype="f4"), device="llvm")
    (kernel,) = rt.lower(x * 7 - 2)
    binary = rt.compile(kernel, "llvm")
    assert told == [(str(kernel), binary.entry)]
    np.testing.assert_array_equal(np.asarray(x * 7 - 2), np.arange(5) * 7 - 2)
    assert told == [(str(kernel), binary.entry)] * 2
    np.testing.assert_array_equal(np.asarray(x * 7 - 2), np.arange(5) * 7 - 2)
    assert len(told) == 2  # the plan was in memory


def test_a_schedule_that_a_plugin_chooses(extend: Any) -> None:
    class Chooser:
        @hookimpl
        def choose_schedule(self, kernel: Any, target: str) -> str:
            return "r0=mine_outer/3,mine_inner/2"

    extend(Chooser())
    x = rt.asarray(np.arange(6, dtype="f4"), device="llvm")
    (kernel,) = rt.lower(x + 1)
    assert "mine_outer" in rt.render(kernel, "llvm").text
    np.testing.assert_array_equal(np.asarray(x + 1), np.arange(6) + 1)


def test_fast_math_is_explicit_and_has_its_own_kernels() -> None:
    values = np.linspace(-80, 80, 4001).astype("f4")
    x = rt.asarray(values, device="llvm")
    (kernel,) = rt.lower(rt.sin(x))
    exact = rt.render(kernel, "llvm").text
    with rt.fast_math():
        fast = rt.render(kernel, "llvm").text
        approximate = np.asarray(rt.sin(x))
    assert len(fast) < len(exact)
    assert rt.render(kernel, "llvm").text == exact
    reference = np.sin(values.astype("f8"))
    ulp = np.spacing(np.abs(reference).astype("f4")).astype("f8")
    assert (np.abs(approximate - reference) <= FAST_ULP_BOUNDS["SIN"]["float32"] * ulp).all()
    # The same graph outside of the block is another kernel, with the tighter bound.
    np.testing.assert_allclose(np.asarray(rt.sin(x)), reference, rtol=2e-7, atol=1e-12)
