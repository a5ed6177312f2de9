"""`python -m retarget.cli`: the `retarget` command where its script is not on the path."""

from __future__ import annotations

from . import main

main()
