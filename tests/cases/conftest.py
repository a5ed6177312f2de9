"""Fixtures of the case tests: every test runs on every CPU device, with a disk cache of its own.

`docs/faults.md` says which case is tested where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from devices import require

import retarget as rt
from retarget.runtime.realize import realize


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep kernels of other runs out of these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETARGET_CACHE_DIR", str(tmp_path_factory.mktemp("cache") / "kernels"))
        yield


@pytest.fixture(params=["llvm", "clang", "numpy"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """A CPU device, made the default."""
    name: str = request.param
    require(name)
    with rt.default_device(name):
        yield name


@pytest.fixture(params=["llvm", "clang"])
def fast_device(request: pytest.FixtureRequest) -> Iterator[str]:
    """A device that runs machine code, for what would take an interpreter too long."""
    name: str = request.param
    require(name)
    with rt.default_device(name):
        yield name


@pytest.fixture
def compute() -> Callable[..., list[np.ndarray[Any, Any]]]:
    """Return a function that computes several arrays together and returns their values."""

    def compute(*arrays: Any) -> list[np.ndarray[Any, Any]]:
        nodes = realize([a.node for a in arrays], arrays[0].device)
        return [rt.Array(n, arrays[0].device).numpy() for n in nodes]

    return compute
