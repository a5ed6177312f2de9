"""The same model in NumPy and float64, one sentence at a time: what every device is compared with.

There is neither batch nor padding here, so that the comparison also shows that the mask hides the padding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .checkpoint import Config, Weights

Array = np.ndarray[Any, Any]

_PARTS = ("query", "key", "value")
_erf = np.vectorize(math.erf, otypes=[np.float64])


def embed(weights: Weights, config: Config, ids: Array, mask: Array) -> Array:
    """Return the embeddings of sentences, float64 of shape (sentences, 384).

    Parameters
    ----------
    weights, config, ids, mask
        From `checkpoint`.
    """
    wide = {name: values.astype(np.float64) for name, values in weights.items() if values.dtype.kind == "f"}
    return np.stack([_embed(wide, config, row[keep]) for row, keep in zip(ids, mask, strict=True)])


def _embed(weights: dict[str, Array], config: Config, ids: Array) -> Any:
    """Return the embedding of the tokens of one sentence."""

    def linear(name: str, x: Array) -> Any:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, x: Array) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + config.epsilon)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def split(x: Array) -> Array:
        """Return (head, token, width of a head)."""
        return x.reshape(len(x), config.heads, -1).transpose(1, 0, 2)

    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm("embeddings.LayerNorm", x + weights["embeddings.token_type_embeddings.weight"][0])
    for n in range(config.layers):
        layer = f"encoder.layer.{n}"
        query, key, value = [
            split(linear(f"{layer}.attention.self.{p}", x)) for p in ("query", "key", "value")
        ]
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (powers / powers.sum(-1, keepdims=True)) @ value
        attended = linear(f"{layer}.attention.output.dense", mixed.transpose(1, 0, 2).reshape(x.shape))
        x = norm(f"{layer}.attention.output.LayerNorm", x + attended)
        up = linear(f"{layer}.intermediate.dense", x)
        up = up * 0.5 * (1.0 + _erf(up / math.sqrt(2.0)))
        x = norm(f"{layer}.output.LayerNorm", x + linear(f"{layer}.output.dense", up))
    mean: Array = x.mean(0)
    return mean / math.sqrt(mean @ mean)
