"""What a new process imports when it finds its kernels in the cache, and that its keys are still right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retarget import pipeline
from retarget.codegen.hooks import hookimpl
from retarget.registry import Registry
from retarget.registry.files import files_identity

SOFTMAX = """
import numpy as np, retarget as rt
x = np.linspace(-3, 3, 64, dtype="f4").reshape(4, 16)
y = np.asarray(rt.softmax(rt.asarray(x, device="llvm"), axis=1))
e = np.exp(x - x.max(axis=1, keepdims=True))
assert np.allclose(y, e / e.sum(axis=1, keepdims=True), rtol=1e-5)
"""
NOT_ON_WARM_STARTS = (
    "llvmlite", "pluggy", "packaging", "email", "importlib.metadata", "platformdirs",
    "retarget.codegen.hooks", "retarget.codegen.legalize", "retarget.linearize", "retarget.optimize",
    "retarget.schedule", "retarget_clang", "retarget_llvm.renderer", "retarget_numpy",
)  # fmt: skip


def modules_after(code: str, cache: Path) -> set[str]:
    """Run code in a new process and return the names of all modules that it imported."""
    code += "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RETARGET_", "COV"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "RETARGET_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return set(json.loads(done.stdout))


def test_a_warm_start_lowers_nothing(tmp_path: Path) -> None:
    cold = modules_after(SOFTMAX, tmp_path / "cache")
    assert {"retarget.schedule", "retarget_llvm.renderer"} <= cold
    warm = modules_after(SOFTMAX, tmp_path / "cache")
    assert "retarget_llvm.backend" in warm
    assert [name for name in NOT_ON_WARM_STARTS if name in warm] == []


def test_importing_retarget_asks_for_no_plugin(tmp_path: Path) -> None:
    names = modules_after("import retarget", tmp_path / "cache")
    wrong = ("retarget_", "retarget.registry", "retarget.runtime", "retarget.pipeline", "pluggy", "llvmlite")
    assert [name for name in sorted(names) if name.startswith(wrong)] == []


# Files ------------------------------------------------------------------------------------------------------


def test_files_identity_changes_with_every_file(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    for name in ("a.py", "plugin.toml", "inner/b.py"):
        (package / name).write_text("x = 1\n")
    seen = [files_identity([str(package)])]

    (package / "inner" / "b.py").write_text("x = 12\n")
    seen.append(files_identity([str(package)]))
    os.utime(package / "plugin.toml", ns=(1, 1))
    seen.append(files_identity([str(package)]))
    (package / "c.py").write_text("")
    seen.append(files_identity([str(package)]))
    (package / "a.py").unlink()
    seen.append(files_identity([str(package)]))
    (package / "c.py").rename(package / "inner" / "c.py")
    seen.append(files_identity([str(package)]))
    assert len(set(seen)) == len(seen)

    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.pyc").write_bytes(b"code")
    (package / ".a.py.swp").write_bytes(b"an editor's")
    (package / "dangling").symlink_to("nothing")
    assert files_identity([str(package)]) == seen[-1]
    moved = package.rename(tmp_path / "elsewhere")
    assert files_identity([str(moved)]) == seen[-1]


def test_every_file_of_the_core_counts() -> None:
    core = Path(pipeline.__file__).parent
    told = {line.rsplit(" ", 2)[0] for line in pipeline.code_identity().splitlines()}
    files = {str(path.relative_to(core)) for path in core.rglob("*.py")}
    assert files and files <= told


# Plugins ----------------------------------------------------------------------------------------------------

BACKEND = """
from retarget.registry import Backend

class Renderer:
    def identity(self):
        return "the renderer's own"

class Plugin(Backend):
    name = "warm"
    def probe(self): raise NotImplementedError
    def capabilities(self, target): raise NotImplementedError
    def renderer(self, target): return Renderer()
    def compiler(self, target): raise NotImplementedError
    def runtime(self, device): raise NotImplementedError
"""
EXTENSION = """
from retarget.codegen.hooks import hookimpl

class Plugin:
    @hookimpl
    def on_compiled(self, kernel, source, binary):
        return None
"""


class Site:
    """A directory with a backend "warm" and an extension "tuner", on sys.path."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        targets = 'targets = ["warm/*"]\ndefault_target = "warm/v1"\n'
        self.install("warm", "backend", "backends", BACKEND, targets)
        self.install("tuner", "extension", "plugins", EXTENSION, 'targets = ["warm/*"]\n')

    def install(self, name: str, kind: str, group: str, code: str, more: str) -> None:
        package = self.directory / f"warm_start_{name}"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "helper.py").write_text("x = 1\n")
        (package / "plugin.py").write_text(code)
        (package / "plugin.toml").write_text(
            f'name = "{name}"\nkind = "{kind}"\napi = ">=1,<2"\nir = "1"\n'
            f'provides = "{package.name}.plugin:Plugin"\n{more}'
        )
        info = self.directory / f"warm_start_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: warm-start-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[retarget.{group}]\n{name} = {package.name}:plugin.toml\n")

    def registry(self, **environment: str) -> Registry:
        return Registry([str(self.directory)], environment)

    def file(self, plugin: str, name: str) -> Path:
        return self.directory / f"warm_start_{plugin}" / name


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Site(tmp_path)
    for name in [name for name in sys.modules if name.startswith("warm_start_")]:
        del sys.modules[name]


def test_identity_names_the_plugins_without_importing_extensions(site: Site) -> None:
    text = site.registry().identity("warm")
    assert "the renderer's own" in text
    assert "warm-start-warm 1.0" in text and "warm-start-tuner 1.0" in text
    assert "warm_start_tuner" not in sys.modules


@pytest.mark.parametrize("plugin", ["warm", "tuner"])
@pytest.mark.parametrize("name", ["plugin.toml", "helper.py", "plugin.py"])
def test_editing_a_plugin_changes_the_identity(site: Site, plugin: str, name: str) -> None:
    before = site.registry().identity("warm")
    assert site.registry().identity("warm") == before
    file = site.file(plugin, name)
    file.write_text(file.read_text() + "\n# edited\n")
    assert site.registry().identity("warm") != before


def test_extensions_count_where_they_apply(site: Site) -> None:
    everything = site.registry().identity("warm")
    assert site.registry(RETARGET_PLUGINS_DISABLE="tuner").identity("warm") != everything
    manifest = site.file("tuner", "plugin.toml")
    manifest.write_text(manifest.read_text().replace("warm/*", "other/*"))
    assert "tuner" not in site.registry().identity("warm")


def test_a_broken_extension_counts_until_it_is_known_to_be_broken(site: Site) -> None:
    file = site.file("tuner", "plugin.py")
    file.write_text("raise RuntimeError('broken')\n")
    table = site.registry()
    assert "tuner" in table.identity("warm")
    with pytest.warns(UserWarning, match="tuner"):
        table.hooks("warm")
    assert "tuner" not in table.identity("warm")


def test_extensions_of_this_process_count_by_their_code(site: Site) -> None:
    def extension(number: int) -> Any:
        class Extension:
            @hookimpl
            def on_compiled(self, kernel: Any, source: Any, binary: Any) -> None:
                print(number)

        return Extension()

    table = site.registry()
    seen = [table.identity("warm")]
    for number in (1, 2):
        table.register(extension(number), "mine")
        address = f"{id(table._registered['mine'].plugin.implementation):x}"
        seen.append(table.identity("warm").replace(address, ""))
        table.unregister("mine")
    assert len(set(seen)) == 3
    assert table.identity("warm") == seen[0]
