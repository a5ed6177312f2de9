"""`cache info`, `cache verify` and `cache clear`."""

from __future__ import annotations

import click


@click.group()
def cache() -> None:
    """Look at the disk cache, check it or empty it.

    \b
    Example:
      retarget cache info
    """


@cache.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(as_json: bool) -> None:
    """Say where the cache is, what it holds and whether it is used.

    \b
    Example:
      retarget cache info --json
    """
    from ..runtime.diskcache import disk_cache
    from ..runtime.tuned import count
    from .output import print_json

    found = disk_cache().info()
    found["tuned_schedules"] = count()
    if as_json:
        print_json(found)
        return
    click.echo(f"folder   {found['folder'] or 'none'}")
    click.echo(f"state    {'in use' if found['enabled'] else 'off: ' + found['reason']}")
    click.echo(f"entries  {found['entries']}, {found['bytes'] / 1e6:.2f} MB of {found['limit'] / 1e6:.0f} MB")
    for kind, numbers in found["kinds"].items():
        click.echo(f"  {kind:8} {numbers['entries']}, {numbers['bytes'] / 1e6:.2f} MB")
    click.echo(f"tuned    {found['tuned_schedules']} schedules")


@cache.command()
def verify() -> None:
    """Read every entry and remove those that are damaged; fail if there were any.

    \b
    Example:
      retarget cache verify
    """
    from ..runtime.diskcache import disk_cache

    found = disk_cache().verify()
    click.echo(f"{found['checked']} entries checked, {found['removed']} damaged ones removed")
    if found["removed"]:
        raise click.exceptions.Exit(1)


@cache.command()
@click.option("--keep-tuned", is_flag=True, help="Keep the schedules that `retarget tune` found.")
def clear(keep_tuned: bool) -> None:
    """Remove every entry.

    \b
    Example:
      retarget cache clear --keep-tuned
    """
    from ..runtime.diskcache import disk_cache
    from ..runtime.tuned import KIND, count

    removed = disk_cache().clear(keep=(KIND,) if keep_tuned else ())
    kept = f"; {count()} tuned schedules kept" if keep_tuned else ""
    click.echo(f"{removed} entries removed{kept}")
