"""Every conformance check as a test: `pytest --pyargs retarget.conformance --retarget-device NAME`."""

from __future__ import annotations

import pytest

from .suite import Suite


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    options = metafunc.config.option
    suite = Suite(options.retarget_device, options.retarget_level)
    metafunc.parametrize(("suite", "check"), [(suite, id) for id in suite.ids()], ids=suite.ids())


def test_conformance(suite: Suite, check: str) -> None:
    result = suite.result(check)
    assert result.good, result.message
