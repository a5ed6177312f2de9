"""The process that compiles and times candidates: jobs in, results out, a line of JSON each.

It is started by `cells.Cell`, limits its own memory and processor time, and may die of a candidate.  For each
job it answers {"phase": ...} at each step, so that whoever waits knows which limit holds, and at last
{"result": ...}.  Candidates compile side by side with those of other processes, and are timed alone: a file
lock of this machine sees to that.

A candidate's time counts only if its result is right.  Where the kernel is small, right is what the NumPy
evaluator of graphs says, within the bounds of `conformance.bounds`; else it is what the kernel of the
heuristics' schedule computes, within half of the digits.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ...errors import ScheduleError

if TYPE_CHECKING:
    import numpy as np

    from ...codegen.program import Program
    from ...ir.uop import UOp
    from ...schedule.kernel import Kernel

#: Most operations of a program with its loops unrolled, and how many times those of the heuristics' schedule
#: if that is more: beyond that compilers take long, and no cache of instructions holds it.
_LARGE, _LARGER = 1500, 3
#: Runs of a candidate before it may be given up, and how much slower than the best it then has to be.
_FIRST_RUNS, _CLEARLY = 3, 1.3
_MOST_RUNS = 2000


class Bench:
    """One kernel, with its inputs and what it ought to compute.

    Raises
    ------
    InternalError
        If the kernel of the first schedule computes something wrong.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        import numpy as np

        from ... import pipeline, registry
        from ...ir import dtypes, ops
        from ...ir.uop import toposort
        from ...runtime import buffers

        self.device = registry.device(job["device"]).name
        self.tools = pipeline.toolchain(job["target"])
        self.fast = job["fast"]
        self.kernel = rebuild(job["kernel"])
        self.on = pipeline.runtime(self.device)
        values = inputs_of(self.kernel, job["seed"])
        self._inputs = [buffers.data_of(buffers.from_numpy(v, self.device)) for v in values]
        self._outputs = [
            np.empty(u.shape, dtypes.to_numpy(u.dtype)) for u in self.kernel.outputs
        ]  # fmt: skip
        self._memory = [buffers.allocate(max(1, x.nbytes), self.device) for x in self._outputs]
        self.handles = [b.handle for b in (*self._memory, *self._inputs)]
        self.expected: list[Any] = []
        self.bounds: list[Any] = []
        if job["graph"]:
            from ...conformance.bounds import evaluate

            nodes = _parsed(job["graph"])
            data = {u: values[u.arg[0]] for u in toposort(nodes) if u.op is ops.BUFFER}
            self.expected, self.bounds = evaluate(nodes, data)
        self.baseline = job["baseline"]
        self._most = 0
        self.launch(self.build(self.baseline))
        got = self.results()
        if job["graph"]:
            wrong = self.wrong(got)
            if wrong:
                from ...errors import InternalError

                raise InternalError(f"the schedule {self.baseline!r} computes something else: {wrong}")
        else:
            self.expected = got

    def build(self, schedule: str) -> Any:
        """Return the kernel under a schedule, loaded."""
        from ... import pipeline

        fast = pipeline.fast_math() if self.fast else contextlib.nullcontext()
        with pipeline.with_schedule(schedule), fast:
            program = pipeline.program_of(self.kernel, self.tools)
            size = emitted_size(program, self.tools.capabilities.vector_bits)
            self._most = self._most or max(_LARGE, _LARGER * size)
            if size > self._most:
                raise ScheduleError(f"{size} operations when unrolled")
            binary = pipeline.binary_of(pipeline.source_of(program, self.tools), self.tools)
        return self.on.load(binary)

    def launch(self, run: Any) -> None:
        """Run on outputs that hold what no kernel left there."""
        for x, buffer in zip(self._outputs, self._memory, strict=True):
            flat = x.reshape(-1).view("u1")
            flat[...] = 0x5A if x.dtype.kind != "b" else 0
            self.on.copy_in(buffer.handle, flat.data)
        run(self.handles)
        self.on.synchronize()

    def results(self) -> list[Any]:
        """Return copies of the outputs."""
        for x, buffer in zip(self._outputs, self._memory, strict=True):
            self.on.copy_out(x.reshape(-1).view("u1").data, buffer.handle)
        return [x.copy() for x in self._outputs]

    def wrong(self, got: Sequence[Any]) -> str:
        """Return how results differ from the expected ones, or nothing."""
        for n, (x, right) in enumerate(zip(got, self.expected, strict=True)):
            if self.bounds:
                from ...conformance.bounds import mismatches

                bad = mismatches(x, right, self.bounds[n])
            else:
                bad = ~near(x, right)
            if bad.any():
                return f"{int(bad.sum())} of {bad.size} elements of output {n}"
        return ""


def emitted_size(program: Program, vector_bits: int) -> int:
    """Return about how many machine operations a program has when its unrolled loops are."""
    from ...ir import ops

    total, copies = 0, [1]
    for u in program.uops:
        if u.op is ops.RANGE:
            copies.append(copies[-1] * (u.arg[1] if u.arg[2] == "unroll" and u.arg[1] else 1))
        elif u.op is ops.IF:
            copies.append(copies[-1])
        elif u.op in (ops.END, ops.ENDIF):
            copies.pop()
        else:
            width = max([u.dtype.bits * u.dtype.lanes, *[s.dtype.bits * s.dtype.lanes for s in u.src]])
            total += copies[-1] * max(1, width // vector_bits if vector_bits else 1)
    return total


def near(x: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> Any:
    """Return which elements agree in half of their digits, or are small beside the whole and about as near.

    Sums in another order differ by a few of the last digits; code that reads the wrong element, by far more.
    """
    import numpy as np

    from ...ir import dtypes

    if right.dtype.kind in "biu":
        return x == right
    tolerance = 2.0 ** -(dtypes.as_dtype(right.dtype).mantissa / 2)
    a, b = x.astype(np.float64), right.astype(np.float64)
    with np.errstate(all="ignore"):
        finite = b[np.isfinite(b)]
        scale = float(np.sqrt(np.mean(finite * finite))) if finite.size else 0.0
        same = np.abs(a - b) <= tolerance * np.maximum(np.abs(b), scale)
        return same | (a == b) | (np.isnan(a) & np.isnan(b))


def rebuild(text: str) -> Kernel:
    """Return the kernel that prints as `text`; its graph nodes are placeholders of the same shapes."""
    from ...conformance.execute import placeholder
    from ...ir import ops
    from ...ir.uop import toposort
    from ...schedule.kernel import Kernel

    stores = _parsed(text)
    parameters = {u.arg[0]: u for u in toposort(stores) if u.op is ops.PARAM}

    def nodes(kind: str) -> tuple[UOp, ...]:
        names = sorted((n for n in parameters if n.startswith(kind)), key=lambda n: int(n[len(kind) :]))
        return tuple([placeholder(k, parameters[n].dtype, parameters[n].arg[1]) for k, n in enumerate(names)])

    return Kernel(stores, nodes("out"), nodes("in"))


def inputs_of(kernel: Kernel, seed: int) -> list[Any]:
    """Return random values for the inputs: floats about 1, and integers that are positions where they are
    used as such."""
    import numpy as np

    from ...ir import dtypes, ops
    from ...ir.uop import toposort

    rng = np.random.default_rng(seed)
    reach: dict[str, int] = {}
    for u in kernel.nodes:
        if u.op is ops.IVALUE:
            for source in toposort(u.src):
                if source.op is ops.LOAD:
                    name = source.src[0].arg[0]
                    reach[name] = min(reach.get(name, 1 << 62), u.arg[1] + 1)
    values = []
    for n, u in enumerate(kernel.inputs):
        dtype = dtypes.to_numpy(u.dtype)
        if u.dtype.kind == "float":
            made = rng.uniform(0.25, 1.75, u.shape).astype(dtype)
        elif u.dtype.kind == "bool":
            made = rng.integers(0, 2, u.shape).astype(dtype)
        else:
            most = min(reach.get(f"in{n}", 64), int(u.dtype.max))
            made = rng.integers(0, most, u.shape).astype(dtype)
        values.append(made)
    return values


def _parsed(text: str) -> tuple[UOp, ...]:
    from ...ir.text import parse

    found = parse(text)
    return found if isinstance(found, tuple) else (found,)


def measure(time_once: Callable[[], float], budget: float, best: float | None) -> tuple[float, bool]:
    """Return the least of several times, and whether it was given up as clearly slower than `best`."""
    start = time.perf_counter()
    least = time_once()
    for n in range(1, _MOST_RUNS):
        if best is not None and n >= _FIRST_RUNS and least > _CLEARLY * best:
            return least, True
        if n >= _FIRST_RUNS and time.perf_counter() - start > budget:
            break
        least = min(least, time_once())
    return least, False


class Worker:
    """Answers jobs."""

    def __init__(self, answer: Callable[[dict[str, Any]], None]) -> None:
        self.answer = answer
        self._bench: tuple[str, Bench] | None = None

    def __call__(self, job: dict[str, Any]) -> dict[str, Any]:
        from ... import pipeline
        from ...runtime.tuned import place_of

        if job["kind"] == "place":
            return {"place": list(place_of(pipeline.toolchain(job["target"])))}
        with limited(job["memory"], job["processor"]):
            key = json.dumps([job[k] for k in ("kernel", "graph", "target", "device", "baseline", "fast")])
            with machine_lock(shared=True):
                self.answer({"phase": "prepare"})
                if self._bench is None or self._bench[0] != key:
                    self._bench = None
                    self._bench = (key, Bench(job))
                bench = self._bench[1]
                self.answer({"phase": "compile"})
                runs = [bench.build(s) for s in job["schedules"]]
            with machine_lock(shared=False):
                self.answer({"phase": "run"})
                measured = self._duel if job["kind"] == "duel" else self._time
                result = measured(bench, runs, job)
        return {"place": list(place_of(bench.tools)), **result}

    def _time(self, bench: Bench, runs: Sequence[Any], job: dict[str, Any]) -> dict[str, Any]:
        """Check one candidate, and time it."""
        (run,) = runs
        bench.launch(run)
        wrong = bench.wrong(bench.results())
        if wrong:
            return {"rejected": "wrong result", "detail": wrong}
        seconds, slower = measure(lambda: float(run.time(bench.handles)), job["budget"], job["best"])
        return {"seconds": seconds, "abandoned": slower}

    def _duel(self, bench: Bench, runs: Sequence[Any], job: dict[str, Any]) -> dict[str, Any]:
        """Time several candidates in turn, so that what disturbs the machine disturbs all of them."""
        least = [float("inf")] * len(runs)
        start, rounds = time.perf_counter(), 0
        while rounds < 5 or (time.perf_counter() - start < job["budget"] and rounds < _MOST_RUNS):
            for n, run in enumerate(runs):
                for _ in range(3):
                    least[n] = min(least[n], float(run.time(bench.handles)))
            rounds += 1
        return {"times": least}


@contextlib.contextmanager
def limited(memory: int, processor: float) -> Iterator[None]:
    """Limit what this process may take, beyond what it has: bytes of memory, seconds of all its threads.

    It is killed for the seconds; an allocation beyond the bytes fails.  Systems without such limits have
    those of whoever waits.
    """
    try:
        import resource
    except ImportError:
        yield
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + processor) + 1, hard))
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, most))
    except (OSError, ValueError):  # no such file, or the hard limit is lower already
        most = resource.RLIM_INFINITY
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
        with contextlib.suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (most, most))


@contextlib.contextmanager
def machine_lock(shared: bool) -> Iterator[None]:
    """Hold this user's lock for measurements on this machine: many compile, or one times."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    path = Path(tempfile.gettempdir()) / f"retarget-tune-{os.getuid()}.lock"
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def main() -> None:
    """Answer the jobs on standard input until it ends."""
    answers = _answers()

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    _no_core_files()
    worker = Worker(answer)
    for line in sys.stdin:
        try:
            result = worker(json.loads(line))
        except MemoryError:
            result = {"rejected": "out of memory"}
        except Exception as error:  # a candidate's fault, whatever it is
            result = {"rejected": type(error).__name__, "detail": (str(error).splitlines() or [""])[0]}
        answer({"result": result})


def _answers() -> TextIO:
    """Return standard output, for answers alone: what a kernel or plugin prints goes to the errors."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _no_core_files() -> None:
    with contextlib.suppress(ImportError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
