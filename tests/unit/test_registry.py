"""Device selection and hooks of a registry: the plugins' metadata is real, their modules are made here."""

from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from retarget.codegen.hooks import hookimpl
from retarget.errors import BackendUnavailableError, DeviceError, PluginError, UnknownNameError
from retarget.registry import (
    Backend,
    Capabilities,
    Compiler,
    DeviceInfo,
    Entry,
    PluginWarning,
    Probe,
    Registry,
    Runtime,
    State,
    Support,
    TensorCore,
)

YES = Entry(Support.SUPPORTED)
EMULATED = Entry(Support.EMULATED, "through float32")
NO = Entry(Support.UNSUPPORTED, "no such unit")
CORE = TensorCore("mma", (16, 16, 16), "bfloat16", "float32", 32, (), (), ())


class Renderer:
    """What a backend renders with."""

    @hookimpl
    def render_load(self, ctx: Any, uop: Any, operands: Any) -> str:
        return "plain"


class Fake(Backend):
    """A backend that is told what to find."""

    name = ""
    found: tuple[DeviceInfo, ...] = ()
    capability: Mapping[str, Any] = {}
    probes = 0
    delay = 0.0

    def probe(self) -> Probe:
        type(self).probes += 1
        time.sleep(self.delay)
        return Probe(self.found, "nothing plugged in")

    def capabilities(self, target: str) -> Capabilities:
        keys: dict[str, Any] = {"storage": {"float32": YES}, "arithmetic": {"float32": YES}}
        return Capabilities(target, **(keys | dict(self.capability)))

    def renderer(self, target: str) -> Any:
        return Renderer()

    def compiler(self, target: str) -> Compiler:
        raise NotImplementedError("a fake backend compiles nothing")

    def runtime(self, device: str) -> Runtime:
        raise NotImplementedError("a fake backend runs nothing")


class Installed:
    """Metadata in a directory, and modules in sys.modules."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def backend(
        self, name: str, priority: int = 0, devices: int = 1, memory: int = 0, **more: Any
    ) -> type[Fake]:
        found = tuple(DeviceInfo(f"{name}:{n}", f"{name}/v{n}", memory=memory << n) for n in range(devices))
        provided = type("Provided", (Fake,), {"name": name, "found": found, **more})
        targets = f'targets = ["{name}/*"]\ndefault_target = "{name}/v0"\npriority = {priority}\n'
        self._install(name, "backend", "backends", provided, targets)
        return provided

    def extension(self, name: str, provided: object, more: str = "") -> None:
        self._install(name, "extension", "plugins", provided, more)

    def _install(self, name: str, kind: str, group: str, provided: object, more: str) -> None:
        module = types.ModuleType(f"fake_{name}")
        module.Provided = provided  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module
        package = self.directory / module.__name__
        package.mkdir()
        (package / "plugin.toml").write_text(
            f'name = "{name}"\nkind = "{kind}"\napi = ">=1,<2"\nir = "1"\n'
            f'provides = "{module.__name__}:Provided"\n{more}'
        )
        info = self.directory / f"{name}_dist-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-dist\nVersion: 1.0\n")
        entry_point = f"{name} = {module.__name__}:plugin.toml"
        (info / "entry_points.txt").write_text(f"[retarget.{group}]\n{entry_point}\n")

    def registry(self, **environment: str) -> Registry:
        return Registry([str(self.directory)], environment)


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installed]:
    yield Installed(tmp_path)
    for name in [name for name in sys.modules if name.startswith("fake_")]:
        del sys.modules[name]


# Devices ----------------------------------------------------------------------------------------------------


def test_devices_come_in_order_of_priority(installed: Installed) -> None:
    installed.backend("low", 1)
    installed.backend("none", 200, devices=0)
    installed.backend("high", 100, devices=2)
    registry = installed.registry()
    assert [device.name for device in registry.devices()] == ["high:0", "high:1", "low:0"]
    assert registry.device().name == registry.device("auto").name == "high:0"
    assert registry.device("high").name == "high:0"
    assert registry.device("high:1").name == "high:1"
    assert registry.device("low").target == "low/v0"


def test_auto_probes_no_more_than_it_needs(installed: Installed) -> None:
    low, high = installed.backend("low", 1), installed.backend("high", 2)
    registry = installed.registry()
    assert registry.device("auto").name == "high:0" and registry.device("auto").name == "high:0"
    assert (low.probes, high.probes) == (0, 1)


def test_a_reference_is_taken_only_when_it_is_alone(installed: Installed) -> None:
    installed.backend("llvm", 50, devices=0)
    installed.backend("clang", 40)
    installed.backend("numpy", 0)
    assert installed.registry().device("auto").name == "clang:0"
    assert installed.registry(RETARGET_PLUGINS_DISABLE="clang").device("auto").name == "numpy:0"


def test_a_device_asked_for_by_name_is_never_another(installed: Installed) -> None:
    installed.backend("low", 1)
    installed.backend("none", 200, devices=0)
    registry = installed.registry()
    with pytest.raises(BackendUnavailableError, match=r"none-dist 1\.0 is unavailable: nothing plugged in"):
        registry.device("none")
    with pytest.raises(UnknownNameError, match="unknown device 'low:1'; known: low:0"):
        registry.device("low:1")
    with pytest.raises(UnknownNameError, match="did you mean 'low'"):
        registry.device("loww")


def test_nothing_is_ready(installed: Installed) -> None:
    installed.backend("none", devices=0)
    with pytest.raises(DeviceError, match="none: unavailable: nothing plugged in"):
        installed.registry().device()


def test_unavailable_is_skipped_silently_and_broken_with_one_warning(
    installed: Installed, recwarn: pytest.WarningsRecorder
) -> None:
    installed.backend("good", 1)
    installed.backend("absent", 3, devices=0)
    registry = installed.registry()
    registry.device("auto")
    assert not recwarn.list

    installed.backend("bad", 2, __init__=lambda self: 1 / 0)
    registry = installed.registry()
    skipped = r"'bad' of bad-dist 1\.0 is broken and skipped, using good:0"
    with pytest.warns(PluginWarning, match=skipped) as caught:
        registry.device("auto")
        registry.device("auto")
    assert len(caught) == 1


def test_default_device(installed: Installed) -> None:
    installed.backend("a", 1)
    installed.backend("b", 2)
    installed.backend("c", 3)
    registry = installed.registry(RETARGET_DEVICE="b")
    assert registry.device().name == "b:0"
    registry.set_default_device("a")
    assert registry.device().name == "a:0"
    with registry.default_device("c") as device:
        assert device.name == registry.device().name == "c:0"
        seen: list[str] = []
        thread = threading.Thread(target=lambda: seen.append(registry.device().name))
        thread.start()
        thread.join()
        assert seen == ["a:0"]  # only in this thread
        with registry.default_device("b"):
            assert registry.device().name == "b:0"
    assert registry.device().name == "a:0"
    registry.set_default_device(None)
    assert registry.device().name == "b:0"
    for setter in (registry.set_default_device, lambda name: registry.default_device(name).__enter__()):
        with pytest.raises(UnknownNameError):
            setter("d")  # type: ignore[operator]
    assert registry.device().name == "b:0"


def test_environment_device_is_named_in_the_error(installed: Installed) -> None:
    installed.backend("none", devices=0)
    with pytest.raises(BackendUnavailableError) as caught:
        installed.registry(RETARGET_DEVICE="none").device()
    assert any("RETARGET_DEVICE" in note for note in caught.value.__notes__)


def test_threads_probe_once(installed: Installed) -> None:
    fake = installed.backend("slow", delay=0.1)
    registry = installed.registry()
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(registry.device("slow").name)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["slow:0"] * 8 and fake.probes == 1


# Requirements -----------------------------------------------------------------------------------------------


def selection(installed: Installed) -> Registry:
    both = {"float32": YES, "bfloat16": YES}
    installed.backend("big", 30, devices=2, memory=1 << 30)
    bf16 = {"storage": both, "arithmetic": both, "tensor_cores": (CORE,)}
    installed.backend("cores", 20, memory=1 << 20, capability=bf16)
    soft = {"storage": both, "arithmetic": {"float32": YES, "bfloat16": EMULATED}}
    installed.backend("soft", 10, capability=soft)
    installed.backend("absent", 5, devices=0)
    return installed.registry()


@pytest.mark.parametrize(
    ("requirements", "name"),
    [
        ({}, "big:0"),
        ({"dtypes": ["bfloat16"]}, "cores:0"),
        ({"dtypes": ["bfloat16"], "prefer": ["soft"]}, "soft:0"),
        ({"tensor_cores": True}, "cores:0"),
        ({"tensor_cores": True, "dtypes": ["bfloat16"]}, "cores:0"),
        ({"memory": 3 << 29}, "big:1"),
        ({"memory": 1 << 25, "prefer": ["cores"]}, "big:0"),
        ({"prefer": ["nowhere", "soft", "cores"]}, "soft:0"),
        ({"prefer": ["big:1", "soft"]}, "big:1"),
        ({"target": "soft/*"}, "soft:0"),
    ],
)
def test_select(installed: Installed, requirements: dict[str, Any], name: str) -> None:
    assert selection(installed).select(**requirements).name == name


def test_select_says_why_not_for_each(installed: Installed) -> None:
    with pytest.raises(DeviceError) as caught:
        selection(installed).select(dtypes=["bfloat16"], tensor_cores=True, memory=1 << 21)
    text = str(caught.value)
    assert "big:0: no bfloat16 storage" in text and "big:1: no bfloat16 storage" in text
    assert f"cores:0: {1 << 20} bytes of memory, {1 << 21} wanted" in text
    assert "soft:0: memory of unknown size" in text
    assert "absent: unavailable: nothing plugged in" in text


def test_select_gives_the_reason_of_a_capability(installed: Installed) -> None:
    half = {"arithmetic": {"float32": YES, "float16": NO}, "storage": {"float16": YES}}
    installed.backend("plain", capability=half)
    with pytest.raises(DeviceError, match=r"no float16 arithmetic \(no such unit\)"):
        installed.registry().select(dtypes=["float16"])


def test_select_survives_a_backend_that_cannot_tell(installed: Installed) -> None:
    installed.backend("good", 1)
    installed.backend("bad", 2, capabilities=lambda self, target: 1 / 0)
    registry = installed.registry()
    assert registry.select(dtypes=["float32"]).name == "good:0"
    with pytest.raises(DeviceError, match="bad:0: its capabilities are unknown: ZeroDivisionError"):
        registry.select(dtypes=["float64"])


def test_select_unknown_dtype(installed: Installed) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'bfloat16'"):
        installed.registry().select(dtypes=["bfloat61"])


# Backends and targets ---------------------------------------------------------------------------------------


def test_backend_needs_no_device(installed: Installed) -> None:
    provided = installed.backend("none", devices=0)
    registry = installed.registry()
    backend = registry.backend("none")
    assert isinstance(backend, provided) and registry.backend("none") is backend
    assert provided.probes == 0
    with pytest.raises(UnknownNameError, match="unknown backend 'nine'"):
        registry.backend("nine")


def test_targets(installed: Installed) -> None:
    installed.backend("cuda")
    registry = installed.registry()
    assert registry.target("cuda") == "cuda/v0"
    assert registry.target("cuda/sm_90a") == "cuda/sm_90a"
    with pytest.raises(UnknownNameError, match=r"unknown target 'cude'.*did you mean 'cuda'"):
        registry.target("cude/sm_90a")


def test_a_backend_must_have_the_name_of_its_manifest(installed: Installed) -> None:
    installed.backend("one").name = "two"
    with pytest.raises(BackendUnavailableError, match=r"must be 'one'.*not 'two'"):
        installed.registry().backend("one")


def test_explain(installed: Installed) -> None:
    installed.backend("chosen", 5)
    installed.backend("lower", 1)
    installed.backend("absent", 9, devices=0)
    installed.backend("bad", 3, __init__=lambda self: 1 / 0)
    installed.extension("watch", types.SimpleNamespace(), 'targets = ["cuda/*"]\n')
    rows = {row.name: row for row in installed.registry().explain_devices()}
    assert list(rows) == ["absent", "chosen", "bad", "lower", "watch"]
    assert [row.name for row in rows.values() if row.chosen] == ["chosen"]
    assert rows["chosen"].state is State.READY and rows["chosen"].devices[0].name == "chosen:0"
    assert rows["lower"].verdict == "chosen has priority 5, this one 1"
    assert rows["absent"].verdict == rows["absent"].reason == "nothing plugged in"
    assert rows["bad"].state is State.BROKEN and "ZeroDivisionError" in rows["bad"].traceback
    assert rows["bad"].distribution == "bad-dist" and rows["bad"].version == "1.0"
    assert rows["watch"].state is State.READY and rows["watch"].verdict == "extends cuda/*"

    rows = {row.name: row for row in installed.registry(RETARGET_DEVICE="lower").explain_devices()}
    assert rows["lower"].chosen and rows["chosen"].verdict == "lower was asked for by name"


# Hooks ------------------------------------------------------------------------------------------------------


class Wrap:
    """An extension that writes its name around every load."""

    def __init__(self, name: str) -> None:
        self.name = name

    @hookimpl(wrapper=True)
    def render_load(self) -> Any:
        return f"{self.name}({(yield)})"


def load(registry: Registry, target: str) -> str:
    text: str = registry.hooks(target).chain("render_load", "LOAD", "float32")(None, None, ())
    return text


def test_extensions_are_ordered(installed: Installed) -> None:
    installed.backend("cpu")
    installed.backend("gpu")
    installed.extension("a", Wrap("a"))
    installed.extension("b", Wrap("b"), 'before = ["a", "nowhere"]\n')
    installed.extension("c", Wrap("c"), 'targets = ["gpu/*"]\n')
    installed.extension("d", Wrap("d"), 'after = ["e"]\n')
    installed.extension("e", Wrap("e"))
    registry = installed.registry()
    assert load(registry, "cpu/v0") == "b(a(e(d(plain))))"
    assert load(registry, "gpu/v0") == "b(a(c(e(d(plain)))))"
    steps = registry.hooks("cpu").explain("render_load")
    assert [(step.plugin, step.wrapper) for step in steps][-2:] == [("d", True), ("cpu", False)]
    assert registry.hooks("cpu/v0") is registry.hooks("cpu/v0")


def test_a_cycle_of_extensions(installed: Installed) -> None:
    installed.backend("cpu")
    installed.extension("a", Wrap("a"), 'before = ["b"]\n')
    installed.extension("b", Wrap("b"), 'before = ["a"]\n')
    with pytest.raises(PluginError, match=r"cannot be ordered.*(a before b|b before a)"):
        installed.registry().hooks("cpu/v0")


def test_register_in_the_process(installed: Installed) -> None:
    installed.backend("cpu")
    registry = installed.registry()
    assert load(registry, "cpu/v0") == "plain"
    before = registry.hooks("cpu/v0").identity()
    registry.register(Wrap("x"), "x", targets=("cpu/*",))
    assert load(registry, "cpu/v0") == "x(plain)"
    assert registry.hooks("cpu/v0").identity() != before
    for name in ("x", "cpu"):
        with pytest.raises(PluginError, match="exists already"):
            registry.register(Wrap("y"), name)
    registry.unregister("x")
    assert load(registry, "cpu/v0") == "plain"
    assert registry.epoch == 2
    with pytest.raises(UnknownNameError):
        registry.unregister("x")


def test_a_renderer_with_a_misspelt_hook(installed: Installed) -> None:
    class Misspelt:
        @hookimpl
        def render_stoer(self, ctx: Any) -> str:
            return ""

    installed.backend("cpu", renderer=lambda self, target: Misspelt())
    with pytest.raises(PluginError, match=r"cpu-dist 1\.0.*'render_stoer'.*'render_store'"):
        installed.registry().hooks("cpu/v0")


def test_listing_imports_nothing(installed: Installed) -> None:
    """Twenty plugins are listed, and none of their packages is imported."""
    for number in range(20):
        installed.backend(f"b{number}")
    registry = installed.registry()
    before = set(sys.modules)
    assert len(registry.plugins()) == 20
    imported = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert not imported & {plugin.manifest.provides.partition(":")[0].partition(".")[0]
                           for plugin in registry.plugins() if plugin.manifest}  # fmt: skip
    assert all(plugin.state is State.DISCOVERED for plugin in registry.plugins())
