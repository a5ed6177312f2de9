"""The command group: the commands in the order of `--help`, and how errors are told.

An error that the caller can put right is printed without its traceback and ends with status 1, a mistake in
the command line itself with 2, an error of ours asks for a report and ends with 70.  `--debug`, or any
value of RETARGET_DEBUG, shows the traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import click

from ..errors import InternalError, UserError, closest_match
from . import bench, cache, code, conformance, demo, plugins, tune

_INTERNAL_ERROR = 70


def _set_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.find_root().meta["debug"] = True


def _debug_option() -> click.Option:
    return click.Option(
        ["--debug"], is_flag=True, is_eager=True, expose_value=False, callback=_set_debug,
        help="Show the traceback of an error.",
    )  # fmt: skip


class Group(click.Group):
    """A group that names the closest command when one does not exist."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            match = closest_match(name, self.commands)
            hint = f" Did you mean {match!r}?" if match else ""
            ctx.fail(
                f"No such command {name!r}.{hint} The commands are {', '.join(self.list_commands(ctx))}."
            )
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from .. import __version__

        click.echo(f"retarget {__version__}")
        context.exit()


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Write an array kernel once; every device is a plugin.

    \b
    Example:
      retarget demo
      retarget show model.py:attention --target clang
    """


for _command in (
    plugins.devices, plugins.doctor, demo.demo, code.show, code.compile_, plugins.plugins, plugins.explain,
    cache.cache, tune.tune, bench.bench, conformance.conformance,
):  # fmt: skip
    cli.add_command(_command)
for _command in (cli, *cli.commands.values(), *cache.cache.commands.values()):
    _command.params.append(_debug_option())


def run(arguments: list[str] | None = None) -> None:
    """Run a command line (None: the process's own) and exit."""
    sys.exit(execute(arguments))


def execute(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    meta: dict[str, Any] = {}
    try:
        with cli.make_context("retarget", list(sys.argv[1:] if arguments is None else arguments)) as context:
            meta = context.meta
            cli.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Aborted.", err=True)
        return 130
    except BrokenPipeError:  # the reader of the output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except UserError as error:
        _tell(error, meta, f"Error: {_text(error)}")
        return 1
    except InternalError as error:
        _tell(error, meta, f"Internal error: {_text(error)}\n{_REPORT}")
        return _INTERNAL_ERROR
    except Exception as error:
        _tell(error, meta, f"Internal error: {type(error).__name__}: {error}\n{_REPORT}")
        return _INTERNAL_ERROR
    return 0


_REPORT = (
    "This is a fault of Retarget or of a plugin. Please report it, with the output of the same command "
    "and --debug."
)


def _text(error: Exception) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def _tell(error: Exception, meta: dict[str, Any], text: str) -> None:
    if meta.get("debug") or os.environ.get("RETARGET_DEBUG"):
        traceback.print_exception(error)
    click.echo(text, err=True)
