"""A temporary site directory with real distributions, and a fresh Python that sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import retarget

CORE = Path(retarget.__file__).parents[1]
IN_TREE = "llvm,numpy,clang"  # if Retarget is installed, its own backends are there too

BACKEND = """\
from retarget.registry import Backend, Capabilities, DeviceInfo, Entry, Probe, Support

class {cls}(Backend):
    name = {name!r}
    def probe(self):
        return Probe((DeviceInfo({name!r} + ":0", {name!r} + "/v1", "a fake device", 1 << 30),))
    def capabilities(self, target):
        yes = Entry(Support.SUPPORTED)
        return Capabilities(target, storage={{"float32": yes}}, arithmetic={{"float32": yes}})
    def renderer(self, target):
        return object()
    def compiler(self, target):
        raise NotImplementedError("a fake device compiles nothing")
    def runtime(self, device):
        raise NotImplementedError("a fake device runs nothing")
"""


@dataclass
class Site:
    """A site directory.  `install` writes what pip would have: a package and its dist-info."""

    directory: Path

    def install(
        self,
        name: str,
        *,
        code: str | None = None,
        before: str = "",
        after: str = "",
        manifest: Mapping[str, Any] | None = None,
        manifest_text: str | None = None,
        distribution: str | None = None,
        package: str | None = None,
        version: str = "1.2.3",
        kind: str = "backend",
        requires: str = "",
        directory: Path | None = None,
    ) -> Path:
        """Install a plugin; return its package's directory.

        `code` is its module (by default a working backend), between `before` and `after`; `manifest` has
        keys that replace those of a right manifest, `manifest_text` replaces it ("" for none at all).
        """
        root = directory or self.directory
        distribution = distribution or f"{name}-dist"
        package = package or f"{name}_plugin"
        home = root / package
        home.mkdir(parents=True)
        (home / "__init__.py").write_text("")
        body = BACKEND.format(cls="Plugin", name=name) if code is None else textwrap.dedent(code)
        (home / "plugin.py").write_text(textwrap.dedent(before) + body + textwrap.dedent(after))
        if manifest_text is None:
            keys: dict[str, Any] = {
                "name": name,
                "kind": kind,
                "api": ">=1,<2",
                "ir": "1",
                "provides": f"{package}.plugin:Plugin",
                "priority": 10,
            }
            if kind == "backend":
                keys |= {"targets": [f"{name}/*"], "default_target": f"{name}/v1"}
            keys |= manifest or {}
            # JSON's strings, numbers, booleans and lists are also TOML's
            manifest_text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        if manifest_text:
            (home / "plugin.toml").write_text(manifest_text)
        group = "retarget.backends" if kind == "backend" else "retarget.plugins"
        self.dist_info(root, distribution, version, f"[{group}]\n{name} = {package}:plugin.toml\n", requires)
        return home

    @staticmethod
    def dist_info(root: Path, distribution: str, version: str, entry_points: str, requires: str = "") -> None:
        info = root / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{requires}"
        )
        (info / "entry_points.txt").write_text(entry_points)
        (info / "INSTALLER").write_text("pip\n")

    def run(self, code: str, *path: Path, **environment: str) -> Any:
        """Run code in a fresh Python that imports from here (or `path`); return what it gives to `answer`."""
        prelude = f"""\
            import json, site, sys, time, warnings
            for directory in {[str(each) for each in path or (self.directory,)]!r}:
                sys.path.append(directory)
                site.addsitedir(directory)
            caught = []
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, category, *rest: caught.append(str(message))
            def answer(value):
                print("ANSWER" + json.dumps(value))
            def ask(function, *arguments):
                try:
                    return str(function(*arguments))
                except Exception as error:
                    cause = error.__cause__
                    return [type(error).__name__, str(error), repr(cause) if cause is not None else ""]
            import retarget.registry as registry
            """
        ours = {key: value for key, value in os.environ.items() if not key.startswith("RETARGET_")}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(code)],
            env={**ours, "PYTHONPATH": str(CORE), "RETARGET_PLUGINS_DISABLE": IN_TREE, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        lines = [line[6:] for line in done.stdout.splitlines() if line.startswith("ANSWER")]
        assert len(lines) == 1, done.stdout + done.stderr
        return json.loads(lines[0])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site directory with one distribution that works: backend "fakecpu", of high priority."""
    made = Site(tmp_path / "site-packages")
    made.install("fakecpu", manifest={"priority": 500})
    return made
