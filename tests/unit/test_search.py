"""The search for schedules: moves, evolution, worker processes that die, what is kept and who uses it."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retarget as rt
from retarget import pipeline, registry
from retarget.codegen.hooks import hookimpl
from retarget.conformance.fuzz import check, usable_dtypes
from retarget.conformance.generate import generate
from retarget.errors import DeviceError, InternalError, ScheduleError, UserError
from retarget.optimize.heuristics import choose_schedule
from retarget.optimize.schedule import Schedule, parse_schedule
from retarget.optimize.search import cells, worker
from retarget.optimize.search import tune as searching
from retarget.optimize.search.evolve import Evolution
from retarget.optimize.search.moves import Mutator, spelled
from retarget.runtime import tuned
from retarget.runtime.realize import clear_memory_cache
from retarget.schedule.kernel import Kernel


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RETARGET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("RETARGET_CACHE", raising=False)
    monkeypatch.delenv("RETARGET_TUNED", raising=False)
    clear_memory_cache()
    yield
    clear_memory_cache()


def array(*shape: int, dtype: str = "float32") -> rt.Array:
    values = np.random.default_rng(1).uniform(0.5, 1.5, shape).astype(dtype)
    return rt.asarray(values, device="llvm")


def softmax() -> rt.Array:
    return rt.softmax(array(16, 96), axis=1)


def kernel_of(x: rt.Array) -> Kernel:
    (kernel,) = rt.lower(x)
    return kernel


def tools() -> pipeline.Toolchain:
    return pipeline.toolchain("llvm/native")


def job(kernel: Kernel, schedule: str = "", **changes: Any) -> dict[str, Any]:
    baseline = str(choose_schedule(kernel, tools().capabilities))
    return {
        "kind": "time", "kernel": str(kernel), "graph": searching.oracle_graph(kernel), "fast": False,
        "target": "llvm/native", "device": "llvm:0", "baseline": baseline, "schedules": [schedule],
        "seed": 0, "budget": 0.001, "best": None, "memory": 1 << 32, "processor": 60,
        "limits": {"compile": 60, "run": 60}, **changes,
    }  # fmt: skip


# Moves ------------------------------------------------------------------------------------------------------


def test_a_schedule_is_spelled_out_without_a_change_of_its_meaning() -> None:
    kernel = kernel_of(array(32, 48) @ array(48, 64))
    mutator = Mutator(kernel, tools().capabilities)
    schedule = choose_schedule(kernel, tools().capabilities)
    draft = spelled(schedule, mutator.sizes)
    assert sorted(draft.order) == sorted(a.name for axes in draft.axes.values() for a in axes)
    again = mutator.finish(schedule, draft)
    with pipeline.with_schedule(schedule):
        before = rt.render(kernel, "llvm").text
    with pipeline.with_schedule(again):
        assert rt.render(kernel, "llvm").text == before


@pytest.mark.parametrize("seed", range(12))
def test_mutations_compute_the_same(seed: int) -> None:
    """Chains of moves on random graphs, against the graph evaluator."""
    caps = tools().capabilities
    rng = random.Random(seed)

    def choose(kernel: Kernel) -> Schedule:
        mutator = Mutator(kernel, caps)
        schedule = choose_schedule(kernel, caps)
        if not kernel.ranges:
            return schedule
        for _ in range(4):
            child = mutator.mutate(schedule, rng)
            try:
                if child is not None:
                    with pipeline.with_schedule(child):
                        pipeline.program_of(kernel, tools())
                    schedule = child
            except ScheduleError:  # legal to apply, not to linearize: the worker rejects those
                continue
        assert parse_schedule(str(schedule)) == schedule
        return schedule

    failure = check(generate(seed, 10, usable_dtypes("llvm")), "llvm", choose)
    assert failure is None, failure


def test_every_move_does_something_on_a_product() -> None:
    kernel = kernel_of(array(64, 48) @ array(48, 64))
    mutator = Mutator(kernel, tools().capabilities)
    schedule = choose_schedule(kernel, tools().capabilities)
    moves = ("resize", "rekind", "split", "merge", "reorder", "pieces", "stage", "unstage", "restage")
    for name in moves:
        found = set()
        for seed in range(40):
            draft = spelled(schedule, mutator.sizes)
            if getattr(mutator, name)(draft, random.Random(seed)):
                found.add(str(mutator.finish(schedule, draft)))
        wanted = 2 if name == "pieces" and tools().capabilities.threads < 2 else 1
        assert len(found - {str(schedule)}) >= (0 if wanted == 2 else 1), name


def test_crossing_takes_from_both() -> None:
    kernel = kernel_of(array(64, 48) + array(64, 48) * 2)
    mutator = Mutator(kernel, tools().capabilities)
    names = list(kernel.ranges)
    one = parse_schedule(f"{names[0]}=a,b/4:u")
    other = parse_schedule(f"{names[1]}=c,d/8:v")
    found = {str(mutator.cross(one, other, random.Random(n))) for n in range(20)}
    assert any("b/4:u" in s and "d/8:v" in s for s in found), found


# Evolution --------------------------------------------------------------------------------------------------


def cost(schedule: Schedule) -> float:
    """A made-up clock that likes 16 lanes and four rows at once."""
    text = str(schedule)
    return 1.0 + abs(hash_of(text)) * 1e-3 - 0.4 * ("/16:v" in text) - 0.3 * ("/4:u" in text)


def hash_of(text: str) -> float:
    return sum(map(ord, text)) % 97 / 97


def evolve(seed: int, candidates: int = 60) -> Evolution:
    kernel = kernel_of(softmax())
    baseline = choose_schedule(kernel, tools().capabilities)
    evolution = Evolution(Mutator(kernel, tools().capabilities), random.Random(seed))
    evolution.note(baseline, {"seconds": cost(baseline)})

    def measure(schedules: Sequence[Schedule]) -> list[dict[str, Any] | None]:
        return [{"rejected": "crash"} if ":a" in str(s) else {"seconds": cost(s)} for s in schedules]

    evolution.run(measure, 6, candidates, lambda: True)
    return evolution


def test_evolution_improves_and_rejects() -> None:
    evolution = evolve(3)
    (seconds, best), *_ = evolution.ranked
    assert seconds < 0.5, best
    assert evolution.rejected["crash"] == sum(d["reason"] == "crash" for d in evolution.details)
    assert not any(":a" in str(s) for _, s in evolution.ranked)


def test_evolution_depends_on_seed_and_times_alone() -> None:
    ranked = [[str(s) for _, s in evolve(seed, 30).ranked] for seed in (1, 1, 2)]
    assert ranked[0] == ranked[1] != ranked[2]


def test_nothing_is_proposed_twice_and_a_small_space_ends() -> None:
    kernel = kernel_of(array(2) + 1)
    evolution = Evolution(Mutator(kernel, tools().capabilities), random.Random(0))
    evolution.note(Schedule(), {"seconds": 1.0})
    seen: list[str] = []

    def measure(schedules: Sequence[Schedule]) -> list[dict[str, Any] | None]:
        seen.extend(map(str, schedules))
        return [{"seconds": 1.0} for _ in schedules]

    evolution.run(measure, 8, 1000, lambda: True)
    assert len(set(seen)) == len(seen) < 1000


# Worker and cells -------------------------------------------------------------------------------------------


def test_a_kernel_is_rebuilt_from_its_text() -> None:
    kernel = kernel_of(array(8, 12) @ array(12, 4))
    again = worker.rebuild(str(kernel))
    assert again.stores == kernel.stores
    assert [(u.dtype, u.shape) for u in again.inputs] == [(u.dtype, u.shape) for u in kernel.inputs]
    assert [(u.dtype, u.shape) for u in again.outputs] == [(u.dtype, u.shape) for u in kernel.outputs]


def test_positions_stay_inside() -> None:
    table, rows = array(10, 4), rt.asarray(np.zeros(6, np.int32), device="llvm")
    kernel = kernel_of(rt.take(table, rows, axis=0) * 2)
    (positions,) = [v for v in worker.inputs_of(kernel, 0) if v.dtype.kind == "i"]
    assert positions.min() >= 0 and positions.max() < 10 and len(set(positions.tolist())) > 2


def test_a_wrong_result_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_of(softmax())
    bench = worker.Bench(job(kernel))
    assert bench.bounds  # a small kernel: the graph evaluator's values
    right = bench.results()
    assert not bench.wrong(right)
    off = right[0].copy()
    off[3, 7] *= 1.001
    assert bench.wrong([off]) == "1 of 1536 elements of output 0"
    run = worker.Worker(lambda _: None)
    run._bench = None
    monkeypatch.setattr(worker.Bench, "results", lambda self: [off])
    with pytest.raises(InternalError, match="computes something else"):
        run(job(kernel))


def test_near_is_half_of_the_digits() -> None:
    right = np.linspace(-1, 1, 101, dtype=np.float32)
    assert worker.near(right * np.float32(1 + 1e-5), right).all()
    assert not worker.near(right * np.float32(1.01), right).all()
    assert worker.near(np.array([np.nan, np.inf]), np.array([np.nan, np.inf])).all()
    assert not worker.near(np.array([1, 2]), np.array([1, 3])).all()


def test_clearly_slower_is_given_up() -> None:
    calls: list[float] = []

    def slow() -> float:
        calls.append(1.0)
        return 1.0

    assert worker.measure(slow, 10.0, best=0.1) == (1.0, True)
    assert len(calls) == 3
    assert worker.measure(iter([3.0, 1.0, 2.0, 5.0]).__next__, 0.0, best=None) == (1.0, False)


def test_large_bodies_are_refused() -> None:
    kernel = kernel_of(rt.exp(array(64, 64)))
    names = list(kernel.ranges)
    huge = f"{names[0]}={names[0]}o,{names[0]}u/16:u; {names[1]}={names[1]}o,{names[1]}u/16:u"
    result = cells.Cell().run(job(kernel, huge))
    assert result["rejected"] == "ScheduleError" and "operations when unrolled" in result["detail"]


def test_a_cell_measures() -> None:
    cell = cells.Cell()
    kernel = kernel_of(softmax())
    result = cell.run(job(kernel, "r0=r0,r0u/2:u"))
    assert 0 < result["seconds"] < 1 and result["place"] == list(tuned.place_of(tools()))
    duel = cell.run(job(kernel, kind="duel", schedules=["", "r0=r0,r0u/2:u"]))
    assert len(duel["times"]) == 2
    assert cell.run(job(kernel, "r9=a,b/2"))["rejected"] == "ScheduleError"
    first = cell._process
    assert "seconds" in cell.run(job(kernel)) and cell._process is first


def test_a_candidate_that_hangs_is_rejected_and_the_next_one_runs() -> None:
    cell = cells.Cell()
    slow = kernel_of(array(1500, 1500) @ array(1500, 1500))
    names = list(slow.ranges)
    naive = f"order={names[1]},{names[0]},{names[2]}"
    result = cell.run(job(slow, naive, limits={"compile": 60, "run": 0.05}))
    assert result["rejected"] == "too slow" and "run took longer" in result["detail"]
    assert "seconds" in cell.run(job(kernel_of(softmax())))


def test_memory_is_limited() -> None:
    x = rt.asarray(np.zeros((6000, 6000), np.float32), device="llvm")
    result = cells.Cell().run(job(kernel_of(x + 1), memory=200 << 20))
    assert result["rejected"] == "out of memory"


def fake(body: str) -> cells.Cell:
    script = f"import sys, os, time, json\nsys.stdin.readline()\nfor line in sys.stdin:\n    {body}"
    return cells.Cell([sys.executable, "-c", script])


@pytest.mark.parametrize(
    ("body", "rejected", "detail"),
    [
        ("os.abort()", "crash", "SIGABRT"),
        ("os.kill(os.getpid(), 11)", "crash", "SIGSEGV"),
        ("sys.exit(3)", "crash", "status 3"),
        ("print('{\"phase\": \"run\"}', flush=True); time.sleep(60)", "too slow", "run took longer than 0.2"),
        ("print('no JSON', flush=True)", "crash", "no JSON"),
    ],
)
def test_a_worker_that_dies_rejects_its_candidate(body: str, rejected: str, detail: str) -> None:
    cell = fake(body)
    for _ in range(2):  # each time in a new process
        result = cell.run({"limits": {"run": 0.2}})
        assert result["rejected"] == rejected and detail in result["detail"]


def test_workers_end_with_the_search() -> None:
    with cells.local_executor(2) as (pool, width):
        assert width == 2
        result = pool.submit(cells.run_job, {"kind": "place", "target": "llvm/native"}).result()
    assert result["place"][1] == "llvm/native"
    assert all(cell._process is None for cell in cells._cells)


# What is kept -----------------------------------------------------------------------------------------------


def keep(kernel: Kernel, schedule: str) -> None:
    assert tuned.keep(kernel, tuned.place_of(tools()), {"schedule": schedule})


def test_a_kept_schedule_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_of(softmax())
    heuristic = str(pipeline.schedule_for(kernel, tools()))
    keep(kernel, "r0=x,y/2:u")
    assert str(pipeline.schedule_for(kernel, tools())) == "r0=x,y/2:u"
    assert str(pipeline.schedule_for(kernel_of(array(5, 7) + 1), tools())) != "r0=x,y/2:u"
    assert tuned.count() == 1
    tuned.forget()
    assert str(pipeline.schedule_for(kernel, tools())) == "r0=x,y/2:u"
    monkeypatch.setenv("RETARGET_TUNED", "0")
    assert str(pipeline.schedule_for(kernel, tools())) == heuristic
    monkeypatch.delenv("RETARGET_TUNED")
    with rt.with_schedule("r0=p,q/4"):
        assert str(pipeline.schedule_for(kernel, tools())) == "r0=p,q/4"
    assert tuned.keep(kernel, tuned.place_of(tools()), None)
    assert tuned.count() == 0 and str(pipeline.schedule_for(kernel, tools())) == heuristic


def test_an_extension_precedes_what_was_tuned() -> None:
    kernel = kernel_of(softmax())

    class Chooser:
        @hookimpl
        def choose_schedule(self, kernel: Any, target: str) -> Any:
            return "r0=m,n/2"

    registry.registry().register(Chooser(), "test-chooser", targets=["llvm/*"])
    try:
        keep(kernel, "r0=x,y/2:u")
        assert str(pipeline.schedule_for(kernel, tools())) == "r0=m,n/2"
    finally:
        registry.registry().unregister("test-chooser")
    # Measured with that extension in place: it holds for no other chain.
    assert str(pipeline.schedule_for(kernel, tools())) not in ("r0=m,n/2", "r0=x,y/2:u")


def test_another_machine_has_its_own() -> None:
    kernel = kernel_of(softmax())
    place = tuned.place_of(tools())
    other = place._replace(machine="Another CPU, 2 threads")
    tuned.keep(kernel, other, {"schedule": "r0=x,y/2:u"})
    assert str(pipeline.schedule_for(kernel, tools())) != "r0=x,y/2:u"
    assert place.differences(other) == [f"machine: Another CPU, 2 threads instead of {place.machine}"]
    assert place.differences(place._replace(code="a\nb")) == ["code differs"]


def test_plans_follow_what_is_kept(tmp_path: Path) -> None:
    """The plan of a graph that ran before is not used once a kernel of it is tuned, and is again after."""

    def names() -> set[str]:
        return {p.name for p in (tmp_path / "cache").rglob("*.kernel")}

    expected = np.asarray(softmax())
    before = names()
    keep(kernel_of(softmax()), "r0=x,y/2:u")
    assert np.allclose(np.asarray(softmax()), expected, rtol=1e-6)
    assert len(names() - before) == 1
    after = names()
    np.asarray(softmax())
    clear_memory_cache()
    np.asarray(softmax())
    tuned.keep(kernel_of(softmax()), tuned.place_of(tools()), None)
    np.asarray(softmax())
    assert names() == after


def test_places_are_not_asked_for_where_nothing_was_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    def place_of(_: Any) -> Any:
        raise AssertionError("nothing was tuned")

    monkeypatch.setattr(tuned, "place_of", place_of)
    assert tuned.records_of(tools()) == {}
    assert tuned.state({}) == ""


def test_two_that_keep_at_once_lose_nothing() -> None:
    kernels = [kernel_of(array(4, n) + 1) for n in range(5, 17)]
    threads = [threading.Thread(target=keep, args=(k, "r0=x,y/2")) for k in kernels]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert tuned.count() == len(kernels)


# rt.tune ----------------------------------------------------------------------------------------------------


def test_tune_an_array_and_a_function() -> None:
    steps: list[Any] = []
    found = rt.tune(softmax(), seconds=60, candidates=6, workers=1, progress=steps.append)
    (kernel,) = found.kernels
    assert kernel.candidates == 6 and not found.interrupted and found.target == "llvm/native"
    assert kernel.seconds <= kernel.baseline_seconds and kernel.ratio >= 1
    assert steps[-1].candidates == 6 and steps[-1].best is not None
    assert kernel.kept == (kernel.schedule != kernel.baseline) == (tuned.count() == 1)
    assert "other machine" not in kernel.rejected and "lost worker" not in kernel.rejected
    with rt.with_schedule(kernel.schedule):
        assert np.allclose(np.asarray(softmax()).sum(axis=1), 1, rtol=1e-5)
    step = rt.jit(lambda x: rt.sum(x * x, axis=1))
    again = rt.tune(step, array(8, 64), seconds=60, candidates=2, workers=1)
    assert [k.candidates for k in again.kernels] == [2]


def test_tune_says_what_is_wrong() -> None:
    x = array(4, 4)
    with pytest.raises(UserError, match="missing a required argument"):
        rt.tune(lambda x: x + 1)
    with pytest.raises(UserError, match="got int"):
        rt.tune(3)
    with pytest.raises(UserError, match="which is no function"):
        rt.tune(x + 1, x)
    with pytest.raises(UserError, match="computed already"):
        rt.tune(x)
    with pytest.raises(UserError, match="no loops"):
        rt.tune(rt.sum(array(1)) + 1)
    with pytest.raises(UserError, match="nowhere"):
        rt.tune(x + 1, device="nowhere")
    with pytest.raises(DeviceError, match="leave out one"):
        rt.tune(x + 1, device="llvm", target="clang")
    for wrong in ({"seconds": 0}, {"candidates": 0}, {"workers": 0}):
        with pytest.raises(UserError, match="a search"):
            rt.tune(x + 1, **wrong)


def test_ctrl_c_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"": 3.0}

    def ask(self: Any, jobs: Sequence[dict[str, Any]], until: float = 0) -> list[dict[str, Any] | None]:
        assert all(j["kind"] == "time" for j in jobs)  # no duel after Ctrl-C
        if len(answers) > 3:
            self.interrupted = True
        for j in jobs:
            answers[j["schedules"][0]] = 3.0 / (1 + len(answers))
        return [{"seconds": answers[j["schedules"][0]]} for j in jobs]

    monkeypatch.setattr(searching._Hands, "ask", ask)
    found = rt.tune(softmax(), seconds=60, workers=1)
    assert found.interrupted
    (kernel,) = found.kernels
    assert kernel.kept and kernel.seconds == min(answers.values()) and tuned.count() == 1


def test_a_kernel_that_fails_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        searching._Hands, "ask", lambda self, jobs, until=0: [{"rejected": "crash", "detail": "SIGILL"}]
    )
    with pytest.raises(DeviceError, match=r"cannot be measured on llvm:0 as it is: crash \(SIGILL\)"):
        rt.tune(softmax())


# Many machines ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as found:
        yield found


def test_tune_on_a_cluster_of_two(cluster: Any) -> None:
    found = rt.tune(softmax(), seconds=120, candidates=6, scheduler=cluster.scheduler_address)
    (kernel,) = found.kernels
    assert kernel.candidates == 6
    assert "lost worker" not in kernel.rejected and "other machine" not in kernel.rejected


def test_workers_on_other_machines_are_told(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tuned.place_of(tools())
    monkeypatch.setattr(searching, "place_of", lambda _: place._replace(machine="Another CPU, 64 threads"))
    with pytest.raises(DeviceError, match="instead of Another CPU, 64 threads"):
        rt.tune(softmax(), seconds=60, candidates=2, scheduler=cluster.scheduler_address)


def test_no_scheduler() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(UserError, match="no Dask scheduler answers"):
        rt.tune(softmax(), scheduler="tcp://127.0.0.1:9")
