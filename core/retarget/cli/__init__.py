"""The `retarget` command.  `main` is its entry point; `app` has the commands, one module for each group of
them."""

from __future__ import annotations


def main() -> None:
    """Run the command line of this process and exit."""
    from .app import run

    run()
