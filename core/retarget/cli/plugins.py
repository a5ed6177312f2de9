"""`devices`, `doctor`, `plugins` and `explain`: what is installed, what works, and who is asked for what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..registry import Explanation


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def devices(as_json: bool) -> None:
    """List the devices that are ready, the preferred one first.

    \b
    Example:
      retarget devices
      retarget devices --json
    """
    from .. import registry
    from ..errors import DeviceError
    from .output import print_json, print_table

    found = registry.devices()
    if as_json:
        print_json([device._asdict() for device in found])
    elif found:
        print_table(
            ("device", "target", "memory", "description"),
            [(d.name, d.target, _size(d.memory), d.description) for d in found],
            right=("memory",),
        )
    if not found:
        raise DeviceError("no device is ready; `retarget doctor` says why")


@click.command()
@click.argument("name", required=False)
def doctor(name: str | None) -> None:
    """Say for each plugin whether it works and why the default device is or is not its own.

    With NAME, say everything about one plugin, the traceback of its error included.  Fails if that plugin,
    or without NAME every backend, is not ready.

    \b
    Example:
      retarget doctor
      retarget doctor clang
    """
    from .. import registry
    from ..errors import UnknownNameError
    from ..registry import State
    from .output import print_table

    rows = registry.explain_devices()
    if name is not None:
        found = next((row for row in rows if row.name == name), None)
        if found is None:
            raise UnknownNameError("plugin", name, [row.name for row in rows])
        _print_plugin(found)
        ready = found.state is State.READY
    else:
        print_table(
            ("", "plugin", "kind", "state", "priority", "devices", "why"),
            [
                ("→" if row.chosen else "", row.name, row.kind, row.state.value, str(row.priority),
                 " ".join(d.name for d in row.devices), row.verdict)
                for row in rows
            ],
            right=("priority",),
        )  # fmt: skip
        ready = any(row.devices for row in rows)
    if not ready:
        raise click.exceptions.Exit(1)


def _print_plugin(row: Explanation) -> None:
    from ..registry import registry

    plugin = registry().plugin(row.name)
    click.echo(f"{row.kind} {row.name} of {row.distribution} {row.version}: {row.state.value}")
    click.echo(f"  manifest  {plugin.location}")
    if plugin.manifest is not None:
        click.echo(f"  targets   {', '.join(plugin.manifest.targets)}")
    click.echo(f"  priority  {row.priority}")
    for device in row.devices:
        click.echo(f"  device    {device.name} ({device.target}) {device.description}")
    click.echo(f"  verdict   {row.verdict}")
    if row.traceback:
        click.echo(row.traceback.rstrip())


@click.command()
@click.option("--hooks", is_flag=True, help="List the hooks that plugins can implement, in call order.")
def plugins(hooks: bool) -> None:
    """List the installed plugins without importing any, or all hooks.

    \b
    Example:
      retarget plugins
      retarget plugins --hooks
    """
    from .output import print_table

    if hooks:
        from ..codegen.hook_docs import hook_docs

        print_table(
            ("hook", "how often", "who wins", "what it does"),
            [(doc.name, doc.how_often, doc.who_wins, doc.summary) for doc in hook_docs()],
        )
        return
    from .. import registry

    print_table(
        ("plugin", "kind", "distribution", "version", "targets", "state", "why"),
        [
            (p.name, p.kind, p.distribution, p.version, " ".join(p.manifest.targets) if p.manifest else "",
             p.state.value, p.reason)
            for p in registry.plugins()
        ],
    )  # fmt: skip


@click.command()
@click.argument("hook")
@click.option("--target", required=True, help="The target, such as clang or cuda/sm_90a.")
@click.option("--op", help="Only what is asked for uops with this op, such as EXP2.")
@click.option("--dtype", help="Only what is asked for uops of this scalar dtype, such as float32.")
def explain(hook: str, target: str, op: str | None, dtype: str | None) -> None:
    """Say who implements HOOK for a target, in the order in which they are asked.

    \b
    Example:
      retarget explain render_load --target clang
      retarget explain render_alu --target llvm --op SQRT --dtype float32
    """
    from .. import registry
    from ..codegen.hook_docs import hook_docs
    from ..errors import UnknownNameError
    from ..ir import dtypes, ops
    from .output import print_table

    docs = {doc.name: doc for doc in hook_docs()}
    if hook not in docs:
        raise UnknownNameError("hook", hook, docs, "`retarget plugins --hooks` describes them")
    if op is not None and op not in ops.OPS:
        raise UnknownNameError("op", op, ops.OPS)
    scalars = [value.name for value in vars(dtypes).values() if isinstance(value, dtypes.DType)]
    if dtype is not None and dtype not in scalars:
        raise UnknownNameError("dtype", dtype, scalars)
    full = registry.target(target)
    steps = registry.hooks(full).explain(hook, op, dtype)
    click.echo(docs[hook].signature)
    click.echo(f"{docs[hook].summary} Who wins: {docs[hook].who_wins}")
    if not steps:
        click.echo(f"Nobody implements it for {full}.")
        return
    print_table(
        ("", "plugin", "distribution", "function", "restricted to"),
        [
            (
                f"{number}{' wraps' if s.wrapper else ''}",
                s.plugin,
                f"{s.distribution} {s.version}",
                s.function,
                s.filter,
            )
            for number, s in enumerate(steps, 1)
        ],
    )


def _size(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.1f} GiB" if nbytes else ""
