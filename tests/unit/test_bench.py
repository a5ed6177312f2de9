"""`retarget bench`: its cases, what counts as right and as reached, and the command itself."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import pytest

from retarget.bench import drawing, kernels, libraries, roofline, timing
from retarget.bench.cases import LOWERING, TINYGRAD_REFERENCE
from retarget.bench.kernels import Case, Goal, Start
from retarget.bench.latency import Row
from retarget.bench.measure import Plan, Result, blocks, measure
from retarget.bench.timing import Timing
from retarget.cli import app
from retarget.errors import InternalError, UserError

FAST = Plan(rounds=2, gap=0.0, block=0.0)


def named(name: str) -> Case:
    (case,) = [c for c in kernels.CASES if c.name == name]
    assert isinstance(case, Case)
    return case


def small(case: Case) -> Case:
    """Return a case with every size at most 16 (channels and groups stay)."""
    if case.name.startswith("conv"):
        x, w = case.shapes
        return dataclasses.replace(case, shapes=((1, x[1], 16, 16), w))
    return dataclasses.replace(case, shapes=tuple(tuple(min(n, 16) for n in s) for s in case.shapes))


DRAWN = [c for c in kernels.CASES if isinstance(c, Case) and c.make is None]


@pytest.mark.parametrize("case", DRAWN, ids=lambda case: case.name)
def test_every_case_is_right_here_and_in_numpy(case: Case) -> None:
    result = measure(small(case), "llvm:0", ["numpy", "lazy"], FAST)
    assert result.problems == {}
    assert set(result.timings) == {"retarget", "lazy", "numpy"} & {"retarget", "lazy", *case.computation.ways}


@pytest.mark.parametrize("library", ["torch", "torch-fresh", "tinygrad", "numexpr", "numba"])
@pytest.mark.parametrize("case", DRAWN, ids=lambda case: case.name)
def test_every_case_is_right_in_other_libraries(case: Case, library: str) -> None:
    if not libraries.installed(library):
        pytest.skip(f"{library} is not installed")
    if library not in case.computation.ways:
        pytest.skip(f"{library} is not compared in this case")
    result = measure(small(case), "llvm:0", [library], FAST)
    assert result.problems == {}


def test_cases_have_names_of_their_own_and_libraries_exist() -> None:
    assert len({c.name for c in kernels.CASES}) == len(kernels.CASES)
    for case in kernels.CASES:
        if isinstance(case, Case):
            goal = case.goal.against if case.goal else ()
            assert {*case.computation.ways, *goal} <= set(libraries.LIBRARIES)
            assert set(goal) <= set(case.computation.ways)


def test_select() -> None:
    assert [c.name for c in kernels.select(())] == [c.name for c in kernels.SMALL]
    assert [c.name for c in kernels.select(("matmul",))] == ["matmul"]
    assert [c.name for c in kernels.select(("conv*", "add"))] == [
        "add", *[c.name for c in kernels.CONVOLUTIONS]
    ]  # fmt: skip
    assert {c.name for c in kernels.select((), "matmul")} == {c.name for c in kernels.MATMULS}
    with pytest.raises(UserError, match="did you mean 'matmul'"):
        kernels.select(("matmull",))
    with pytest.raises(UserError, match="cpu"):
        kernels.select((), "cpus")


def test_libraries_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(libraries.LIBRARIES, "numba", ("no_such_package", ""))
    names, missing = libraries.chosen("all")
    assert "numba" in missing and "numba" not in names and names[0] == "numpy"
    with pytest.raises(UserError, match="pip install no_such_package"):
        libraries.chosen("numpy,numba")
    with pytest.raises(UserError, match="did you mean 'numpy'"):
        libraries.chosen("nunpy")


# Results ----------------------------------------------------------------------------------------------------


def test_a_wrong_result_is_not_timed() -> None:
    case = named("sum")
    wrong = dataclasses.replace(
        case.computation, ways={"numpy": libraries.fresh(lambda np, a: np.sum(a) * 1.01)}
    )
    result = measure(small(dataclasses.replace(case, computation=wrong)), "llvm:0", ["numpy"], FAST)
    assert set(result.timings) == {"retarget"} and "wrong by 0.01" in result.problems["numpy"]


def test_our_own_wrong_result_is_a_missed_target() -> None:
    case = named("sum-axis-1")
    wrong = dataclasses.replace(case.computation, ours=lambda rt, a: rt.sum(a, axis=1) * float("nan"))
    result = measure(small(dataclasses.replace(case, computation=wrong)), "llvm:0", [], FAST)
    assert result.ours is None and "wrong" in result.problems["retarget"] and result.verdict == "missed"


def test_a_failure_of_a_library_is_a_result_and_one_of_ours_is_an_error() -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("no\nsecond line")

    case = named("sum")
    broken = dataclasses.replace(case.computation, ways={"numpy": libraries.fresh(fails)})
    result = measure(small(dataclasses.replace(case, computation=broken)), "llvm:0", ["numpy"], FAST)
    assert result.problems == {"numpy": "ZeroDivisionError: no"}
    ours = dataclasses.replace(case.computation, ours=fails)
    with pytest.raises(ZeroDivisionError):
        measure(small(dataclasses.replace(case, computation=ours)), "llvm:0", [], FAST)


def test_our_typed_errors_are_results() -> None:
    def fails(*_: object) -> None:
        raise InternalError("a fault")

    case = named("sum")
    ours = dataclasses.replace(case.computation, ours=fails)
    result = measure(small(dataclasses.replace(case, computation=ours)), "llvm:0", ["numpy"], FAST)
    assert result.problems == {"retarget": "a fault"} and set(result.timings) == {"numpy"}


def test_ratios_are_taken_within_rounds() -> None:
    case = dataclasses.replace(named("add-16m"), goal=Goal(2.0, ("torch", "numba")))
    times = {
        "retarget": Timing((1.0, 2.0, 10.0)),
        "torch": Timing((3.0, 6.0, 30.0)),
        "numba": Timing((4.0, 8.0, 10.0)),
    }
    result = Result(case, times)
    ratio = result.ratio("torch")
    assert ratio is not None and ratio.median == 3.0 and ratio.spread == 0.0
    assert result.reached == (3.0, "torch") and result.verdict == "met"
    fastest = Result(case, {**times, "numba": Timing((1.5, 3.0, 15.0))})
    assert fastest.reached == (1.5, "numba") and fastest.verdict == "missed"
    assert Result(case, {"retarget": times["retarget"]}).verdict == "not measured"


def test_the_start_of_a_parallel_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETARGET_THREADS", "1")
    assert measure(Start(), "llvm:0", [], FAST).verdict == "not measured"
    monkeypatch.setenv("RETARGET_THREADS", "2")
    result = measure(Start(), "llvm:0", [], FAST)
    assert result.ours is not None and result.goal_text == "≤ 2 µs"
    assert Result(Start(), {"retarget": Timing((1e-6, 1e-6))}).verdict == "met"
    assert Result(Start(), {"retarget": Timing((3e-6, 3e-6))}).verdict == "missed"


def test_blocks_alternate_and_slow_calls_are_measured_less() -> None:
    order: list[str] = []

    def slow() -> None:
        order.append("slow")
        time.sleep(0.31)

    found = blocks({"fast": lambda: order.append("fast"), "slow": slow}, Plan(rounds=4, gap=0.0, block=0.001))
    assert len(found["fast"].seconds) == 4 and len(found["slow"].seconds) == 3
    turns = [a for a, b in zip(order, [*order[1:], ""], strict=True) if a != b]
    # To find how long each takes; three rounds, the order turning; and one without the slow one.
    assert turns == ["fast", "slow", "fast", "slow", "fast", "slow", "fast"]


def test_timing() -> None:
    found = timing.Timing((1.0, 2.0, 3.0, 4.0, 100.0))
    assert found.median == 3.0 and 0 < found.spread < 20
    order: list[str] = []
    timing.interleave([lambda: order.append("a"), lambda: order.append("b")], 2, [2, 1])
    assert order == ["a", "a", "b"] * 2


def test_the_best_measurements_as_statistic() -> None:
    times = {"retarget": Timing((4.0, 5.0), 2.0), "torch": Timing((40.0, 50.0), 3.0)}
    result = Result(named("sum-axis-0"), times, statistic="best")
    assert result.figure("torch") == 1.5 and result.verdict == "missed" and result.seconds("torch") == 3.0
    assert Result(named("sum-axis-0"), times).verdict == "met"
    assert result.as_json()["times"]["torch"]["ratio_of_best"] == 1.5


# Pictures and limits ----------------------------------------------------------------------------------------


def results() -> list[Result]:
    """Made-up figures of every case."""
    found = []
    for n, case in enumerate(kernels.CASES):
        ours = 1e-4 * (1 + n % 5)
        times = {"retarget": Timing((ours, ours, ours))}
        for m, name in enumerate(case.computation.ways if isinstance(case, Case) else ()):
            theirs = ours * (0.3 + m + n % 4)
            times[name] = Timing((theirs * 0.9, theirs, theirs * 1.2))
        found.append(Result(case, times, moved=1e6))
    return found


def test_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'retarget\[bench\]'"):
        drawing.require()
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    ratios, roof = tmp_path / "ratios.png", tmp_path / "roofline.png"
    drawing.draw_ratios(ratios, results(), [*libraries.LIBRARIES], "a machine")
    drawing.draw_roofline(roof, results(), {"operations": 1e11, "copy": 1e10, "read": 2e10}, "a machine")
    for path in (ratios, roof):
        assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="no ratio"):
        drawing.draw_ratios(ratios, results(), [], "")
    with pytest.raises(UserError, match="no case"):
        drawing.draw_roofline(roof, [], {}, "")


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "_SECONDS", 0.05)
    monkeypatch.setattr(roofline, "_STREAM", 1 << 16)
    limits = roofline.measure_limits("llvm:0")
    assert limits["copy"] > 1e8 and limits["read"] > 1e8
    assert limits["operations"] > 2e9  # what a busy machine reaches, too


# Latency ----------------------------------------------------------------------------------------------------


def test_latency_at_reference_speed() -> None:
    row = Row("lower add", "ms", Timing((2e-3,)), 0.8, Timing((100e-3,)), reference=25.0)
    assert row.at_reference_speed == pytest.approx(0.5)
    assert row.as_json()["at_reference_speed"] == pytest.approx(0.5)
    assert Row("lower add", "ms", Timing((2e-3,)), 0.8, reference=25.0).at_reference_speed is None
    assert TINYGRAD_REFERENCE.keys() == LOWERING.keys()


# The command ------------------------------------------------------------------------------------------------


def test_the_command_writes_its_figures(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out, table = tmp_path / "figures.json", tmp_path / "table.md"
    arguments = ["bench", "sum", "sum-axis-1", "--device", "llvm", "--repeat", "2", "--threads", "1"]
    status = app.execute([*arguments, "--quick", "--json", str(out), "--markdown", str(table)])
    text, err = capfd.readouterr()
    assert status == 0, err
    assert "of libraries: their time ÷ ours" in text
    facts = json.loads(out.read_text())
    assert facts["device"] == "llvm:0" and facts["versions"]["numpy"] == np.__version__
    assert facts["threads"] == 1 and facts["command"].startswith(
        "retarget bench sum sum-axis-1 --device llvm"
    )
    small, large = facts["figures"]
    assert small["case"] == "sum" and small["times"]["numpy"]["ratio"] > 0 and small["verdict"] == ""
    assert large["verdict"] == "not measured" and large["bytes"] == 4.0 * (4096 * 4096 + 4096)
    assert table.read_text().startswith("| kernel | retarget |")


def test_the_command_names_cases_and_libraries(capfd: pytest.CaptureFixture[str]) -> None:
    assert app.execute(["bench", "matmull"]) == 1
    assert "did you mean 'matmul'" in capfd.readouterr().err
    assert app.execute(["bench", "sum", "--against", "nunpy"]) == 1
    assert "did you mean 'numpy'" in capfd.readouterr().err
    assert app.execute(["bench", "--list"]) == 0
    assert "matmul-2048" in capfd.readouterr().out


def test_a_case_that_cannot_be_had_is_left_out_unless_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def missing() -> list[np.ndarray]:
        raise UserError("the case minilm needs a clone")

    replaced = dataclasses.replace(named("minilm"), make=missing)
    monkeypatch.setattr(kernels, "CASES", (named("sum"), replaced))
    for variable, value in libraries.thread_environment(2).items():  # so that no other process is started
        monkeypatch.setenv(variable, value)
    common = ["--quick", "--threads", "2", "--device", "llvm"]
    assert app.execute(["bench", "*", *common]) == 0
    assert "left out: the case minilm needs a clone" in capfd.readouterr().out
    assert app.execute(["bench", "minilm", *common]) == 1
    assert "the case minilm needs a clone" in capfd.readouterr().err


def test_an_interrupted_run_keeps_what_it_has(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> list[np.ndarray]:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        kernels, "CASES", (named("sum"), dataclasses.replace(named("gelu"), make=interrupted))
    )
    for variable, value in libraries.thread_environment(2).items():
        monkeypatch.setenv(variable, value)
    assert app.execute(["bench", "*", "--quick", "--threads", "2", "--device", "llvm"]) == 130
    assert "interrupted: 1 of 2 cases were measured" in capfd.readouterr().out
