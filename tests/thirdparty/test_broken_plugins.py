"""Packages that are broken in every way that we could think of, installed for real.

In each case importing works, other devices work, and asking for the broken one tells whose fault it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

# What every case asks: the states, a working device, and the broken one, twice.
QUESTIONS = """
    listed = {p.name: p.state.value for p in registry.plugins()}
    imported = [name for name in sys.modules if name.partition(".")[0].endswith("_plugin")]
    cpu = registry.device("fakecpu").name
    first = ask(registry.device, "bad")
    second = ask(registry.device, "bad:0")
    devices = [d.name for d in registry.devices()]
    bad = next(p for p in registry.plugins() if p.name == "bad")
    answer(dict(listed=listed, imported=imported, cpu=cpu, first=first, second=second, devices=devices,
                state=bad.state.value, reason=bad.reason, traceback=bad.traceback, error=repr(bad.error)))
"""


def check(told: dict[str, Any], state: str, *texts: str, error: str = "BackendUnavailableError") -> None:
    """Assert what holds in every case, and that both answers have all texts, in the message or its cause."""
    assert told["imported"] == []  # listing imports no plugin
    assert told["cpu"] == "fakecpu:0"
    assert "fakecpu:0" in told["devices"]
    assert not any(name.startswith("bad") for name in told["devices"])
    assert told["state"] == state
    for asked in (told["first"], told["second"]):
        assert asked[0] == error
        assert "bad-dist 1.2.3" in asked[1]
        for text in texts:
            assert text in asked[1] + asked[2]


@pytest.mark.parametrize(
    ("before", "state", "texts"),
    [
        ("raise ImportError('no libfoo.so.1 here')\n", "broken", ["no libfoo.so.1 here", "ImportError"]),
        ("import sys; sys.exit(3)\n", "broken", ["SystemExit"]),
        ("raise GeneratorExit('odd')\n", "broken", ["GeneratorExit"]),
        ("def f(:\n", "broken", ["SyntaxError"]),
        ("1 / 0\n", "broken", ["ZeroDivisionError"]),
    ],
    ids=["import-error", "system-exit", "base-exception", "syntax-error", "exception"],
)
def test_import_fails(site: Any, before: str, state: str, texts: list[str]) -> None:
    site.install("bad", before=before)
    told = site.run(QUESTIONS)
    check(told, state, *texts)
    assert told["first"][2] == told["second"][2] == told["error"]
    assert "plugin.py" in told["traceback"]


def test_attribute_missing(site: Any) -> None:
    site.install("bad", code="Plugn = 1\n")
    check(site.run(QUESTIONS), "broken", "no 'Plugin'", "did you mean 'Plugn'?")


def test_provides_module_missing(site: Any) -> None:
    site.install("bad", manifest={"provides": "bad_plugin.backend:Plugin"})
    check(site.run(QUESTIONS), "broken", "bad_plugin.backend")


def test_provides_no_backend(site: Any) -> None:
    site.install("bad", code="class Plugin: pass\n")
    check(site.run(QUESTIONS), "broken", "subclass of Backend")


def test_manifest_missing(site: Any) -> None:
    site.install("bad", manifest_text="")
    check(site.run(QUESTIONS), "broken", "plugin.toml", "is missing")


def test_manifest_malformed(site: Any) -> None:
    site.install("bad", manifest_text='name = "bad\n')
    check(site.run(QUESTIONS), "broken", "not valid TOML", "line 1")


def test_manifest_names_another(site: Any) -> None:
    keys = {"name": "good", "targets": ["good/*"], "default_target": "good/v1"}
    site.install("bad", manifest=keys)
    check(site.run(QUESTIONS), "broken", "'bad'", "'good'")


def test_api_version(site: Any) -> None:
    """PLUG-04: a mismatch is skipped before any import, and both versions are named."""
    site.install("bad", manifest={"api": ">=99", "priority": 900}, before="raise RuntimeError('imported')\n")
    told = site.run(QUESTIONS)
    assert told["listed"]["bad"] == "incompatible"
    check(told, "incompatible", ">=99", "plugin API 1.0")
    warned = site.run('answer([registry.device("auto").name, registry.device("auto").name, caught])')
    assert warned[:2] == ["fakecpu:0", "fakecpu:0"]
    assert len(warned[2]) == 1 and ">=99" in warned[2][0] and "bad-dist 1.2.3" in warned[2][0]


def test_ir_version(site: Any) -> None:
    site.install("bad", manifest={"ir": "7"})
    check(site.run(QUESTIONS), "incompatible", "IR 7", "IR 1")


def test_initialisation_fails(site: Any) -> None:
    """PLUG-04: an error in the constructor is told each time, and does not hurt the CPU."""
    after = """\
    Plugin.__init__ = lambda self: (_ for _ in ()).throw(RuntimeError('no licence'))
    """
    site.install("bad", after=after)
    told = site.run(QUESTIONS)
    check(told, "broken", "no licence")
    assert "no licence" in told["first"][1] and "no licence" in told["second"][1]
    assert told["first"][2] == told["second"][2] == "RuntimeError('no licence')"


def test_probe_raises(site: Any) -> None:
    after = """\
    def probe(self):
        raise OSError("the driver is older than the library")
    Plugin.probe = probe
    """
    site.install("bad", after=after)
    check(site.run(QUESTIONS), "broken", "the driver is older than the library")


def test_probe_exits(site: Any) -> None:
    site.install("bad", after="Plugin.probe = lambda self: exit(1)\n")
    check(site.run(QUESTIONS), "broken", "SystemExit")


def test_probe_hangs(site: Any) -> None:
    """A probe that never answers costs the timeout once, and keeps neither the process nor other devices."""
    after = """\
    def probe(self):
        import time
        time.sleep(600)
    Plugin.probe = probe
    """
    site.install("bad", after=after)
    code = "start = time.perf_counter()\n" + QUESTIONS.replace("\n    ", "\n")
    code = code.replace("answer(dict(", "answer(dict(seconds=time.perf_counter() - start, ")
    told = site.run(code, RETARGET_PROBE_TIMEOUT="0.5")
    check(told, "unavailable", "probe did not answer in 0.5 s")
    assert 0.5 <= told["seconds"] < 3


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return None", "must return a Probe"),
        ("return Probe((DeviceInfo('other:0', 'bad/v1'),))", "'bad:NUMBER'"),
        ("return Probe((DeviceInfo('bad:0', 'other/v1'),))", "'other/v1'"),
    ],
    ids=["type", "name", "target"],
)
def test_probe_answers_nonsense(site: Any, body: str, text: str) -> None:
    site.install("bad", after=f"def probe(self):\n    {body}\nPlugin.probe = probe\n")
    check(site.run(QUESTIONS), "broken", text)


def test_no_device(site: Any) -> None:
    site.install("bad", after="Plugin.probe = lambda self: Probe(reason='no /dev/bad0; load the driver')\n")
    told = site.run(QUESTIONS)
    check(told, "unavailable", "load the driver")
    # rendering and compiling need no device
    assert site.run('answer(registry.backend("bad").name)') == "bad"


@pytest.mark.parametrize(
    ("requires", "advice"),
    [
        ("Provides-Extra: gpu\nRequires-Dist: nosuchlib>=2; extra == 'gpu'\n", "pip install 'bad-dist[gpu]'"),
        ("Requires-Dist: nosuchlib>=2\n", "pip install 'nosuchlib'"),
        ("", "nosuchlib"),
    ],
    ids=["extra", "required", "undeclared"],
)
def test_dependency_missing(site: Any, requires: str, advice: str) -> None:
    site.install("bad", before="import nosuchlib.core\n", requires=requires)
    told = site.run(QUESTIONS)
    check(told, "unavailable", "'nosuchlib", advice)
    assert "ModuleNotFoundError" in told["first"][2]


def test_slow_import(site: Any) -> None:
    """Neither listing nor using another device pays for a slow import; asking for its own device does."""
    site.install("bad", before="import time; time.sleep(2)\n")
    code = """
    start = time.perf_counter()
    names = [p.name for p in registry.plugins()]
    auto = registry.device("auto").name
    quick = time.perf_counter() - start
    slow = registry.device("bad").name
    answer([names, auto, quick, slow, time.perf_counter() - start])
    """
    names, auto, quick, slow, total = site.run(code)
    assert "bad" in names and auto == "fakecpu:0" and slow == "bad:0"
    assert quick < 1 and total >= 2


@pytest.mark.parametrize("kind", ["backend", "extension"])
@pytest.mark.parametrize("first", ["a", "b"])
def test_duplicate_name(site: Any, tmp_path: Path, first: str, kind: str) -> None:
    """Two distributions claim a name: an error that names both, whatever the order of the path."""
    sites = {letter: tmp_path / letter for letter in "ab"}
    for letter, directory in sites.items():
        package = f"{letter}_bad_plugin"
        site.install("bad", kind=kind, distribution=f"{letter}-dist", package=package, directory=directory)
    order = [sites[first], *(each for letter, each in sites.items() if letter != first)]
    code = """
    bad = [(p.distribution, p.state.value) for p in registry.plugins() if p.name == "bad"]
    load = ask(registry.registry().plugin("bad").load)
    answer([bad, ask(registry.device, "bad") if KIND == "backend" else load, registry.device("auto").name])
    """.replace("KIND", repr(kind))
    bad, asked, auto = site.run(code, *order, site.directory)
    assert bad == [["a-dist", "broken"], ["b-dist", "broken"]]
    assert asked[0] == "PluginError" and "a-dist 1.2.3" in asked[1] and "b-dist 1.2.3" in asked[1]
    assert auto == "fakecpu:0"


def test_misspelt_hook(site: Any) -> None:
    code = """\
    from retarget.codegen.hooks import hookimpl
    class Plugin:
        @hookimpl
        def render_laod(self, ctx, uop, operands):
            return None
    """
    site.install("bad", kind="extension", code=code, manifest={"targets": ["fakecpu/*"]})
    code = """
    hooks = registry.hooks("fakecpu/v1")
    plugin = registry.registry().plugin("bad")
    answer([plugin.state.value, ask(plugin.load), ask(plugin.load), caught, registry.device("fakecpu").name])
    """
    state, first, second, warned, cpu = site.run(code)
    assert state == "broken" and cpu == "fakecpu:0"
    assert first == second and first[0] == "PluginError"
    assert "'render_laod'" in first[1] and "did you mean 'render_load'?" in first[1]
    assert len(warned) == 1 and "bad-dist 1.2.3" in warned[0]
    # an extension that was asked for by name is not left out
    named = site.run('answer(ask(registry.hooks, "fakecpu/v1"))', RETARGET_PLUGINS="fakecpu,bad")
    assert named[0] == "PluginError" and "did you mean 'render_load'?" in named[1]


def test_asks_while_it_is_imported(site: Any) -> None:
    site.install("bad", before="import retarget.registry\nretarget.registry.device('bad')\n")
    check(site.run(QUESTIONS), "broken", "while it was being imported")


def test_metadata_of_a_stranger_is_malformed(site: Any) -> None:
    site.install("bad", before="raise ImportError('x')\n")
    site.dist_info(site.directory, "stranger", "0.1", "[console_scripts]\nthis is not an entry point\n")
    check(site.run(QUESTIONS), "broken", "ImportError")


def test_plug_01(site: Any) -> None:
    """PLUG-01: an ImportError, a SystemExit and a missing attribute at once; only the askers hear of it."""
    site.install("one", before="raise ImportError('libone is missing')\n")
    site.install("two", before="raise SystemExit('two gives up')\n")
    site.install("three", code="")
    code = """
    asked = {name: ask(registry.device, name) for name in ("one", "two", "three")}
    answer([asked, [d.name for d in registry.devices() if d.name.startswith("fake")]])
    """
    asked, devices = site.run(code)
    assert devices == ["fakecpu:0"]
    for name, cause in (("one", "libone is missing"), ("two", "two gives up"), ("three", "no 'Plugin'")):
        kind, text, chained = asked[name]
        assert kind == "BackendUnavailableError"
        assert f"{name}-dist 1.2.3" in text and cause in text and cause in chained
