"""Embed sentences and show how alike they are: `python -m examples.minilm --help`."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import retarget as rt
from retarget.errors import RetargetError

from . import checkpoint, reference
from .model import MiniLM

SENTENCES = """\
The cat sat on the mat.
A kitten is asleep on the rug in front of the fireplace.
Dogs need a long walk every day.
The central bank raised interest rates by half a percentage point, more than analysts had expected.
Borrowing money became more expensive.
Shares fell in Frankfurt.
Stir the onions until they are golden, then add garlic, tomatoes and a pinch of salt.
A simple recipe for tomato soup
The rocket lifted off at dawn and reached orbit nine minutes later.
Two astronauts docked with the space station.
""".splitlines()

TOLERANCE = 1e-4
REPEATS = 10


def main() -> int:
    """Run the example; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.minilm",
        description="Embed sentences with all-MiniLM-L6-v2 and print how alike they are (cosine similarity).",
        epilog="example: python -m examples.minilm --device llvm --check",
    )
    parser.add_argument("--device", help="where to run: llvm, clang, numpy ... (the default device)")
    parser.add_argument("--sentences", type=Path, metavar="FILE", help="a text file, one sentence a line")
    parser.add_argument("--check", action="store_true", help="compare with the model in NumPy and float64")
    options = parser.parse_args()
    try:
        return run(options.device, options.sentences, options.check)
    except (RetargetError, checkpoint.MissingModelError, ImportError, OSError) as error:
        print(f"minilm: {error}", file=sys.stderr)
        return 2


def run(device: str | None, file: Path | None, check: bool) -> int:
    """Embed the sentences in `file`, or our own; return the exit status."""
    sentences = SENTENCES
    if file is not None:
        sentences = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not sentences:
            print(f"minilm: {file} has no sentence", file=sys.stderr)
            return 2
    folder = checkpoint.model_folder()
    weights, config = checkpoint.load_weights(folder), checkpoint.load_config(folder)
    ids, mask = checkpoint.tokenize(folder, sentences)
    model = MiniLM(weights, config, device)
    arguments = [rt.asarray(a, device=model.device) for a in (ids, mask)]

    start = time.perf_counter()
    embeddings = np.asarray(model.embed(*arguments))
    first = time.perf_counter() - start
    taken = []
    # One call takes minutes on a device that interprets; a measurement there would tell nothing.
    for _ in range(REPEATS if first < 10 else 0):
        start = time.perf_counter()
        np.asarray(model.embed(*arguments))
        taken.append(time.perf_counter() - start)

    console = Console(highlight=False, soft_wrap=True)
    numbers = [str(n) for n in range(1, len(sentences) + 1)]
    for number, sentence in zip(numbers, sentences, strict=True):
        console.print(f"{number:>3}  {sentence}", markup=False)
    table = Table("", box=None, padding=(0, 1, 0, 0))
    for number in numbers:
        table.add_column(number, justify="right")
    for number, row in zip(numbers, embeddings @ embeddings.T, strict=True):
        table.add_row(number, *[f"{s:.2f}" for s in row])
    console.print(table)
    tokens = int(mask.sum())
    console.print(
        f"{model.device}: {len(sentences)} sentences, {tokens} tokens, padded to {ids.size}; "
        f"first call with compilation {first:.2f} s"
    )
    if taken:
        median = statistics.median(taken)
        console.print(
            f"then {median * 1e3:.1f} ms a call (median of {REPEATS}): {tokens / median:.0f} tokens/s"
        )
    if not check:
        return 0
    error = float(np.abs(embeddings - reference.embed(weights, config, ids, mask)).max())
    right = error < TOLERANCE
    verdict = "equal" if right else "NOT equal"
    console.print(f"{verdict} to float64 NumPy within {TOLERANCE:.0e}: largest error {error:.1e}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
