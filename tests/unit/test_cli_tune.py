"""`retarget tune`, and what `retarget cache` says of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retarget.cli import app
from retarget.runtime import tuned
from retarget.runtime.realize import clear_memory_cache

PROGRAM = """
import numpy as np
import retarget as rt

def softmax():
    return rt.softmax(rt.asarray(np.ones((16, 64), np.float32), device="llvm"), axis=1)

def needs(x):
    return x

def one():
    return rt.sum(rt.asarray(np.ones(1, np.float32), device="llvm")) + 1
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RETARGET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("RETARGET_CACHE", raising=False)
    clear_memory_cache()
    path = tmp_path / "tuned_program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_tune(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.execute(["tune", f"{program}:softmax", "--candidates", "4", "--workers", "1"]) == 0
    text = capsys.readouterr().out
    assert ": 4 candidates" in text and "heuristics " in text and "order=" in text
    command = ["tune", f"{program}:softmax", "--candidates", "2", "--seconds", "60", "--seed", "7", "--json"]
    assert app.execute(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["device"], found["target"], found["interrupted"]) == ("llvm:0", "llvm/native", False)
    (kernel,) = found["kernels"]
    assert kernel["candidates"] == 2 and kernel["ratio"] >= 1 and "r0" in kernel["schedule"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([":needs"], "needs the argument x"),
        ([":nothing"], "unknown function"),
        ([":one"], "nothing to tune"),
        ([":softmax", "--device", "nowhere"], "nowhere"),
        ([":softmax", "--target", "nowhere/at-all"], "nowhere"),
    ],
)
def test_errors(
    program: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert app.execute(["tune", program + arguments[0], *arguments[1:]]) == 1
    assert message in capsys.readouterr().err


def test_cache_counts_and_keeps(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    from retarget.pipeline import lower, toolchain

    sys.path.insert(0, str(Path(program).parent))
    try:
        import tuned_program  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    (kernel,) = lower(tuned_program.softmax())
    tuned.keep(kernel, tuned.place_of(toolchain("llvm")), {"schedule": "r0=x,y/2"})

    def said(*command: str) -> str:
        assert app.execute(["cache", *command]) == 0
        return capsys.readouterr().out

    assert json.loads(said("info", "--json"))["tuned_schedules"] == 1
    assert "1 schedules" in said("info")
    assert "0 entries removed; 1 tuned schedules kept" in said("clear", "--keep-tuned")
    assert "1 entries removed" in said("clear")
    assert json.loads(said("info", "--json"))["tuned_schedules"] == 0


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is POSIX's")
def test_ctrl_c(program: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = ["tune", f"{program}:softmax", "--seconds", "200", "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "retarget.cli", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert ("the best so far" in err and "heuristics" in out) or "Aborted" in err
