"""The manifest format, and the manifests of the backends in this repository."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from retarget.errors import ParseError
from retarget.registry import API_VERSION, IR_VERSION
from retarget.registry.manifest import KnownFailure, parse_manifest, read_manifest

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEEL: dict[str, Any] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
PACKAGES = {Path(each).name: ROOT / each for each in WHEEL["packages"]}
ENTRY_POINTS: dict[str, str] = {
    name: value
    for group in ("retarget.backends", "retarget.plugins")
    for name, value in PYPROJECT["project"]["entry-points"].get(group, {}).items()
}

GOOD = """\
name = "mydevice"
kind = "backend"
api = ">=1,<2"
ir = "1"
provides = "mydevice.backend:Backend"
targets = ["mydevice/*"]
default_target = "mydevice/v1"
"""


# The backends in this repository ----------------------------------------------------------------------------


def test_every_manifest_in_the_tree_is_an_entry_point_of_the_wheel() -> None:
    manifests = [*ROOT.glob("plugins/*/*/plugin.toml"), *ROOT.glob("backends/*/*/plugin.toml")]
    declared = [value.split(":") for value in ENTRY_POINTS.values()]
    assert set(manifests) == {PACKAGES[package] / resource for package, resource in declared}


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_manifest_in_the_tree(name: str) -> None:
    package, _, resource = ENTRY_POINTS[name].partition(":")
    manifest = read_manifest(PACKAGES[package] / resource)
    assert manifest.name == name
    assert manifest.incompatibility(API_VERSION, IR_VERSION) == ""
    module, _, _ = manifest.provides.partition(":")
    top, *rest = module.split(".")
    assert top == package
    file = PACKAGES[top].joinpath(*rest)
    assert file.with_suffix(".py").is_file() or (file / "__init__.py").is_file()


@pytest.mark.parametrize(
    ("name", "provides", "target", "priority"),
    [
        ("llvm", "retarget_llvm.backend:LLVMBackend", "llvm/native", 50),
        ("clang", "retarget_clang.backend:ClangBackend", "clang/native", 40),
        ("cuda", "retarget_cuda.backend:CudaBackend", "cuda/sm_90a", 80),
        ("numpy", "retarget_numpy.backend:NumpyBackend", "numpy/uops", 0),
    ],
)
def test_cpu_backends(name: str, provides: str, target: str, priority: int) -> None:
    package, _, resource = ENTRY_POINTS[name].partition(":")
    manifest = read_manifest(PACKAGES[package] / resource)
    assert (manifest.provides, manifest.targets) == (provides, (f"{name}/*",))
    assert (manifest.default_target, manifest.priority) == (target, priority)


# The format -------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    manifest = parse_manifest(GOOD)
    assert (manifest.name, manifest.kind) == ("mydevice", "backend")
    assert manifest.provides == "mydevice.backend:Backend"
    assert (manifest.priority, manifest.before, manifest.after, manifest.opt_in) == (0, (), (), False)
    assert manifest.known_failures == ()
    assert manifest.matches("mydevice/v2") and not manifest.matches("other/v1")


def test_every_key() -> None:
    text = """\
    name = "watch"
    kind = "extension"
    api = "~=1.0"
    ir = "1"
    provides = "watch:Watch"
    priority = 3
    targets = ["cuda/*", "hip/*"]
    before = ["check"]
    after = ["log", "trace"]
    opt_in = true

    [conformance]
    known_failures = [
      { test = "L3/exp/*", reason = "flushes denormals" },
    ]
    """
    manifest = parse_manifest(text)
    assert manifest.targets == ("cuda/*", "hip/*") and manifest.opt_in and manifest.priority == 3
    assert manifest.before == ("check",) and manifest.after == ("log", "trace")
    assert manifest.known_failures == (KnownFailure("L3/exp/*", "flushes denormals"),)


def test_an_extension_is_for_all_targets_unless_it_says_otherwise() -> None:
    text = 'name = "x"\nkind = "extension"\napi = ">=1"\nir = "1"\nprovides = "x:y"\n'
    assert parse_manifest(text).matches("any/thing")


@pytest.mark.parametrize(
    ("old", "new", "texts"),
    [
        ('kind = "backend"', 'kind = "backend', ["not valid TOML", "line 2", "^"]),
        ('kind = "backend"', 'kind = "device"', ["'kind'", "'backend' or 'extension'", "'device'", "line 2"]),
        ('kind = "backend"', "", ["'kind' is missing"]),
        ('name = "mydevice"', 'name = "My Device"', ["'name'", "lower-case"]),
        ('name = "mydevice"', "name = 3", ["'name'", "non-empty string", "not 3"]),
        ('api = ">=1,<2"', 'api = "one"', ["'api'", "version specifier", "'one'"]),
        ('ir = "1"', "ir = 1", ["'ir'", "non-empty string", "line 4"]),
        ("mydevice.backend:Backend", "mydevice.backend", ["'provides'", "'module:object'"]),
        ('targets = ["mydevice/*"]', 'targets = ["*"]', ["'targets'", "'mydevice/*'"]),
        ('targets = ["mydevice/*"]', 'targets = "mydevice/*"', ["'targets'", "list of strings"]),
        ('default_target = "mydevice/v1"', "", ["'default_target'", "it is missing"]),
        ('default_target = "mydevice/v1"', 'default_target = "mydevice"', ["'default_target'"]),
        ('ir = "1"', 'ir = "1"\npriorty = 3', ["'priorty'", "did you mean 'priority'?", "line 5", "^"]),
        ('ir = "1"', 'ir = "1"\npriority = "high"', ["'priority'", "an integer", "'high'"]),
        ('ir = "1"', 'ir = "1"\npriority = true', ["'priority'", "an integer"]),
        ('ir = "1"', 'ir = "1"\nopt_in = 1', ["'opt_in'", "true or false"]),
        ('ir = "1"', 'ir = "1"\nbefore = [1]', ["'before'", "list of strings"]),
        ('ir = "1"', 'ir = "1"\nconformance = 1', ["'conformance'", "a table"]),
        ('ir = "1"', 'ir = "1"\nconformance.known = []', ["'conformance.known'", "known: known_failures"]),
        (
            'ir = "1"',
            'ir = "1"\nconformance = { known_failures = [{ test = "x" }] }',
            ["'conformance.known_failures'", "reason"],
        ),
        (
            'ir = "1"',
            'ir = "1"\nconformance = { known_failures = [{ test = "x", reason = "" }] }',
            ["'conformance.known_failures.reason'", "non-empty"],
        ),
    ],
)
def test_wrong(old: str, new: str, texts: list[str]) -> None:
    assert old in GOOD
    with pytest.raises(ParseError) as caught:
        parse_manifest(GOOD.replace(old, new), "somewhere/plugin.toml")
    for text in ["somewhere/plugin.toml", *texts]:
        assert text in str(caught.value)


def test_only_backends_have_a_default_target() -> None:
    with pytest.raises(ParseError, match="'default_target' must be nothing"):
        parse_manifest(GOOD.replace('kind = "backend"', 'kind = "extension"'))


def test_versions_are_both_named() -> None:
    manifest = parse_manifest(GOOD.replace(">=1,<2", ">=99"))
    reason = manifest.incompatibility("1.0", "1")
    assert ">=99" in reason and "1.0" in reason
    reason = parse_manifest(GOOD).incompatibility("1.0", "2")
    assert "IR 1" in reason and "IR 2" in reason


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "plugin.toml"
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(ParseError, match="not UTF-8"):
        read_manifest(path)
