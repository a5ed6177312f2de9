"""The conformance suite itself: it finds faults, judges declarations, and stays out of other test runs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from retarget.conformance import Report, run
from retarget.conformance.bounds import evaluate, mismatches
from retarget.conformance.execute import placeholder
from retarget.conformance.fuzz import check, main, reduce_failure
from retarget.conformance.generate import Graph, generate
from retarget.conformance.matrix import cases
from retarget.conformance.minimize import minimize
from retarget.conformance.report import FAILED, KNOWN, PASSED, UNEXPECTED, Result
from retarget.conformance.suite import Suite
from retarget.errors import ConformanceError, UnknownNameError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import ARRAY_DTYPES
from retarget.ir.text import dump, parse
from retarget.ir.uop import UOp
from retarget.registry.manifest import KnownFailure
from retarget.schedule import lower

F32 = dtypes.float32


def _break_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make windows begin one element too early."""
    right = vars(lower)["ishift"]
    monkeypatch.setattr(lower, "ishift", lambda index, n: right(index, n - (n > 0)))


# -- random graphs ------------------------------------------------------------------------------------------


def test_graphs_depend_on_the_seed_alone() -> None:
    assert dump(generate(5).roots) == dump(generate(5).roots)
    assert dump(generate(5).roots) != dump(generate(6).roots)


def test_graphs_cover_the_graph_ops() -> None:
    met = {u.op for seed in range(500) for u in generate(seed, 20).nodes}
    wanted = {o for o in ops.OPS.values() if "g" in o.levels} - {ops.VAR, ops.COPY, ops.CONTIGUOUS}
    assert wanted <= met, f"never generated: {sorted(o.name for o in wanted - met)}"


def test_graphs_keep_to_the_dtypes_that_are_named() -> None:
    named = (dtypes.bool_, dtypes.int32, dtypes.int64, F32)
    for seed in range(20):
        assert all(u.dtype in named for u in generate(seed, named=named).roots)


def test_a_fault_is_found_and_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    _break_shrinks(monkeypatch)
    failures = [f for seed in range(30) if (f := check(generate(seed), "llvm:0")) is not None]
    assert failures
    small = reduce_failure(failures[0], "llvm:0")
    assert small.kind == "wrong values"
    assert len(small.graph.nodes) <= 4
    assert any(u.op is ops.SHRINK for u in small.graph.nodes)
    text = str(small)
    assert f"seed {failures[0].graph.seed}" in text and "SHRINK" in text and "schedule of kernel 0" in text


def test_the_command_prints_a_failure_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _break_shrinks(monkeypatch)
    assert main(["--device", "llvm", "--count", "10", "--keep"]) == 1
    assert "SHRINK" in capsys.readouterr().out


def test_the_command_passes_without_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "llvm", "--count", "2", "--schedules"]) == 0
    assert "0 failures" in capsys.readouterr().out


def test_processes_share_the_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    def summary(*options: str) -> str:
        assert main(["--device", "llvm", "--count", "12", "--size", "6", *options]) == 0
        return capsys.readouterr().out

    assert summary() == summary("--jobs", "2")


def test_minimize_keeps_what_fails() -> None:
    x = placeholder(0, F32, (6, 4))
    y = UOp(ops.EXP, F32, (UOp(ops.NEG, F32, (x,)),))
    z = UOp(ops.REDUCE_AXIS, F32, (UOp(ops.SQRT, F32, (y,)),), (ops.ADD, (1,)))
    graph = Graph((z, y), {x: np.ones((6, 4), np.float32)})
    small = minimize(graph, lambda g: any(u.op is ops.EXP for u in g.nodes))
    assert dump(small.roots) == dump(
        parse('%0 = BUFFER float32 (0, (1, 1), "test:0")\n%1 = EXP float32 %0\nreturn (%1,)')
    )


# -- bounds -------------------------------------------------------------------------------------------------


def _bound_of(op: ops.Op, *values: float) -> float:
    nodes = [placeholder(n, F32, (1,)) for n in range(len(values))]
    data = {u: np.array([v], np.float32) for u, v in zip(nodes, values, strict=True)}
    return float(evaluate([UOp(op, F32, tuple(nodes))], data)[1][0][0])


def test_correctly_rounded_operations_are_exact() -> None:
    for op in (ops.ADD, ops.SUB, ops.MUL, ops.FDIV):
        assert _bound_of(op, 1.1, 3.3) == 0.0
    assert _bound_of(ops.SQRT, 2.0) == 0.0


def test_functions_may_be_off_by_their_documented_bound() -> None:
    assert 0 < _bound_of(ops.EXP, 1.0) < 3 * float(np.spacing(np.float32(math.e)))


def test_cancellation_widens_the_bound() -> None:
    x = placeholder(0, F32, (1,))
    grown = UOp(ops.EXP, F32, (x,))
    difference = UOp(ops.SUB, F32, (grown, UOp(ops.FLOOR, F32, (grown,))))
    values, bounds = evaluate([grown, difference], {x: np.array([9.0], np.float32)})
    assert bounds[1][0] / abs(values[1][0]) > 100 * bounds[0][0] / abs(values[0][0])


def test_a_comparison_that_rounding_may_swap_has_no_bound() -> None:
    x = placeholder(0, F32, (2,))
    less = UOp(
        ops.CMPLT, dtypes.bool_, (UOp(ops.EXP, F32, (x,)), UOp(ops.EXP, F32, (UOp(ops.NEG, F32, (x,)),)))
    )
    _, (bound,) = evaluate([less], {x: np.array([0.0, 1.0], np.float32)})
    assert list(bound) == [math.inf, 0.0]


def test_whole_sums_are_exact_and_others_are_not() -> None:
    x = placeholder(0, F32, (4,))
    total = UOp(ops.REDUCE_AXIS, F32, (x,), (ops.ADD, (0,)))
    assert evaluate([total], {x: np.array([1, 2, 3, 4], np.float32)})[1][0][0] == 0
    assert evaluate([total], {x: np.array([0.1, 0.2, 0.3, 0.4], np.float32)})[1][0][0] > 0


def test_a_sum_over_a_product_that_overflows_has_no_bound() -> None:
    """A fused multiply-add does not overflow where a product does; infinite factors stay what they are."""
    x, y = (placeholder(n, F32, (5, 2)) for n in range(2))
    product = UOp(ops.MUL, F32, (x, y))
    turned = UOp(ops.PERMUTE, F32, (product,), (1, 0))
    total = UOp(ops.REDUCE_AXIS, F32, (turned,), (ops.ADD, (0,)))
    big, inf = 3e38, math.inf
    left = np.array([[big, -1e38], [big, -inf], [1.5, 2.5], [inf, 1.0], [inf, -inf]], np.float32)
    right = np.array([[2.0, 1.0], [2.0, 1.0], [1.0, 1.0], [2.0, 1.0], [1.0, 1.0]], np.float32)
    (values, products), (bound, exact) = evaluate([total, product], {x: left, y: right})
    assert values[0].tolist()[0] == inf and np.isnan(values[0][[1, 4]]).all()
    assert np.isinf(bound[0]).tolist() == [True, True, False, False, False]
    assert np.isinf(products[:2, 0]).all() and not exact.any()  # on its own the product rounds, to infinity
    largest = UOp(ops.REDUCE_AXIS, F32, (turned,), (ops.MAXIMUM, (0,)))
    assert not evaluate([largest], {x: left, y: right})[1][0].any()


def test_mismatches_see_nan_infinity_and_single_bits() -> None:
    right = np.array([1.0, np.nan, np.inf, 2.0], np.float32)
    zero = np.zeros(4)
    assert not mismatches(right, right, zero).any()
    wrong = np.array([np.nextafter(np.float32(1), np.float32(2)), 1.0, -np.inf, np.nan], np.float32)
    assert mismatches(wrong, right, zero).all()
    large = np.array([2**63 - 1], np.int64)
    assert mismatches(large - 1, large, np.zeros(1)).all()  # float64 does not tell them apart


def test_most_of_the_matrix_has_bounds() -> None:
    for case in cases(ARRAY_DTYPES):
        if case.name.startswith(
            ("alu/", "cast/", "reduce/", "movement/", "gather/")
        ) and not case.name.startswith("alu/POW"):
            graph = case.make()
            _, bounds = evaluate(graph.roots, graph.data)
            assert sum(np.isinf(b).sum() for b in bounds) <= 0.3 * sum(b.size for b in bounds), case.name


# -- levels and declarations --------------------------------------------------------------------------------


def test_level_0_of_every_backend_in_the_tree(tmp_path: Path) -> None:
    for name in ("llvm", "numpy"):
        report = run(name, level=0, report=tmp_path / "r.json", progress=False)
        report.check()
        document = json.loads((tmp_path / "r.json").read_text())
        assert document["schema"] == 1 and document["passed"] and document["backend"] == name
        assert (tmp_path / "r.md").read_text().startswith(f"# Conformance of {name}/")


def test_unknown_names_are_errors() -> None:
    with pytest.raises(UnknownNameError, match="lvm"):
        Suite("lvm")
    with pytest.raises(UnknownNameError):
        Suite("llvm", level=7)


def _suite(monkeypatch: pytest.MonkeyPatch, *known: KnownFailure) -> Suite:
    suite = Suite("llvm", 0)
    monkeypatch.setattr(Suite, "_known", lambda self: known)
    return suite


def test_a_declared_failure_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = _suite(monkeypatch, KnownFailure("L0/probe/*", "no device here"))
    suite._checks["L0/probe/bounded"] = lambda: (_ for _ in ()).throw(AssertionError("slow"))
    assert suite.result("L0/probe/bounded") == Result("L0/probe/bounded", KNOWN, "no device here")


def test_a_declared_failure_that_passes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = _suite(monkeypatch, KnownFailure("L0/hooks/valid", "was broken"))
    assert suite.result("L0/hooks/valid").status == UNEXPECTED


def test_a_declaration_that_matches_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = _suite(monkeypatch, KnownFailure("L0/nothing", "a typing error"))
    assert [r.id for r in suite.report().failures] == ["known_failures/L0/nothing"]


def test_an_undeclared_failure_fails_even_without_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = _suite(monkeypatch)
    suite._checks["L0/hooks/valid"] = lambda: (_ for _ in ()).throw(AssertionError)
    assert suite.result("L0/hooks/valid").status == FAILED


def test_a_claim_without_an_executed_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = _suite(monkeypatch)
    suite._executed.add("axis:loop")
    suite._checks["L3/claim/axis:loop"] = lambda: suite._claimed("axis:loop")
    suite._checks["L3/claim/images"] = lambda: suite._claimed("images")
    assert suite.result("L3/claim/axis:loop").status == PASSED
    assert "no check that passed uses it" in suite.result("L3/claim/images").message


def test_a_batch_that_fails_blames_the_right_case(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Suite._execute_case

    def execute(self: Suite, case: object) -> None:
        if any(r.op is ops.SUB for r in case.make().roots):  # type: ignore[attr-defined]
            raise AssertionError("wrong")
        right(self, case)  # type: ignore[arg-type]

    monkeypatch.setattr(Suite, "_execute_case", execute)
    suite = Suite("llvm", 3)
    assert suite.result("L3/alu/SUB/int16").status == FAILED
    assert suite.result("L3/alu/ADD/int16").status == PASSED


def test_wrong_code_fails_level_3(monkeypatch: pytest.MonkeyPatch) -> None:
    _break_shrinks(monkeypatch)
    suite = Suite("llvm", 3)
    assert "elements are wrong" in suite.result("L3/movement/shrink/float32").message
    assert suite.result("L3/movement/permute/float32").good


def test_a_report_without_results_is_no_pass() -> None:
    empty = Report("x", "x/y", "", 0, {})
    assert not empty.passed
    with pytest.raises(ConformanceError):
        empty.check()


# -- pytest -------------------------------------------------------------------------------------------------


def _pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--pyargs",
        "retarget.conformance",
    ]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=200, check=False)


def test_pytest_runs_the_levels_of_a_device() -> None:
    done = _pytest("--retarget-device", "llvm", "--retarget-level", "0", "-vvv")
    assert done.returncode == 0, done.stdout
    assert "L0/manifest/valid" in done.stdout


def test_pytest_collects_nothing_without_a_device() -> None:
    done = _pytest()
    assert done.returncode == 5, done.stdout  # no tests
    assert "error" not in done.stdout.lower()
