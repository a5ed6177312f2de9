"""How plugins get onto the path, and what the environment says about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

OURS = """
    listed = [[p.name, p.distribution, p.state.value] for p in registry.plugins() if p.name in NAMES]
    devices = [d.name for d in registry.devices() if d.name.partition(":")[0] in NAMES]
    answer([listed, devices])
"""


def ours(*names: str) -> str:
    return OURS.replace("NAMES", repr(names))


def test_lib64_symlink(site: Any, tmp_path: Path) -> None:
    """PLUG-02: lib64 is a link to lib, and both are on the path: one plugin, one device."""
    link = tmp_path / "lib64"
    link.symlink_to(site.directory, target_is_directory=True)
    for path in ([site.directory, link], [link, site.directory]):
        listed, devices = site.run(ours("fakecpu"), *path)
        assert listed == [["fakecpu", "fakecpu-dist", "discovered"]]
        assert devices == ["fakecpu:0"]


def test_stale_egg_info(site: Any, tmp_path: Path) -> None:
    """PLUG-02: an editable install, and egg-info of an earlier one under another name, for the same files."""
    source = tmp_path / "checkout"
    site.install("dev", directory=source)
    (source / "dev_dist-1.2.3.dist-info").rename(site.directory / "dev_dist-1.2.3.dist-info")
    (site.directory / "dev.pth").write_text(f"{source}\n")
    egg_info = source / "dev_old_name.egg-info"
    egg_info.mkdir()
    (egg_info / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: dev-old-name\nVersion: 0.9\n")
    (egg_info / "entry_points.txt").write_text("[retarget.backends]\ndev = dev_plugin:plugin.toml\n")
    listed, devices = site.run(ours("dev"))
    assert listed == [["dev", "dev-dist", "discovered"]]
    assert devices == ["dev:0"]


def test_older_version_behind_on_the_path(site: Any, tmp_path: Path) -> None:
    """Of one distribution in two versions, the first on the path counts, as for imports."""
    site.install("fakecpu", version="0.1", directory=tmp_path / "old")
    code = 'answer([p.version for p in registry.plugins() if p.name == "fakecpu"])'
    assert site.run(code, site.directory, tmp_path / "old") == ["1.2.3"]
    assert site.run(code, tmp_path / "old", site.directory) == ["0.1"]


def test_dotted_package(site: Any) -> None:
    """The manifest of a subpackage is found without importing its parent."""
    provides = "outer_plugin.inner.plugin:Plugin"
    site.install("inner", package="outer_plugin/inner", manifest={"provides": provides})
    parent = site.directory / "outer_plugin" / "__init__.py"
    parent.write_text("print('imported')\n")
    entry_points = site.directory / "inner_dist-1.2.3.dist-info" / "entry_points.txt"
    entry_points.write_text("[retarget.backends]\ninner = outer_plugin.inner:plugin.toml\n")
    code = """
    listed = [[p.name, p.state.value] for p in registry.plugins() if p.name == "inner"]
    answer([listed, "outer_plugin" in sys.modules, registry.device("inner").name])
    """
    assert site.run(code) == [[["inner", "discovered"]], False, "inner:0"]


def test_disable(site: Any) -> None:
    site.install("other")
    listed, devices = site.run(ours("fakecpu", "other"), RETARGET_PLUGINS_DISABLE="fake*")
    assert listed == [["fakecpu", "fakecpu-dist", "blocked"], ["other", "other-dist", "discovered"]]
    assert devices == ["other:0"]
    asked = site.run('answer(ask(registry.device, "fakecpu"))', RETARGET_PLUGINS_DISABLE="fakecpu")
    assert asked[0] == "BackendUnavailableError" and "RETARGET_PLUGINS_DISABLE names it" in asked[1]


def test_allow_list_and_opt_in(site: Any) -> None:
    site.install("shy", manifest={"opt_in": True})
    site.install("other")
    names = ("fakecpu", "other", "shy")
    assert site.run(ours(*names))[1] == ["fakecpu:0", "other:0"]
    assert site.run(ours(*names), RETARGET_PLUGINS="*,shy")[1] == ["fakecpu:0", "other:0", "shy:0"]
    assert site.run(ours(*names), RETARGET_PLUGINS="*")[1] == ["fakecpu:0", "other:0"]
    assert site.run(ours(*names), RETARGET_PLUGINS="shy")[1] == ["shy:0"]
    asked = site.run('answer(ask(registry.device, "shy"))')
    assert asked[0] == "BackendUnavailableError" and "RETARGET_PLUGINS='*,shy'" in asked[1]


def test_allow_list_with_an_unknown_name(site: Any) -> None:
    warned = site.run("registry.plugins(); registry.plugins(); answer(caught)", RETARGET_PLUGINS="fakecpuu")
    assert len(warned) == 1 and "did you mean 'fakecpu'?" in warned[0]


def test_default_device(site: Any) -> None:
    site.install("other")
    code = "answer([registry.device().name, registry.device('auto').name])"
    assert site.run(code) == ["fakecpu:0", "fakecpu:0"]
    assert site.run(code, RETARGET_DEVICE="other") == ["other:0", "fakecpu:0"]
    code = "answer([ask(registry.device), ask(registry.device, 'auto')])"
    (kind, text, _), auto = site.run(code, RETARGET_DEVICE="othr")
    assert kind == "UnknownNameError" and "did you mean 'other'?" in text and "fakecpu:0" in auto


def test_default_device_that_is_not_ready(site: Any) -> None:
    """RETARGET_DEVICE asks by name: nothing else is taken instead."""
    site.install("bad", before="raise ImportError('x')\n")
    kind, text, _ = site.run("answer(ask(registry.device))", RETARGET_DEVICE="bad")
    assert kind == "BackendUnavailableError" and "bad-dist" in text


def test_malformed_timeout(site: Any) -> None:
    kind, text, _ = site.run("answer(ask(registry.plugins))", RETARGET_PROBE_TIMEOUT="soon")
    assert kind == "ParseError" and "'soon'" in text


def test_nothing_is_installed(site: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code = f"answer(ask(registry.Registry(path=[{str(tmp_path / 'empty')!r}]).device))"
    kind, text, _ = site.run(code)
    assert kind == "DeviceError" and "no backend is installed" in text


def test_keyboard_interrupt_passes(site: Any) -> None:
    """Ctrl-C during a slow import is the user's, and the next ask imports again."""
    before = """\
    import os
    if not os.environ.get("AGAIN"):
        os.environ["AGAIN"] = "1"
        raise KeyboardInterrupt
    """
    site.install("slow", before=before)
    code = """
    try:
        first = registry.device("slow").name
    except KeyboardInterrupt:
        first = "interrupted"
    answer([first, registry.device("slow").name])
    """
    assert site.run(code) == ["interrupted", "slow:0"]
