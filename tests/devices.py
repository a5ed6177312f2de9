"""Devices of tests: one that ought to be ready and is not fails its tests instead of skipping them."""

from __future__ import annotations

import functools

import pytest

import retarget as rt
from retarget.errors import CompileError
from retarget_clang.compiler import find_compiler


@functools.cache
def _has_compiler() -> bool:
    try:
        find_compiler()
    except CompileError:
        return False
    return True


def require(name: str) -> str:
    """Return a device's full name; skip the test only if it is clang's and there is no C compiler.

    Raises
    ------
    DeviceError
        If the device is not ready for another reason: that is a failure.
    """
    if name == "clang" and not _has_compiler():
        pytest.skip("no C compiler")
    return rt.device(name).name
