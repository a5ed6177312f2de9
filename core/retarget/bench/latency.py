"""What the compiler itself costs: lowering from graph to source, import, a new process, and calls seen
before.

Lowering includes everything that is not the device's compiler: fusion, schedule, linearization, verifier,
hook chains and rendering, of a shape that is new each time.  Where an interpreter has tinygrad, its
lowering of the same graphs is measured in the same run, in turn with ours.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cases import LOWERING, TINYGRAD_REFERENCE, shapes
from .timing import Timing, calls_for, interleave

if TYPE_CHECKING:
    from ..array.array import Array


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes
    ----------
    what, unit
        What was measured, and the unit of `target` ("ms" or "µs").
    timing
        Ours.
    target
        What it should be at most; None where there is no goal.
    peer
        tinygrad's, where it was measured.
    note
        What belongs to the figure.
    reference
        What the peer needed on the machine on which the target was set, in `unit`.
    """

    what: str
    unit: str
    timing: Timing
    target: float | None = None
    peer: Timing | None = None
    note: str = ""
    reference: float | None = None

    @property
    def at_reference_speed(self) -> float | None:
        """Ours, in `unit`, scaled to the speed of the machine on which the target was set; None unless the
        peer's times here and there are known."""
        if self.reference is None or self.peer is None:
            return None
        return self.in_unit(self.timing) * self.reference / self.in_unit(self.peer)

    def in_unit(self, timing: Timing) -> float:
        return timing.median * (1e3 if self.unit == "ms" else 1e6)

    def as_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "what": self.what, "unit": self.unit, "median": self.in_unit(self.timing),
            "spread": self.timing.spread, "measurements": len(self.timing.seconds), "target": self.target,
            "note": self.note,
        }  # fmt: skip
        if self.peer is not None:
            out["tinygrad"] = self.in_unit(self.peer)
            out["ratio"] = self.peer.median / self.timing.median
            out["at_reference_speed"] = self.at_reference_speed
        return out


def steps(device: str, repeat: int, tinygrad_python: str | None) -> list[tuple[str, Callable[[], list[Row]]]]:
    """Return (name, measurement) of everything that `retarget bench latency` measures."""
    return [
        ("lowering", lambda: lowering(device, repeat, tinygrad_python)),
        ("import", lambda: importing(repeat)),
        ("a new process", lambda: new_process(device, repeat)),
        ("calls", lambda: calls(device, repeat)),
    ]


# Lowering ---------------------------------------------------------------------------------------------------


def lowering(device: str, repeat: int, tinygrad_python: str | None = None) -> list[Row]:
    """Time graph to source; ours and tinygrad's in turn, a part of the repetitions each."""
    from .. import registry

    target = registry.device(device).target
    rounds = min(4, repeat) if tinygrad_python else 1
    ours: dict[str, list[float]] = {case: [] for case in LOWERING}
    theirs: dict[str, list[float]] = {case: [] for case in LOWERING}
    version = ""
    for round_ in range(rounds):
        span = range(round_ * repeat // rounds, (round_ + 1) * repeat // rounds)
        for case in LOWERING:
            for n in range(_WARM_UP):
                _lower(case, _OTHER + _WARM_UP * round_ + n, device, target)
            ours[case] += [_lower(case, n, device, target) for n in span]
        if tinygrad_python:
            version, found = _tinygrad(tinygrad_python, span)
            for case, seconds in found.items():
                theirs[case] += seconds
    return [
        Row(
            f"lower {case}", "ms", Timing(tuple(ours[case])), goal,
            Timing(tuple(theirs[case])) if theirs[case] else None,
            f"tinygrad {version}" if version else "", TINYGRAD_REFERENCE[case],
        )
        for case, (_, goal) in LOWERING.items()
    ]  # fmt: skip


_WARM_UP = 3
"""Repetitions that are not counted, each time that lowering is measured in a new process or after another
one."""

_OTHER = 1000
"""The first of their numbers, so that no counted repetition has the shapes of one of them."""

_names = iter(range(1 << 40, 1 << 41))


def _build(case: str, repetition: int, device: str) -> Array:
    """Return a case's graph over buffers that exist in name only."""
    from .. import array as rt
    from ..array.array import Array
    from ..ir import dtypes, ops
    from ..ir.uop import UOp

    operands = [
        Array(UOp(ops.BUFFER, dtypes.float32, (), (next(_names), shape, device)), device)
        for shape in shapes(case, repetition)
    ]
    build: dict[str, Callable[..., Array]] = {
        "add": lambda a, b: a + b,
        "sum": rt.sum,
        "softmax": lambda a: rt.softmax(a, axis=1),
        "matmul": lambda a, b: a @ b,
        "conv3x3": lambda a, w: rt.conv2d(a, w, padding=1),
        "layernorm": rt.layer_norm,
    }
    return build[case](*operands)


def _lower(case: str, repetition: int, device: str, target: str) -> float:
    """Return the seconds from one new graph to its source."""
    from ..pipeline import lower_graph, program_of, source_of, toolchain

    tools = toolchain(target)
    graph = _build(case, repetition, device).node
    start = time.perf_counter()
    for _, kernel in lower_graph([graph]):
        source_of(program_of(kernel, tools), tools)
    return time.perf_counter() - start


def _tinygrad(python: str, repetitions: range) -> tuple[str, dict[str, list[float]]]:
    """Run tinygrad's lowering of the same shapes in its own interpreter; the first of each case warm up."""
    wanted = {
        case: [shapes(case, n) for n in [*range(_OTHER, _OTHER + _WARM_UP), *repetitions]]
        for case in LOWERING
    }
    environment = {**os.environ, "DEV": "CPU", "PARALLEL": "0", "CCACHE": "0"}
    if shutil.which("clang") is None and "CC" not in environment:  # it compiles its helpers at start
        compilers = [
            name for name in (*(f"clang-{n}" for n in range(25, 13, -1)), "cc") if shutil.which(name)
        ]
        environment["CC"] = compilers[0] if compilers else "cc"
    script = Path(__file__).with_name("tinygrad_lowering.py")
    result = subprocess.run(
        [python, str(script), str(_WARM_UP)],
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        env=environment,
    )
    if result.returncode:
        from ..errors import UserError

        last = result.stderr.strip().splitlines()[-1:]
        raise UserError(
            f"tinygrad does not run in {python}: {' '.join(last)}; leave out --tinygrad-python, or repair it"
        )
    found = json.loads(result.stdout)
    return found["version"], found["seconds"]


def find_tinygrad() -> str | None:
    """Return this interpreter if it has tinygrad."""
    import importlib.util

    return sys.executable if importlib.util.find_spec("tinygrad") else None


# Processes --------------------------------------------------------------------------------------------------

_IMPORT = """
import sys, time
import numpy
start = time.perf_counter()
import retarget
print(time.perf_counter() - start)
print(*sorted({m.partition('.')[0] for m in sys.modules}))
"""

_SOFTMAX = """
import sys, time
import numpy as np
import retarget as rt
x = rt.asarray(np.ones((1024, 1024), np.float32), device=sys.argv[1])
e = rt.exp(x - rt.max(x, axis=1, keepdims=True))
total = float(np.asarray(e / rt.sum(e, axis=1, keepdims=True))[0, 0])
end = time.time()
assert abs(total * 1024 - 1) < 1e-3, total
print(end)
print(*sorted(m for m in sys.modules if m.startswith(('retarget.linearize.place', 'llvmlite.binding'))))
"""

_NUMPY = "import time, numpy; print(time.time()); print()"


def importing(repeat: int) -> list[Row]:
    """Time `import retarget` after NumPy, in new processes, and look at what it brings along."""
    runs = [_run(_IMPORT) for _ in range(repeat)]
    heavy = {"llvmlite", "pluggy", "click", "rich", "ml_dtypes", "platformdirs"}
    loaded = {name for _, modules in runs for name in modules.split()}
    found = sorted(n for n in loaded if n in heavy or n.startswith("retarget_"))
    note = f"imports {', '.join(found)}" if found else "no plugin, no llvmlite"
    return [Row("import, beyond NumPy's own", "ms", Timing(tuple(float(s) for s, _ in runs)), 60, note=note)]


def new_process(device: str, repeat: int) -> list[Row]:
    """Time from the start of Python to a softmax's values, with a warm disk cache, and to NumPy's import
    alone."""
    with tempfile.TemporaryDirectory() as folder:
        cache = {"RETARGET_CACHE_DIR": f"{folder}/cache", "RETARGET_CACHE": "1"}
        _run(_SOFTMAX, device, environment=cache)
        ours: list[float] = []
        numpy: list[float] = []
        modules = ""
        for _ in range(repeat):
            start = time.time()
            numpy.append(float(_run(_NUMPY)[0]) - start)
            start = time.time()
            end, modules = _run(_SOFTMAX, device, environment=cache)
            ours.append(float(end) - start)
    lowered = f"imports {modules.strip()}" if modules.strip() else "nothing was lowered"
    note = f"{lowered}; NumPy's import alone: {statistics.median(numpy) * 1e3:.0f} ms"
    return [Row("softmax 1024x1024 in a new process", "ms", Timing(tuple(ours)), 150, note=note)]


def _run(script: str, *arguments: str, environment: dict[str, str] | None = None) -> tuple[str, str]:
    """Run a script in a new interpreter; return the two lines that it prints."""
    command = [sys.executable, "-c", script, *arguments]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **(environment or {})}
    )
    if result.returncode:
        from ..errors import InternalError

        raise InternalError(f"a measurement failed in its process:\n{result.stderr}")
    first, second, *_ = [*result.stdout.splitlines(), ""]
    return first, second


# Calls ------------------------------------------------------------------------------------------------------


def calls(device: str, repeat: int) -> list[Row]:
    """Time calls that were seen before: through `jit`, as a lazy expression, and of a parallel kernel."""
    return list(_calls(device, repeat))


def _calls(device: str, repeat: int) -> Iterator[Row]:
    import numpy as np

    from .. import array as rt
    from ..pipeline import with_schedule
    from ..runtime.jit import jit

    x = rt.asarray(np.ones(64, np.float32), device=device)
    y = rt.asarray(np.ones(64, np.float32), device=device)
    captured = jit(lambda a: a * 2.0 + 1.0)
    parallel = jit(lambda a: a * 3.0 + 1.0)
    with with_schedule("r0=t/2:t,i; order=t,i"):
        parallel(x)
    functions: list[Callable[[], object]] = [
        lambda: captured(x), lambda: ((x + y) * 2.0).realize(), lambda: parallel(x),
    ]  # fmt: skip
    counts = [calls_for(f) for f in functions]
    once, lazy, threads = interleave(functions, repeat, counts)
    yield Row("call of a small kernel through rt.jit", "µs", once, 5)
    yield Row("small lazy expression, built and run", "µs", lazy, 30)
    yield Row("the same through rt.jit, in two threads", "µs", threads)
