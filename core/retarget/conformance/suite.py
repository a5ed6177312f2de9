"""Run the levels on a backend: L0 what it says, L1 rendering, L2 compiling, L3 executing against the
reference.

A check fails by raising.  Graph cases of one batch are compiled and run together; when that fails, each is
run alone, so that the failure has the right name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__, pipeline, registry
from ..codegen.driver import emit
from ..codegen.program import Program
from ..errors import UnknownNameError
from ..ir import ops
from ..ir.dtypes import ARRAY_DTYPES, DType
from ..linearize.linearize import linearize
from ..optimize.apply import apply_schedule
from ..optimize.schedule import Schedule, parse_schedule
from ..registry.backend import Binary, Source
from ..schedule.kernel import Kernel
from .bounds import evaluate, mismatches, spacing, wide
from .execute import Choose, Values, execute, run_program
from .generate import Graph
from .matrix import Case, cases
from .programs import Handmade, claims, conversion, features, handmade
from .report import FAILED, KNOWN, PASSED, UNEXPECTED, Report, Result
from .schedules import legal_schedule
from .static_checks import level0

Check = Callable[[], None]

#: Ops whose zeros have a sign that the op table leaves open.
_FREE_ZEROS = frozenset({ops.MAXIMUM, ops.MINIMUM, ops.FLOORDIV, ops.MOD, ops.WHERE})


class Suite:
    """The checks of one backend, each run when its result is asked for, and once.

    Parameters
    ----------
    name
        A backend ("llvm"), a target ("llvm/x86-64-v3") or a device ("llvm:0").
    level
        The highest level.

    Attributes
    ----------
    target, device
        What is tested; the device is "" below level 3.
    """

    def __init__(self, name: str, level: int = 3) -> None:
        if not 0 <= level <= 3:
            raise UnknownNameError("level", str(level), ("0", "1", "2", "3"))
        owner = name.partition(":")[0].partition("/")[0]
        self.plugin = registry.registry().plugin(owner)
        self.level = level
        backend = registry.backend(owner)
        self.device, self.target, missing = "", "", ""
        if level >= 3:
            devices = [d for d in self.plugin.probe() if name in (owner, d.name, d.target)]
            if devices:
                self.device, self.target = devices[0].name, devices[0].target
            else:
                missing = self.plugin.reason or f"no device of {owner} has the target {name}"
        if not self.target:
            self.target = registry.target(name.partition(":")[0])
        self.capabilities = backend.capabilities(self.target)
        self.tools = pipeline.toolchain(self.target)
        self._binaries: dict[str, Binary] = {}
        self._results: dict[str, Result] = {}
        self._executed: set[str] = set()
        self._checks: dict[str, Check] = {}
        self._batches: dict[str, list[str]] = {}
        self._cases: dict[str, Case] = {}
        self._collect(missing)

    def ids(self) -> list[str]:
        """Return the name of every check, in order."""
        return list(self._checks)

    def result(self, id: str) -> Result:
        """Return the result of a check, running it (and the rest of its batch) if that was not done yet."""
        found = self._results.get(id)
        if found is None:
            if id not in self._checks:
                raise UnknownNameError("check", id, self._checks)
            level = id.partition("/")[0]
            case = self._cases.get(id)
            batch = self._batches.get(f"{level} {case.batch}", []) if case is not None else []
            if len(batch) > 1:
                self._run_batch(level, batch)
            found = self._results.get(id) or self._run(id)
        return found

    def report(self, advance: Callable[[Result], None] = lambda r: None) -> Report:
        """Run everything and return the report."""
        start = time.perf_counter()
        versions = {
            "retarget": __version__, "plugin API": registry.API_VERSION, "IR": registry.IR_VERSION,
            self.plugin.distribution or self.plugin.name: self.plugin.version,
            "compiler": self.tools.compiler.identity().partition("\n")[0],
        }  # fmt: skip
        report = Report(self.plugin.name, self.target, self.device, self.level, versions)
        if self.level >= 2:
            self._compile_ahead()
        for id in self.ids():
            report.results.append(self.result(id))
            advance(report.results[-1])
        report.results += self._unmatched()
        if self.device:
            report.unclaimed = list(self._unclaimed())
        report.seconds = time.perf_counter() - start
        return report

    # -- which checks there are -----------------------------------------------------------------------------

    def _collect(self, missing: str) -> None:
        for name, check in level0(self.plugin, self.target):
            self._checks[f"L0/{name}"] = check
        if self.level == 0:
            return
        named = self._dtypes()
        graphs = list(cases(named))
        programs = list(handmade(self.capabilities))
        for level, run_graph, run_handmade in (
            (1, self._render_case, self._render_program), (2, self._compile_case, self._compile_program),
            (3, self._execute_case, self._execute_program),
        ):  # fmt: skip
            if level > self.level:
                return
            if level == 3 and missing:
                self._checks["L3/device"] = lambda: _fail(missing)
                return
            for case in graphs:
                id = f"L{level}/{case.name}"
                self._checks[id] = functools.partial(run_graph, case)
                self._cases[id] = case
                if case.batch and level > 1:
                    self._batches.setdefault(f"L{level} {case.batch}", []).append(id)
            for made in programs:
                self._checks[f"L{level}/{made.name}"] = functools.partial(run_handmade, made)
        self._checks["L3/memory/copies"] = self._copies
        self._checks["L3/memory/time"] = self._timed
        self._checks["L3/api/arrays"] = self._through_arrays
        for claim in claims(self.capabilities):
            self._checks[f"L3/claim/{claim}"] = functools.partial(self._claimed, claim)

    def _dtypes(self) -> list[DType]:
        caps = self.capabilities
        return [d for d in ARRAY_DTYPES if caps.storage.get(d.name) and caps.arithmetic.get(d.name)]

    # -- running --------------------------------------------------------------------------------------------

    def _run(self, id: str) -> Result:
        try:
            self._checks[id]()
        except Exception as error:  # whatever a plugin raises is the result
            text = str(error)
            plain = text and isinstance(error, AssertionError)
            return self._judged(id, text if plain else f"{type(error).__name__}: {text}")
        return self._judged(id, "")

    def _judged(self, id: str, fault: str) -> Result:
        """Note the result of a check: what the manifest declares decides whether a failure counts."""
        known = [k for k in self._known() if fnmatchcase(id, k.test)]
        if fault:
            result = Result(id, KNOWN, known[0].reason) if known else Result(id, FAILED, _shortened(fault))
        elif known:
            result = Result(
                id, UNEXPECTED, f"the manifest declares {known[0].test!r} to fail: {known[0].reason}"
            )
        else:
            result = Result(id, PASSED)
        self._results[id] = result
        return result

    def _known(self) -> Sequence[Any]:
        return self.plugin.manifest.known_failures if self.plugin.manifest is not None else ()

    def _unmatched(self) -> list[Result]:
        """Return a failure for each declaration that names no check of the levels that were run."""
        return [
            Result(
                f"known_failures/{k.test}",
                FAILED,
                "the manifest declares this failure, and no check has such a name",
            )
            for k in self._known()
            if int(k.test[1:2] or 0) <= self.level
            and not any(fnmatchcase(id, k.test) for id in self._results)
        ]

    def _run_batch(self, level: str, ids: Sequence[str]) -> None:
        """Run graph cases of one batch as one graph; when anything is wrong, leave them to be run alone."""
        case = self._together(ids)
        with contextlib.suppress(Exception):  # each case is run alone then, and says what is wrong
            (self._compile_case if level == "L2" else self._execute_case)(case)
            for id in ids:
                self._judged(id, "")

    def _together(self, ids: Sequence[str]) -> Case:
        """Return one case that computes what those of a batch do."""
        graphs = [self._cases[id].make() for id in ids]
        graph = Graph(
            tuple(r for g in graphs for r in g.roots), {b: v for g in graphs for b, v in g.data.items()}
        )
        return Case(self._cases[ids[0]].batch, lambda: graph)

    def _compile_ahead(self) -> None:
        """Compile what the checks will ask for, on all cores; failures show again in their checks."""
        alone = [case for id, case in self._cases.items() if id.startswith("L2/") and not case.batch]
        together = [self._together(ids) for batch, ids in self._batches.items() if batch.startswith("L2 ")]
        programs: list[Program] = []
        for case in (*alone, *together):
            with contextlib.suppress(Exception):
                programs += self._programs(case)

        def compile(program: Program) -> None:
            with contextlib.suppress(Exception):
                self._compile(program)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(compile, programs))

    # -- levels 1 and 2 -------------------------------------------------------------------------------------

    def _programs(self, case: Case) -> list[Program]:
        graph = case.make()
        found = []
        for _, kernel in pipeline.lower_graph(list(graph.roots)):
            schedule = self._schedule(case, kernel)
            caps = self.capabilities
            found.append(linearize(apply_schedule(kernel, schedule, caps.tensor_cores), caps))
        if case.kernels and len(found) != case.kernels:
            raise AssertionError(f"fusion makes {len(found)} kernels of it, expected {case.kernels}")
        return found

    def _schedule(self, case: Case, kernel: Kernel) -> Schedule:
        if case.schedule:
            text = (
                case.schedule if "thread" in self.capabilities.axis_kinds else case.schedule.replace(":t", "")
            )
            return parse_schedule(text)
        if case.seed:
            return legal_schedule(kernel, case.seed, self.capabilities)[0]
        return pipeline.schedule_for(kernel, self.tools)

    def _render_case(self, case: Case) -> None:
        for program in self._programs(case):
            self._render(program)

    def _render_program(self, made: Handmade) -> None:
        self._render(made.program)

    def _render(self, program: Program) -> None:
        tools = self.tools
        source = emit(program, tools.renderer, tools.hooks, provenance=True)
        again = emit(program, tools.renderer, tools.hooks)
        _require(source.text == again.text, f"{program.name} is rendered differently the second time")
        _require(program.name in source.text, f"the entry {program.name} does not occur in the text")
        lines = source.text.splitlines()
        _require(
            len(source.provenance) == len(lines),
            f"{len(source.provenance)} provenance records for {len(lines)} lines of {program.name}",
        )
        for line, record in zip(lines, source.provenance, strict=True):
            written = record.hook and (record.plugins or record.position < 0)
            _require(written, f"nobody wrote the line {line!r} of {program.name}")

    def _compile_case(self, case: Case) -> None:
        for program in self._programs(case):
            self._compile(program)

    def _compile_program(self, made: Handmade) -> None:
        self._compile(made.program)

    def _compile(self, program: Program) -> Binary:
        source: Source = emit(program, self.tools.renderer, self.tools.hooks)
        found = self._binaries.get(source.text)
        if found is None:
            found = self.tools.compiler.compile(source)
            _require(found.data, f"the binary of {program.name} is empty")
            _require(
                found.entry == program.name,
                f"the binary's entry is {found.entry!r}, expected {program.name!r}",
            )
            _require(not found.log.strip(), f"the compiler says: {found.log}")
            self._binaries[source.text] = found
        return found

    # -- level 3 --------------------------------------------------------------------------------------------

    def _execute_case(self, case: Case) -> None:
        graph = case.make()
        expected, bounds = evaluate(graph.roots, graph.data)
        choose: Choose = lambda kernel: self._schedule(case, kernel)  # noqa: E731
        done = execute(graph.roots, graph.data, self.device, choose, self._compile)
        if case.kernels:
            _require(
                len(done.kernels) == case.kernels, f"{len(done.kernels)} kernels, expected {case.kernels}"
            )
        for n, (root, values, right, bound) in enumerate(
            zip(graph.roots, done.values, expected, bounds, strict=True)
        ):
            wrong = mismatches(values, right, bound)
            if (
                root.dtype.kind == "float"
                and root.op in ops.ALU_OPS - _FREE_ZEROS
                and root.op not in ops.COMPARISONS
            ):
                same = np.signbit(wide(values)) == np.signbit(wide(right))
                wrong |= (wide(right) == 0) & (wide(values) == 0) & (bound == 0) & ~same
            if wrong.any():
                at = tuple(int(i) for i in np.argwhere(wrong)[0])
                operands = ", ".join(
                    f"{graph.data[s][at]!r}"
                    for s in root.src
                    if s in graph.data and graph.data[s].shape == wrong.shape
                )
                raise AssertionError(
                    f"output {n} ({root.op}): {int(wrong.sum())} of {wrong.size} elements are wrong; at {at}"
                    f"{' of ' + operands if operands else ''} it is {values[at]!r}, "
                    f"expected {right[at]!r} within {bound[at]:.3g}"
                )
        for program in done.programs:
            self._executed |= features(program)
        for kernel in done.kernels:
            used = {u.src[-1].dtype.name for u in kernel.nodes if u.op in ops.ALU_OPS and u.src}
            self._executed |= {f"arithmetic:{name}" for name in used}

    def _execute_program(self, made: Handmade) -> None:
        self._compare_program(made)
        self._executed |= features(made.program)

    def _compare_program(self, made: Handmade) -> None:
        values = run_program(made.program, made.inputs, self.device, self._compile)
        expected = run_program(made.program, made.inputs, registry.device("numpy").name)
        for n, (found, right) in enumerate(zip(values, expected, strict=True)):
            bound = np.zeros(right.shape)
            if made.ulps:
                dtype = [p.dtype for p in made.program.uops if p.op is ops.PARAM and p.arg[2]][n]
                bound = np.where(
                    np.isfinite(wide(right)), spacing(np.abs(wide(right)), dtype) * (made.ulps + 0.5), 0.0
                )
            wrong = mismatches(found, right, bound)
            if wrong.any():
                at = int(np.argwhere(wrong)[0][0])
                inputs = ", ".join(f"{x[at]!r}" for x in made.inputs if x.shape == found.shape)
                raise AssertionError(
                    f"output {n}: at {at} of {inputs} it is {found[at]!r}, expected {right[at]!r}"
                )

    def _copies(self) -> None:
        """Bytes that are copied in come out again, from several allocations at once."""
        on = pipeline.runtime(self.device)
        rng = np.random.default_rng(0)
        blocks = [rng.integers(0, 256, n).astype(np.uint8) for n in (1, 3, 64, 4097, 1 << 20)]
        handles = [on.allocate(b.nbytes) for b in blocks]
        try:
            for handle, block in zip(handles, blocks, strict=True):
                on.copy_in(handle, block.data)
            on.synchronize()
            for handle, block in zip(handles, blocks, strict=True):
                out = np.zeros_like(block)
                on.copy_out(out.data, handle)
                _require(np.array_equal(out, block), f"{block.nbytes} bytes come back different")
        finally:
            for handle in handles:
                on.free(handle)

    def _timed(self) -> None:
        made = next(p for p in handmade(self.capabilities) if p.name == "hook/define_register")
        from ..runtime import buffers

        out = buffers.allocate(24, self.device)
        source = buffers.data_of(buffers.from_numpy(made.inputs[0], self.device))
        seconds = (
            pipeline.runtime(self.device).load(self._compile(made.program)).time([out.handle, source.handle])
        )
        _require(0 <= seconds < 60, f"a launch takes {seconds} s")

    def _through_arrays(self) -> None:
        """The public way: arrays on the device, a softmax, and NumPy's values back."""
        from .. import array as rt

        x: Values = np.random.default_rng(0).standard_normal((6, 21)).astype(np.float32)
        found = np.asarray(rt.softmax(rt.asarray(x, device=self.device), axis=1))
        right = np.exp(x.astype(np.float64))
        right /= right.sum(1, keepdims=True)
        _require(np.allclose(found, right, rtol=1e-5), f"a softmax is off by {np.abs(found - right).max()}")

    def _claimed(self, claim: str) -> None:
        for id in self._checks:
            if id.startswith("L3/") and not id.startswith("L3/claim/"):
                self.result(id)
        _require(claim in self._executed, f"the capabilities claim {claim}, and no check that passed uses it")

    def _unclaimed(self) -> Iterator[str]:
        """Yield what works on the device although the capabilities do not claim it."""
        caps = self.capabilities
        narrow = [
            d.name for d in ARRAY_DTYPES if d.kind == "float" and d.bits < 32 and caps.storage.get(d.name)
        ]
        for name in narrow:
            if name not in caps.conversions:
                with contextlib.suppress(Exception):  # what does not work was not claimed
                    for made in conversion(name, caps):
                        self._compare_program(made)
                    yield f"conversion:{name}"
        from .matrix import _elementwise

        for dtype in ARRAY_DTYPES:
            if dtype not in self._dtypes():
                case = next(c for c in _elementwise(dtype) if c.name.startswith(("alu/ADD", "alu/OR")))
                with contextlib.suppress(Exception):
                    self._execute_case(case)
                    yield f"arithmetic:{dtype.name}"


def _require(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _fail(message: str) -> None:
    raise AssertionError(message)


def _shortened(text: str) -> str:
    lines = text.splitlines()
    return "\n".join(lines[:12]) + ("\n..." if len(lines) > 12 else "")


def run(name: str, level: int = 3, report: str | Path | None = None, progress: bool = True) -> Report:
    """Hold a backend to the conformance suite.

    Parameters
    ----------
    name
        A backend, a target or a device.
    level
        The highest level to run, 0 to 3.
    report
        Where to write the report as JSON, with a summary in Markdown beside it.
    progress
        Whether to show a progress bar on a terminal.

    Returns
    -------
    Report
        Its `passed` says whether all is well, and its `check()` raises `ConformanceError` if not.
    """
    suite = Suite(name, level)
    if progress:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(f"conformance of {suite.target}", total=len(suite.ids()))
            made = suite.report(lambda result: bar.advance(task))
    else:
        made = suite.report()
    if report is not None:
        made.write(report)
    return made
