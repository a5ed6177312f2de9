"""Finding distributions: the same as `importlib.metadata` finds, also where it is asked."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.registry.distributions import GROUPS, distributions, parse_entry_points

ENTRY_POINTS = "[retarget.backends]\nvcpu = vcpu_plugin:plugin.toml\n"
METADATA = "Metadata-Version: 2.1\nName: A-Name.of_it\nVersion: 1.0+local\n\nName: not this\n"

lines = st.one_of(
    st.sampled_from(["[retarget.backends]", "[retarget.plugins]", "[console_scripts]", " [ x ]"]),
    st.sampled_from(["a = p:plugin.toml", "b=q:r=s", "  c = t [extra]  ", "d.e = u # kept", "= v", "f ="]),
    st.sampled_from(["", "   ", "# retarget.backends", "; x", "[", "]", "[]", "no separator"]),
)


@given(st.lists(lines, max_size=8).map("\n".join))
def test_entry_points(text: str) -> None:
    class Distribution(importlib.metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            return text

        def locate_file(self, path: Any) -> Path:
            raise NotImplementedError

    if not any(group in text for group in GROUPS):
        assert parse_entry_points(text) == []
        return
    try:
        expected = [(e.group, e.name, e.value) for e in Distribution().entry_points if e.group in GROUPS]
    except (TypeError, ValueError):
        with pytest.raises(ValueError, match="not an entry point"):
            parse_entry_points(text)
    else:
        assert parse_entry_points(text) == expected


def make(folder: Path, metadata: str | bytes | None = METADATA, name: str = "METADATA") -> Path:
    folder.mkdir(parents=True)
    (folder / "entry_points.txt").write_text(ENTRY_POINTS)
    if metadata is not None:
        (folder / name).write_bytes(metadata.encode() if isinstance(metadata, str) else metadata)
    return folder


def found(*path: Path) -> list[tuple[str, str]]:
    return [(each.name, each.version) for each in distributions([str(each) for each in path])]


@pytest.mark.parametrize(
    ("folder", "file"),
    [("a_name-1.0.dist-info", "METADATA"), ("a.egg-info", "PKG-INFO"), ("a.egg/EGG-INFO", "PKG-INFO")],
)
def test_kinds_of_folders(tmp_path: Path, folder: str, file: str) -> None:
    info = make(tmp_path / folder, name=file)
    (entry,) = distributions([str(info.parent)])
    assert (entry.name, entry.version) == ("A-Name.of_it", "1.0+local")
    assert entry.entry_points == (("retarget.backends", "vcpu", "vcpu_plugin:plugin.toml"),)
    assert entry.locate(Path("vcpu_plugin", "plugin.toml")) == info.parent / "vcpu_plugin" / "plugin.toml"
    assert entry.metadata().metadata["Name"] == "A-Name.of_it"


def test_zip_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "site.zip", "w") as archive:
        archive.writestr("a-1.0.dist-info/METADATA", METADATA)
        archive.writestr("a-1.0.dist-info/entry_points.txt", ENTRY_POINTS)
    assert found(tmp_path / "site.zip") == [("A-Name.of_it", "1.0+local")]


def test_finders_of_other_packages_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = make(tmp_path / "hidden" / "a-1.0.dist-info")

    class Finder:
        @staticmethod
        def find_spec(*_: object) -> None:
            return None

        @staticmethod
        def find_distributions(*_: object) -> list[importlib.metadata.Distribution]:
            return [importlib.metadata.PathDistribution(info)]

    assert found(tmp_path) == []
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert found(tmp_path) == [("A-Name.of_it", "1.0+local")]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("Name: x\n", ("x", "unknown")),
        ("Version: 2\n", ("unknown", "2")),
        ("NAME:x\nversion:  2\n", ("x", "2")),
        ("Name: x\nName: y\nVersion: 2\n", ("x", "2")),
        (None, ("unknown", "unknown")),
        (b"Name: \xff\nVersion: 2\n", ("unknown", "unknown")),
    ],
)
def test_damaged_metadata(tmp_path: Path, metadata: str | bytes | None, expected: tuple[str, str]) -> None:
    make(tmp_path / "a-1.dist-info", metadata)
    assert found(tmp_path) == [expected]


def test_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "file.egg-info").write_text(METADATA)
    (make(tmp_path / "bad-1.dist-info") / "entry_points.txt").write_bytes(b"[retarget.backends]\n\xff = x")
    (make(tmp_path / "odd-1.dist-info") / "entry_points.txt").write_text("[retarget.backends]\nvcpu\n")
    (make(tmp_path / "none-1.dist-info") / "entry_points.txt").unlink()
    assert found(tmp_path, tmp_path / "missing") == []


def test_the_first_on_the_path_counts(tmp_path: Path) -> None:
    make(tmp_path / "one" / "a-1.dist-info", "Name: a\nVersion: 1\n")
    make(tmp_path / "two" / "a-2.dist-info", "Name: a\nVersion: 2\n")
    assert found(tmp_path / "two", tmp_path / "one") == [("a", "2")]
