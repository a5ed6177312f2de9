"""The distribution: what the wheel contains, that backends are separable, imports, scripts and the README."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [ROOT / folder for folder in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
BACKENDS = sorted(path.parent for path in ROOT.glob("*/*/retarget_*/plugin.toml"))


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    result = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, so that the working tree is not written to."""
    source = tmp_path_factory.mktemp("source") / "retarget"
    ignore = shutil.ignore_patterns(".*", "__pycache__", "out", "build", "dist")
    shutil.copytree(ROOT, source, ignore=ignore)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", source.parent, cwd=source)
    (path,) = source.parent.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel alone into a folder."""
    folder = tmp_path_factory.mktemp("site")
    _install(wheel, folder)
    return folder


def _install(what: Path, folder: Path) -> None:
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
        "--disable-pip-version-check", "--target", folder, what,
    )  # fmt: skip


def in_environment(folder: Path, code: str) -> str:
    """Run code with the packages in a folder in front of whatever else is installed."""
    script = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    return run(sys.executable, "-c", script, cwd=folder, RETARGET_CACHE="0")


# The wheel --------------------------------------------------------------------------------------------------


def test_every_backend_in_the_tree_is_packaged_and_registered() -> None:
    assert [path for path in PACKAGES if path.name != "retarget"] != []
    assert sorted(path for path in PACKAGES if path.name != "retarget") == BACKENDS
    entries = PROJECT["project"]["entry-points"]
    values = {**entries["retarget.backends"], **entries.get("retarget.plugins", {})}
    assert sorted(values.values()) == sorted(f"{path.name}:plugin.toml" for path in BACKENDS)
    for path in BACKENDS:
        manifest = tomllib.loads((path / "plugin.toml").read_text())
        assert values[manifest["name"]] == f"{path.name}:plugin.toml"
    tools = PROJECT["tool"]
    names = {path.name for path in PACKAGES}
    assert set(tools["mypy"]["packages"]) == set(tools["importlinter"]["root_packages"]) == names
    folders = {str(path.parent.relative_to(ROOT)) for path in PACKAGES}
    assert set(tools["mypy"]["mypy_path"]) == set(tools["pyright"]["extraPaths"]) == folders


def test_the_wheel_has_every_file_of_every_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    wanted = {
        str(path.relative_to(package.parent))
        for package in PACKAGES
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= names
    assert {"retarget/py.typed", "retarget/runtime/pool.ll", "retarget/cli/page.html"} <= names
    assert {f"{path.name}/plugin.toml" for path in BACKENDS} <= names
    tops = {name.partition("/")[0] for name in names}
    assert tops == {path.name for path in PACKAGES} | {n for n in tops if n.endswith(".dist-info")}


def test_the_wheel_declares_its_entry_points(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        text = archive.read(name).decode()
    assert "retarget = retarget.cli:main" in text
    for line in PROJECT["project"]["entry-points"]["retarget.backends"].items():
        assert " = ".join(line) in text
    assert "[pytest11]" in text


def test_versions_agree() -> None:
    import retarget

    assert PROJECT["project"]["version"] == retarget.__version__


def test_an_installed_wheel_lists_its_backends_and_runs(installed: Path) -> None:
    out = in_environment(
        installed,
        "import retarget, numpy as np; from retarget import registry\n"
        "print(retarget.__file__)\n"
        "print(*[f'{p.name}={p.location}' for p in registry.plugins() if 'retarget_' in str(p.location)])\n"
        "x = retarget.asarray(np.arange(4, dtype='f4'), device='llvm')\n"
        "print(np.asarray(x * 2 + 1))\n",
    )
    where, plugins, values = out.splitlines()
    assert where.startswith(str(installed))
    for path in BACKENDS:
        assert f"{installed}/{path.name}/plugin.toml" in plugins
    assert values == "[1. 3. 5. 7.]"


# Separable backends -----------------------------------------------------------------------------------------

_OWN_PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "stranger"
version = "7.0"

[project.entry-points."retarget.backends"]
{name} = "{package}:plugin.toml"

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""


def test_a_backend_can_be_lifted_out_of_the_tree(wheel: Path, tmp_path: Path) -> None:
    backend = ROOT / "backends/clang/retarget_clang"
    manifest = tomllib.loads((backend / "plugin.toml").read_text())
    project = tmp_path / "stranger"
    shutil.copytree(backend, project / backend.name, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "pyproject.toml").write_text(_OWN_PROJECT.format(name=manifest["name"], package=backend.name))
    site = tmp_path / "site"
    _install(wheel, site)
    shutil.rmtree(site / backend.name)
    (entries,) = site.glob("*.dist-info/entry_points.txt")
    entries.write_text(re.sub(r"^clang = .*\n", "", entries.read_text(), flags=re.M))
    _install(project, site)
    origin, module, text = in_environment(site, _RENDER_WITH_THE_STRANGER).split("\n", 2)
    assert origin == f"stranger 7.0 {site}/retarget_clang/plugin.toml"
    assert module.startswith(str(site)) and "for (int" in text


# A registry of its own: in the process's registry, the copy and the backend in the tree would be in conflict.
_RENDER_WITH_THE_STRANGER = """
import numpy as np, retarget as rt
from retarget import registry
from retarget.codegen.driver import emit
from retarget.linearize.linearize import linearize
from retarget.optimize.apply import apply_schedule
from retarget.optimize.schedule import parse_schedule
table = registry.Registry(path=[sys.path[0]])
print(table.plugin("clang").origin, table.plugin("clang").location)
backend, target = table.backend("clang"), "clang/native"
print(sys.modules[type(backend).__module__].__file__)
(kernel,) = rt.lower(rt.asarray(np.ones(100, "f4"), device="numpy") * 2)
program = linearize(apply_schedule(kernel, parse_schedule("")), backend.capabilities(target))
print(emit(program, backend.renderer(target), table.hooks(target)).text)
"""


def test_the_import_contracts_hold() -> None:
    script = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert script is not None, "import-linter is not installed: pip install '.[test]'"
    out = run(script, "--no-cache")
    assert re.search(r"\b0 broken", out)


def test_importing_brings_no_plugin_and_nothing_heavy() -> None:
    heavy = {"llvmlite", "pluggy", "click", "rich", "ml_dtypes", "platformdirs", "packaging", "cffi"}
    code = "import sys, retarget; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    loaded = set(run(sys.executable, "-c", code).split())
    assert not loaded & heavy
    assert not {name for name in loaded if name.startswith("retarget_")}


# Scripts and README -----------------------------------------------------------------------------------------


def test_the_scripts_are_the_commands_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = [line for block in re.findall(r"```sh\n(.*?)```", readme, re.S) for line in block.splitlines()]
    assert "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/retarget demo" in commands
    assert "bash .ci/test" in commands
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("bash .ci/test")
    for script in sorted((ROOT / ".ci").iterdir()):
        run("bash", "-n", script)


def test_the_readme_links_to_what_exists() -> None:
    readme = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)#]+)\)", readme)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_readme_example_prints_what_it_says() -> None:
    readme = (ROOT / "README.md").read_text()
    found = re.search(r"```python\n(.*?)```.*?```text\n(.*?)```", readme, re.S)
    assert found is not None
    code, printed = found.groups()
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    assert run(sys.executable, "-c", code) == printed
