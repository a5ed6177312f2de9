"""The disk cache: whole entries or none, whoever writes, dies or tampers; never fatal, one warning."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retarget.errors import CacheWarning, UserError
from retarget.runtime import diskcache
from retarget.runtime.diskcache import DiskCache, digest, disk_cache, parse_size

POSIX = os.name == "posix"
ROOT = POSIX and os.geteuid() == 0
VARIABLES = ("RETARGET_CACHE", "RETARGET_CACHE_DIR", "RETARGET_CACHE_SIZE", "XDG_CACHE_HOME")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has warned of nothing and opened nothing yet."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    diskcache._warned.clear()
    diskcache._opened.cache_clear()
    diskcache._user_folder.cache_clear()
    yield
    diskcache._warned.clear()
    diskcache._opened.cache_clear()
    diskcache._user_folder.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    monkeypatch.setenv("RETARGET_CACHE_DIR", str(tmp_path / "cache"))
    return disk_cache()


def files(cache: DiskCache) -> list[Path]:
    assert cache.folder is not None
    return sorted(p for p in cache.folder.rglob("*") if p.is_file())


def test_entries(cache: DiskCache) -> None:
    key = digest("a")
    assert cache.get(key, "binary") is None
    header = {"entry": "k", "arguments": [["a", 1]], "ü": None}
    cache.put(key, "binary", header, b"\0\xff" * 1000)
    cache.put(key, "lowered", {}, b"")
    assert cache.get(key, "binary") == (header, b"\0\xff" * 1000)
    assert cache.get(key, "lowered") == ({}, b"")
    assert cache.get(digest("b"), "binary") is None
    cache.put(key, "binary", {"v": 2}, b"new")
    assert cache.get(key, "binary") == ({"v": 2}, b"new")
    info = cache.info()
    assert (info["entries"], list(info["kinds"]), info["enabled"]) == (2, ["binary", "lowered"], True)
    assert info["bytes"] == sum(p.stat().st_size for p in files(cache))
    assert cache.verify() == {"checked": 2, "removed": 0}
    assert cache.clear() == 2
    assert (cache.info()["entries"], files(cache)) == (0, [])


def test_same_object_until_the_environment_changes(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk_cache() is cache
    monkeypatch.setenv("RETARGET_CACHE_SIZE", "1M")
    assert disk_cache().limit == 1 << 20


@pytest.mark.parametrize("value", ["0", "off", "No"])
def test_turned_off(cache: DiskCache, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("RETARGET_CACHE", value)
    off = disk_cache()
    off.put(digest("a"), "binary", {}, b"x")
    assert off.get(digest("a"), "binary") is None
    assert off.folder is None and not off.info()["enabled"] and "RETARGET_CACHE" in off.info()["reason"]
    assert files(cache) == []


def test_digest_separates_its_parts() -> None:
    texts = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), (b"abc",), ("",), ()]
    keys = [digest(*parts) for parts in texts]
    assert len(set(keys)) == len(keys)
    assert all(len(k) == 64 and int(k, 16) >= 0 for k in keys)


@pytest.mark.parametrize(
    ("key", "kind"), [("short", "a"), ("../" * 21 + "x", "a"), ("f" * 64, "../a"), ("f" * 64, "")]
)
def test_bad_names(cache: DiskCache, key: str, kind: str) -> None:
    with pytest.raises(ValueError, match="does not name an entry"):
        cache.get(key, kind)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("12", 12), ("3k", 3072), ("2 GiB", 2 << 30), ("1.5M", 3 << 19), ("7b", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, "X") == size


@pytest.mark.parametrize("text", ["", "many", "-1", "1X", "0x10"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(UserError, match="RETARGET_CACHE_SIZE"):
        parse_size(text, "RETARGET_CACHE_SIZE")


@pytest.mark.skipif(not POSIX, reason="modes")
def test_private(cache: DiskCache) -> None:
    cache.put(digest("a"), "binary", {}, b"x")
    assert cache.folder is not None
    for path in (cache.folder, *cache.folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


# Damage ----------------------------------------------------------------------------------------------


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(
        {
            "emptied": b"",
            "truncated": content[:middle],
            "one byte short": content[:-1],
            "extended": content + b"x",
            "zeroed": bytes(len(content)),
            "bit flipped": content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :],
            "last bit flipped": content[:-1] + bytes([content[-1] ^ 1]),
            "pickle": pickle.dumps({"a": 1}),
        }[how]
    )


HOWS = [
    "emptied",
    "truncated",
    "one byte short",
    "extended",
    "zeroed",
    "bit flipped",
    "last bit flipped",
    "pickle",
]


@pytest.mark.parametrize("how", HOWS)
def test_damage_is_detected_once_warned_of_and_repaired(cache: DiskCache, how: str) -> None:
    keys = [digest(str(i)) for i in range(3)]
    for key in keys:
        cache.put(key, "binary", {"key": key}, key.encode() * 10)
    for path in files(cache):
        damage(path, how)
    with pytest.warns(CacheWarning) as caught:
        assert [cache.get(key, "binary") for key in keys] == [None] * 3
    assert len(caught) == 1
    assert files(cache) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for key in keys:
            cache.put(key, "binary", {"key": key}, key.encode() * 10)
            assert cache.get(key, "binary") == ({"key": key}, key.encode() * 10)


@pytest.mark.parametrize("how", HOWS)
def test_verify(cache: DiskCache, how: str) -> None:
    for i in range(4):
        cache.put(digest(str(i)), "binary", {}, bytes(100))
    damage(files(cache)[0], how)
    assert cache.verify() == {"checked": 4, "removed": 1}
    assert cache.info()["entries"] == 3


def test_an_entry_under_another_name_is_none(cache: DiskCache) -> None:
    """Sources and binaries of different kernels cannot be mixed up, whoever moves the files."""
    first, second = digest("1"), digest("2")
    cache.put(first, "source", {}, b"one")
    cache.put(second, "source", {}, b"two")
    paths = {p.name[:64]: p for p in files(cache)}
    paths[second].write_bytes(paths[first].read_bytes())
    paths[first].rename(paths[first].with_suffix(".binary"))
    with pytest.warns(CacheWarning):
        assert cache.get(second, "source") is None
        assert cache.get(first, "binary") is None


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200), st.integers(0, 10_000), st.integers(1, 255), st.booleans())
def test_any_damage_is_detected(tmp_path: Path, data: bytes, where: int, change: int, cut: bool) -> None:
    cache, key = DiskCache(tmp_path / "any"), digest("k")
    (tmp_path / "any").mkdir(exist_ok=True)
    cache.put(key, "binary", {"n": 1}, data)
    (path,) = files(cache)
    content = path.read_bytes()
    where %= len(content)
    rest = b"" if cut else bytes([content[where] ^ change]) + content[where + 1 :]
    path.write_bytes(content[:where] + rest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cache.get(key, "binary") is None


WRITER = """
import hashlib, random, sys
from retarget.runtime.diskcache import disk_cache, digest
seed, rounds = int(sys.argv[1]), int(sys.argv[2])
names = [f"kernel {k} variant {v}" for k in range(8) for v in range(2)]
content = {
    (name, kind): b"".join(hashlib.sha256(f"{name} {kind} {i}".encode()).digest() for i in range(200))
    for name in names for kind in ("source", "binary")
}
order = random.Random(seed)
right = 0
print("started", flush=True)
for _ in range(rounds):
    for name in order.sample(names, len(names)):
        cache, key = disk_cache(), digest(name)
        for kind in ("source", "binary"):
            expected = {"name": name}, content[name, kind]
            if (found := cache.get(key, kind)) is None or order.random() < 0.1:
                cache.put(key, kind, *expected)
            assert found is None or found == expected, (name, kind)
        right += 1
print(right)
"""


def test_many_processes(cache: DiskCache, tmp_path: Path) -> None:
    """16 processes fill one empty cache, some are killed; then every file is damaged, and repaired."""
    environment = {**os.environ, "RETARGET_CACHE_DIR": str(tmp_path / "cache")}

    def start(seed: int, rounds: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WRITER, str(seed), str(rounds)]
        return subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    victims = random.Random(1).sample(range(16), 3)
    running = [start(seed, 10**9 if seed in victims else 15) for seed in range(16)]
    for victim in victims:
        output = running[victim].stdout
        assert output is not None and output.readline() == "started\n"
        time.sleep(0.1)
        running[victim].kill()
    for seed, process in enumerate(running):
        out, errors = process.communicate(timeout=120)
        if seed in victims:
            assert process.returncode != 0
        else:
            assert (process.returncode, out, errors) == (0, f"started\n{15 * 16}\n", "")
    assert cache.info()["entries"] == 32
    assert cache.verify()["removed"] == 0

    entries = [path for path in files(cache) if not path.name.startswith(".")]  # not remains
    for number, path in enumerate(entries):
        damage(path, HOWS[number % len(HOWS)])
    for process in [start(seed, 3) for seed in range(4)]:
        out, errors = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, f"started\n{3 * 16}\n")
        assert errors.count("CacheWarning") <= 1
    assert cache.verify() == {"checked": 32, "removed": 0}


def test_many_threads(cache: DiskCache) -> None:
    wrong: list[object] = []

    def work() -> None:
        for i in range(60):
            key, data = digest(str(i % 6)), str(i % 6).encode() * 5000
            found = cache.get(key, "binary")
            if found is not None and found != ({}, data):
                wrong.append(found)
            cache.put(key, "binary", {}, data)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(files(cache)) == 6


# Room ------------------------------------------------------------------------------------------------


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o700)
    cache = DiskCache(tmp_path / "c", limit=100_000)
    keys = [digest(str(i)) for i in range(40)]
    now = time.time()
    for i, key in enumerate(keys):
        cache.put(key, "binary", {}, bytes(4000))
        for path in files(cache):
            if path.name.startswith(key):
                os.utime(path, (now - 10_000 + i, now - 10_000 + i))
        if i == 15:
            assert cache.get(keys[0], "binary") is not None  # reading marks it as used
    assert cache.info()["bytes"] <= 100_000
    assert cache.get(keys[0], "binary") is not None
    assert cache.get(keys[1], "binary") is None
    assert cache.get(keys[-1], "binary") is not None


def test_what_is_larger_than_the_cache_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o700)
    cache = DiskCache(tmp_path / "c", limit=1000)
    cache.put(digest("a"), "binary", {}, bytes(2000))
    assert cache.get(digest("a"), "binary") is None and files(cache) == []


def test_remains_of_killed_writers_are_removed(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o700)
    cache = DiskCache(tmp_path / "c", limit=10_000)
    cache.put(digest("a"), "binary", {}, bytes(100))
    folder = files(cache)[0].parent
    old, new = folder / ".new-1-old", folder / ".new-2-new"
    for path in (old, new):
        path.write_bytes(b"part")
    os.utime(old, (1, 1))
    for i in range(20):
        cache.put(digest(str(i)), "binary", {}, bytes(1000))
    assert not old.exists() and new.exists()
    cache.clear()
    assert files(cache) == []


# Where it is -----------------------------------------------------------------------------------------


def works_without(reason: str) -> None:
    """The cache is off with one warning, and nothing fails."""
    with pytest.warns(CacheWarning, match=reason) as caught:
        for i in range(3):
            disk_cache().put(digest(str(i)), "binary", {}, b"x")
            assert disk_cache().get(digest(str(i)), "binary") is None
    assert len(caught) == 1


@pytest.mark.parametrize("name", ["a b/ü測/$x;y", "-rf", "new\nline", "~", "%s{0}'\"`id`"])
def test_odd_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("RETARGET_CACHE_DIR", str(tmp_path / name))
    disk_cache().put(digest("a"), "binary", {}, b"x")
    assert disk_cache().get(digest("a"), "binary") == ({}, b"x")
    assert (tmp_path / name).is_dir()


def test_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETARGET_CACHE_DIR", "here")
    disk_cache().put(digest("a"), "binary", {}, b"x")
    monkeypatch.chdir("/")
    assert disk_cache().folder == tmp_path / "here"
    assert disk_cache().get(digest("a"), "binary") == ({}, b"x")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere platformdirs itself is asked")
@pytest.mark.parametrize("xdg", [None, "", "  ", "/some/where", "/with/slash/"])
def test_default_folder_is_that_of_platformdirs(monkeypatch: pytest.MonkeyPatch, xdg: str | None) -> None:
    import platformdirs

    monkeypatch.setenv("HOME", "/home/someone")
    if xdg is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    expected = Path(platformdirs.user_cache_dir("retarget"))
    assert Path(diskcache._user_folder("/home/someone", xdg)) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="folders of Linux")
def test_no_home_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it does for a user without an entry
    works_without("no home directory")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="folders of Linux")
def test_home_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    works_without("cannot be made")


@pytest.mark.skipif(not POSIX or ROOT, reason="root may write anywhere")
def test_read_only_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.setenv("HOME", str(tmp_path))
    works_without("cannot be made")
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("error", [28, 122, 30, 13])  # ENOSPC, EDQUOT, EROFS, EACCES
def test_full_or_read_only_disk(cache: DiskCache, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    cache.put(digest("before"), "binary", {}, b"x")
    real = os.fdopen

    def full(descriptor: int, mode: str):  # type: ignore[no-untyped-def]
        if "w" not in mode:
            return real(descriptor, mode)
        os.close(descriptor)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.warns(CacheWarning, match="not written to") as caught:
        for i in range(3):
            cache.put(digest(str(i)), "binary", {}, b"x")
    assert len(caught) == 1
    assert cache.get(digest("before"), "binary") == ({}, b"x")
    assert len(files(cache)) == 1 and not cache.info()["enabled"]


@pytest.mark.skipif(not Path("/dev/full").exists() or not ROOT, reason="needs to mount a file system")
def test_really_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", str(small)], check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        monkeypatch.setenv("RETARGET_CACHE_DIR", str(small / "cache"))
        with pytest.warns(CacheWarning) as caught:
            for i in range(30):
                disk_cache().put(digest(str(i)), "binary", {}, bytes(8000))
        assert len(caught) == 1
        assert disk_cache().verify()["removed"] == 0
        assert not [p for p in files(disk_cache()) if p.name.startswith(".")]
    finally:
        subprocess.run(["umount", str(small)], check=True)


# What others may have planted ------------------------------------------------------------------------


@pytest.mark.skipif(not POSIX, reason="modes")
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o722])
def test_folder_that_others_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    planted = tmp_path / "cache"
    planted.mkdir()
    planted.chmod(mode)
    monkeypatch.setenv("RETARGET_CACHE_DIR", str(planted))
    works_without("writable by others")
    assert list(planted.iterdir()) == []


@pytest.mark.skipif(not POSIX, reason="symbolic links")
def test_symbolic_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("RETARGET_CACHE_DIR", str(tmp_path / "cache"))
    works_without("symbolic link")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(not ROOT, reason="needs to give a folder away")
def test_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    os.chown(tmp_path / "cache", 12345, 12345)
    monkeypatch.setenv("RETARGET_CACHE_DIR", str(tmp_path / "cache"))
    works_without("another user's")


@pytest.mark.skipif(not POSIX, reason="modes")
@pytest.mark.parametrize("kind", ["pickle", "library", "link", "pipe", "folder", "writable"])
def test_planted_entries(cache: DiskCache, tmp_path: Path, kind: str) -> None:
    """Nothing that another could have put in an entry's place is loaded, followed or waited for."""
    key = digest("victim")
    cache.put(key, "binary", {}, b"x")
    (path,) = files(cache)
    whole = path.read_bytes()
    path.unlink()
    marker = tmp_path / "executed"
    match kind:
        case "pickle":

            class Evil:
                def __reduce__(self) -> tuple[object, ...]:
                    return Path.touch, (marker,)

            path.write_bytes(pickle.dumps(Evil()))
        case "library":
            path.write_bytes(b"\x7fELF" + bytes(2000))
        case "link":
            (tmp_path / "outside").write_bytes(whole)
            path.symlink_to(tmp_path / "outside")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "writable":
            path.write_bytes(whole)
            path.chmod(0o666)
    with pytest.warns(CacheWarning):
        assert cache.get(key, "binary") is None
    assert not marker.exists()


def test_format_is_plain(cache: DiskCache) -> None:
    """Another program can read an entry: magic, hash over name and payload, length, JSON header, data."""
    key = digest("a")
    cache.put(key, "binary", {"a": [1]}, b"data")
    (path,) = files(cache)
    content = path.read_bytes()
    payload = content[50:]
    assert content[:10] == b"RETARGET\0\1" and int.from_bytes(content[42:50], "little") == len(payload)
    assert content[10:42] == hashlib.sha256(f"{key}.binary".encode() + b"\0" + payload).digest()
    assert json.loads(payload[4:-4]) == {"a": [1]} and payload[-4:] == b"data"


def test_import_is_cheap() -> None:
    heavy = {"platformdirs", "llvmlite", "rich"}
    code = f"import sys, retarget.runtime.diskcache; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
