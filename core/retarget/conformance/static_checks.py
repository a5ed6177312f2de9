"""Level 0: what a plugin says about itself, and that importing and probing it is harmless.

Every check returns quietly or raises `AssertionError` with what is wrong; none needs a device.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from .. import registry
from ..codegen.hooks import HookPlugin, check_plugin
from ..ir.dtypes import ARRAY_DTYPES
from ..ir.ops import OPS
from ..optimize.schedule import AXIS_KINDS
from ..registry.capabilities import Capabilities, Support
from ..registry.plugins import Plugin

#: Modules that importing a backend must not bring in: they are imported when they are used.
HEAVY = ("llvmlite", "cffi", "torch", "jax", "tensorflow", "cupy", "scipy", "pandas", "rich", "click")
IMPORT_SECONDS = 2.0
PROBE_SECONDS = 5.0

_PROGRAM = """
import contextlib, io, json, sys, time
import retarget.registry, retarget.codegen.hooks, retarget.codegen.cfamily, numpy
before = set(sys.modules)
said = io.StringIO()
with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
    start = time.perf_counter()
    plugin = retarget.registry.registry().plugin({name!r})
    backend = plugin.load()
    imported = time.perf_counter() - start
    new = sorted(m for m in set(sys.modules) - before if "." not in m)
    start = time.perf_counter()
    plugin.probe()
    probed = time.perf_counter() - start
print(json.dumps(dict(new=new, said=said.getvalue(), imported=imported, probed=probed,
state=plugin.state.value, reason=plugin.reason, devices=[d.name for d in plugin.devices])))
"""


def level0(plugin: Plugin, target: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the name and the function of each check of level 0."""
    observed: dict[str, object] = {}

    def observe() -> dict[str, object]:
        if not observed:
            observed.update(_observe(plugin.name))
        return observed

    yield "manifest/valid", lambda: _manifest(plugin)
    yield "manifest/targets", lambda: _targets(plugin, target)
    yield (
        "import/quiet",
        lambda: _require(not observe()["said"], f"it prints when imported or probed: {observe()['said']}"),
    )
    yield "import/light", lambda: _light(observe())
    yield "import/quick", lambda: _within(observe(), "imported", IMPORT_SECONDS)
    yield "probe/bounded", lambda: _within(observe(), "probed", PROBE_SECONDS)
    yield "probe/answer", lambda: _probe(observe())
    yield "capabilities/dtypes", lambda: _dtypes(_capabilities(plugin, target))
    yield "capabilities/functions", lambda: _functions(_capabilities(plugin, target))
    yield "capabilities/axes", lambda: _axes(_capabilities(plugin, target))
    yield "capabilities/reasons", lambda: _reasons(_capabilities(plugin, target))
    yield "capabilities/target", lambda: _own_target(_capabilities(plugin, target), target)
    yield "hooks/valid", lambda: _hooks(plugin, target)
    yield "identity/stable", lambda: _identity(plugin, target)


def _require(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _observe(name: str) -> dict[str, object]:
    """Import and probe a plugin in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(name=name)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    _require(done.returncode == 0, f"importing it in a new process fails:\n{done.stderr}")
    _require(not done.stderr, f"it writes to standard error when imported or probed: {done.stderr}")
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    found["said"] = f"{found['said']}{''.join(done.stdout.splitlines()[:-1])}"
    return found


def _capabilities(plugin: Plugin, target: str) -> Capabilities:
    found: Capabilities = plugin.load().capabilities(target)
    return found


def _manifest(plugin: Plugin) -> None:
    _require(plugin.manifest is not None, f"its manifest cannot be read: {plugin.reason}")
    assert plugin.manifest is not None
    fault = plugin.manifest.incompatibility(registry.API_VERSION, registry.IR_VERSION)
    _require(not fault, fault)
    for known in plugin.manifest.known_failures:
        _require(known.reason.strip(), f"the known failure {known.test!r} has no reason")


def _targets(plugin: Plugin, target: str) -> None:
    assert plugin.manifest is not None
    _require(
        plugin.manifest.matches(target),
        f"{target} is none of its targets {', '.join(plugin.manifest.targets)}",
    )
    _require(
        all(
            fnmatchcase(t, f"{plugin.name}/*")
            for t in (*plugin.manifest.targets, plugin.manifest.default_target)
        ),
        f"a target does not begin with {plugin.name}/",
    )


def _light(observed: dict[str, object]) -> None:
    new = observed["new"]
    assert isinstance(new, list)
    heavy = [m for m in HEAVY if m in new]
    _require(not heavy, f"importing it imports {', '.join(heavy)}; import them where they are used")


def _within(observed: dict[str, object], what: str, limit: float) -> None:
    seconds = observed[what]
    assert isinstance(seconds, float)
    _require(seconds < limit, f"it took {seconds:.2f} s, more than {limit:g} s")


def _probe(observed: dict[str, object]) -> None:
    _require(
        observed["state"] == "ready" or observed["reason"],
        f"its state is {observed['state']} and it gives no reason",
    )


def _dtypes(caps: Capabilities) -> None:
    known = {d.name for d in ARRAY_DTYPES}
    for what, table in (("storage", caps.storage), ("arithmetic", caps.arithmetic)):
        unknown = sorted(set(table) - known)
        _require(not unknown, f"{what} names {', '.join(unknown)}, which are no dtypes")
        missing = sorted(known - set(table))
        _require(
            not missing,
            f"{what} says nothing of {', '.join(missing)}; Support.UNSUPPORTED with a reason will do",
        )
    stray = [d for d, e in caps.arithmetic.items() if e and not caps.storage[d]]
    _require(not stray, f"it computes in {', '.join(stray)} but cannot store them")
    unknown = sorted(caps.conversions - known)
    _require(not unknown, f"conversions names {', '.join(unknown)}, which are no dtypes")


def _functions(caps: Capabilities) -> None:
    known = {d.name for d in ARRAY_DTYPES}
    for name, table in caps.functions.items():
        op = OPS.get(name)
        _require(op is not None and op.group == "alu", f"functions names {name}, which is no elementwise op")
        for dtype, ulps in table.items():
            _require(dtype in known, f"functions has {name} of {dtype}, which is no dtype")
            _require(0 <= ulps < 1e6, f"the accuracy of {name} of {dtype} is {ulps} ULP")


def _axes(caps: Capabilities) -> None:
    unknown = sorted(caps.axis_kinds - set(AXIS_KINDS.values()))
    _require(
        not unknown, f"axis_kinds names {', '.join(unknown)}; the kinds are {', '.join(AXIS_KINDS.values())}"
    )
    _require("loop" in caps.axis_kinds, "axis_kinds has no loop")
    spaces = sorted(caps.address_spaces - {"global", "local", "register", "constant"})
    _require(not spaces, f"address_spaces names {', '.join(spaces)}")
    _require({"global", "register"} <= caps.address_spaces, "address_spaces needs global and register")
    _require(caps.vector_bits % 8 == 0 and caps.vector_bits >= 0, f"vector_bits is {caps.vector_bits}")
    _require(caps.threads >= 1, f"threads is {caps.threads}")
    _require(caps.registers > 0, f"registers is {caps.registers}")


def _reasons(caps: Capabilities) -> None:
    tables = {
        "storage": caps.storage,
        "arithmetic": caps.arithmetic,
        "": {"barriers": caps.barriers, "images": caps.images},
    }
    silent = [
        f"{table} {name}".strip()
        for table, entries in tables.items()
        for name, entry in entries.items()
        if entry.support is not Support.SUPPORTED and not entry.reason
    ]
    _require(not silent, f"no reason is given for {', '.join(silent)}")


def _own_target(caps: Capabilities, target: str) -> None:
    """A target may be resolved to a more exact one ("native" to a CPU), of the same backend."""
    backend = target.partition("/")[0]
    _require(
        caps.target.partition("/")[0] == backend,
        f"the capabilities are those of {caps.target!r}, not of {target!r}",
    )


def _hooks(plugin: Plugin, target: str) -> None:
    check_plugin(HookPlugin(plugin.name, plugin.load().renderer(target), plugin.distribution, plugin.version))


def _identity(plugin: Plugin, target: str) -> None:
    first, second = (plugin.load().compiler(target).identity() for _ in range(2))
    _require(
        first and first == second,
        f"the compiler's identity is {first!r}, then {second!r}; it is part of cache keys",
    )
