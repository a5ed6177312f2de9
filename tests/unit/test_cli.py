"""The command line: every command, its errors and exit codes, the page of `show --html`, RETARGET_DEBUG."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from retarget import debug, registry
from retarget.cli import app
from retarget.cli.stages import stages_of
from retarget.codegen.hooks import HOOKS, hookimpl
from retarget.errors import UserError
from retarget.ir import ops
from retarget.pipeline import lower, toolchain

PROGRAM = """
import numpy as np
import retarget as rt

def softmax():
    x = rt.asarray(np.ones((8, 64), np.float32), device="llvm")
    e = rt.exp(x - rt.max(x, axis=1, keepdims=True))
    return e / rt.sum(e, axis=1, keepdims=True)

def two():
    x = rt.asarray(np.ones((8, 8), np.float32), device="llvm")
    return [x @ x, {"total": rt.sum(x)}["total"]]

def needs(x):
    return x

def number():
    return 3

def computed():
    return rt.asarray(np.ones(3, np.float32), device="llvm")

def fails():
    return 1 // 0
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "kernels_under_test.py"
    path.write_text(PROGRAM)
    return str(path)


def succeed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = app.execute(list(arguments))
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


def fail(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 1) -> str:
    assert app.execute(list(arguments)) == status
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


# Help and mistakes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [*app.cli.commands, "cache info", "cache verify", "cache clear"])
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = succeed(capsys, *command.split(), "--help")
    assert re.search(rf"Example:\n +retarget {command}", text)


def test_an_unknown_command_names_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    err = fail(capsys, "devcies", status=2)
    assert "Did you mean 'devices'?" in err and "doctor" in err


def test_an_unknown_option_is_a_mistake_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--jsn" in fail(capsys, "devices", "--jsn", status=2)


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.execute(["explain", "nothing", "--target", "llvm", "--debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err and "UnknownNameError" in err


def test_a_fault_of_ours_asks_for_a_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(registry, "devices", broken)
    err = fail(capsys, "devices", status=70)
    assert "ZeroDivisionError: inside" in err and "report" in err


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom retarget.cli.app import execute\nassert execute(['--help']) == 0\n"
        "print([m for m in ('numpy', 'rich', 'pluggy', 'llvmlite', 'retarget.pipeline') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


# Plugins ----------------------------------------------------------------------------------------------------


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(succeed(capsys, "devices", "--json"))
    assert [d["name"] for d in found] == [d.name for d in registry.devices()]
    text = succeed(capsys, "devices")
    assert all(d["name"] in text and d["target"] in text for d in found)


def test_no_device_is_a_failure() -> None:
    environment = {**os.environ, "RETARGET_PLUGINS_DISABLE": "*"}
    command = [sys.executable, "-m", "retarget.cli", "devices"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 1 and "retarget doctor" in result.stderr


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    text = succeed(capsys, "doctor")
    assert "llvm" in text and "ready" in text
    assert "plugin.toml" in succeed(capsys, "doctor", "llvm")
    assert "did you mean 'llvm'" in fail(capsys, "doctor", "llvn")


def test_plugins_and_hooks(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"llvm", "numpy", "clang"} <= set(succeed(capsys, "plugins").split())
    text = succeed(capsys, "plugins", "--hooks")
    assert all(hook in text for hook in HOOKS)


class Doubled:
    @hookimpl(ops=["SQRT"], wrapper=True)
    def render_alu(self):  # type: ignore[no-untyped-def]
        return (yield)


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    table = registry.registry()
    table.register(Doubled(), "doubled", targets=["llvm/*"])
    try:
        text = succeed(capsys, "explain", "render_alu", "--target", "llvm", "--op", "SQRT")
        assert re.search(r"1 wraps +doubled", text) and re.search(r"2 +llvm", text)
        assert "doubled" not in succeed(capsys, "explain", "render_alu", "--target", "llvm", "--op", "ADD")
    finally:
        table.unregister("doubled")
    for arguments in (
        ("explain", "render_aluu", "--target", "llvm"),
        ("explain", "render_alu", "--target", "lllvm"),
        ("explain", "render_alu", "--target", "llvm", "--op", "SQRTT"),
        ("explain", "render_alu", "--target", "llvm", "--dtype", "float3"),
    ):
        assert "did you mean" in fail(capsys, *arguments)


# Stages -----------------------------------------------------------------------------------------------------


def test_show_prints_every_stage(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = succeed(capsys, "show", f"{program}:softmax")
    for part in ("graph", "kernel max_sum_8x64", "schedule of", "uops of", "source of", "assembly of"):
        assert f"── {part}" in text
    assert "REDUCE_AXIS" in text and "define void @max_sum_8x64" in text and "retq" in text


def test_show_one_stage_for_another_target(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = succeed(capsys, "show", f"{program}:softmax", "--target", "numpy", "--stage", "source")
    assert "source of" in text and "%0 = PARAM" in text and "graph" not in text


def test_show_takes_nested_results_and_several_kernels(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = succeed(capsys, "show", f"{program}:two", "--stage", "kernels")
    assert text.count("── kernel") == 2


def test_provenance_stands_beside_each_line(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = succeed(capsys, "show", f"{program}:softmax", "--stage", "source", "--provenance")
    lines = text.splitlines()[1:]
    assert all(" | " in line for line in lines)
    assert any(re.match(r"uop \d+ LOAD +render_load +llvm +\|", line) for line in lines)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("nothing.py:f", "there is no file nothing.py"),
        ("softmax", "FILE:FUNC"),
        ("{}:sofmax", "did you mean 'softmax'?"),
        ("{}:needs", "needs the argument x"),
        ("{}:number", "returned int"),
        ("{}:computed", "no kernel to look at"),
        ("{}:fails", "raised ZeroDivisionError"),
    ],
)
def test_mistakes_in_file_and_function(
    program: str, spec: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in fail(capsys, "show", spec.format(program))


def test_compile_writes_binaries_with_their_interface(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = tmp_path / "softmax.o"
    succeed(capsys, "compile", f"{program}:softmax", "--target", "llvm", "-o", str(one))
    described = json.loads(one.with_suffix(".json").read_text())
    assert one.read_bytes()[:4] == b"\x7fELF" and described["entry"].startswith("max_sum_8x64")
    assert [a[0] for a in described["arguments"]] == ["out0", "in0"]
    succeed(capsys, "compile", f"{program}:two", "--target", "llvm", "-o", str(tmp_path / "two"))
    assert len(list((tmp_path / "two").glob("*.o"))) == 2


# The page ---------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Collects the rows of each column, and whatever would be fetched from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[dict[str, str]]] = {}
        self.column = ""
        self.external: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.external += [values[n] for n in ("src", "href") if n in values]
        if tag == "section":
            self.column = values["class"]
        elif tag == "div" and "class" not in values and self.column:
            self.rows.setdefault(self.column, []).append(values)


def test_the_page_links_source_uops_and_kernel(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.html"
    succeed(capsys, "show", f"{program}:softmax", "--html", str(path))
    text = path.read_text()
    page = Page()
    page.feed(text)
    assert page.external == [] and "http" not in text and "<!--" not in text
    rows = page.rows
    assert {r["data-k"] for r in rows["kernel"] if r} == {str(n) for n in range(12)}
    positions = {r["data-u"] for r in rows["uops"] if r}
    linked = [r for r in rows["source"] if "data-u" in r]
    assert linked and {r["data-u"] for r in linked} <= positions
    assert all(r["data-by"] for r in rows["source"])
    assert any(re.match(r"render_load · llvm \(retarget ", r["data-by"]) for r in rows["source"])
    nodes = {r["data-k"] for r in rows["uops"] if "data-k" in r}
    assert len(nodes) >= 9, "nearly every kernel node has uops"


def test_every_uop_that_computes_has_an_origin() -> None:
    import retarget as rt

    x = rt.asarray(np.ones((8, 64), np.float32), device="llvm")
    (kernel,) = lower(rt.exp(x - rt.max(x, axis=1, keepdims=True)))
    stages = stages_of(kernel, toolchain("llvm"))
    origin_of: dict[str, set[str]] = {}
    for uop, origin in zip(stages.program.uops, stages.origins, strict=True):
        if origin is None:
            assert uop.op in (ops.CONST, ops.END, ops.RANGE, ops.STORE, ops.BROADCAST), uop
        else:
            origin_of.setdefault(uop.op.name, set()).add(origin.op.name)
    assert origin_of["BITCAST"] == {"EXP"}, "only the expansion of the exponential casts bits"
    assert origin_of["RANGE"] == {"RANGE"} and "REDUCE" in origin_of["LOCAL"]


# RETARGET_DEBUG ---------------------------------------------------------------------------------------------


def debugged(value: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import numpy as np, retarget as rt; (rt.asarray(np.ones(64, 'f4'), device='llvm') * 3 + 1).realize()"
    )
    environment = {**os.environ, "RETARGET_DEBUG": value, "RETARGET_CACHE": "0"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)


def test_debug_topics_print_the_stages() -> None:
    result = debugged("schedule,uops,source,plugins,time")
    assert result.returncode == 0, result.stderr
    for part in (r"\[schedule\] ", r"\[uops\] map_64", r"\[source\] ; map_64", r"\[plugins\] llvm/"):
        assert re.search(f"^{part}", result.stderr, re.M)
    assert re.search(r"^\[time\] compile \d+\.\d+ ms$", result.stderr, re.M)
    assert "[kernels]" not in result.stderr


def test_a_malformed_value_prints_the_grammar() -> None:
    result = debugged("shedule")
    assert result.returncode == 1
    assert "did you mean 'schedule'" in result.stderr and debug.GRAMMAR in result.stderr


def test_topics() -> None:
    assert debug.parse_topics(" Schedule, time ,") == {"schedule", "time"}
    assert debug.parse_topics("all") == set(debug.TOPICS)
    with pytest.raises(UserError, match="RETARGET_DEBUG=TOPIC"):
        debug.parse_topics("time,uop")


# Cache ------------------------------------------------------------------------------------------------------


def test_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from retarget.runtime.diskcache import digest, disk_cache

    monkeypatch.setenv("RETARGET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("RETARGET_CACHE", "1")
    disk_cache().put(digest("a"), "kernel", {}, b"code")
    assert json.loads(succeed(capsys, "cache", "info", "--json"))["entries"] == 1
    assert str(tmp_path) in succeed(capsys, "cache", "info")
    assert "1 entries checked, 0 damaged" in succeed(capsys, "cache", "verify")
    (entry,) = (tmp_path / "cache").rglob("*.kernel")
    entry.write_bytes(entry.read_bytes()[:-1])
    assert app.execute(["cache", "verify"]) == 1
    assert "0 entries removed" in succeed(capsys, "cache", "clear")
