"""The model, on any device: six transformer layers, the mean of their outputs, scaled to length 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

import retarget as rt

from .checkpoint import Config, Weights


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """x @ weight + bias."""

    weight: rt.Array
    bias: rt.Array

    def __call__(self, x: rt.Array) -> rt.Array:
        return x @ self.weight + self.bias


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """Layer normalization over the last axis."""

    weight: rt.Array
    bias: rt.Array
    epsilon: float

    def __call__(self, x: rt.Array) -> rt.Array:
        return rt.layer_norm(x, self.weight, self.bias, eps=self.epsilon)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Self-attention and a feed-forward network, each added to its input and normalized."""

    heads: int
    query_key_value: Linear
    attention_output: Linear
    attention_norm: Norm
    up: Linear
    down: Linear
    norm: Norm

    def attend(self, x: rt.Array, bias: rt.Array) -> rt.Array:
        batch, length = bias.shape[0], bias.shape[-1]
        # (3, batch, heads, length, width of a head)
        parts = self.query_key_value(x).reshape(batch, length, 3, self.heads, -1)
        query, key, value = rt.unstack(rt.permute_dims(parts, (2, 0, 3, 1, 4)))
        scores = query @ key.mT / math.sqrt(query.shape[-1]) + bias
        mixed = rt.softmax(scores) @ value
        return self.attention_output(rt.permute_dims(mixed, (0, 2, 1, 3)).reshape(x.shape))

    def __call__(self, x: rt.Array, bias: rt.Array) -> rt.Array:
        x = self.attention_norm(x + self.attend(x, bias))
        return self.norm(x + self.down(rt.gelu(self.up(x))))


class MiniLM:
    """all-MiniLM-L6-v2 on one device.

    Parameters
    ----------
    weights, config
        From `checkpoint`.
    device
        Where to put the weights and run; None means the default device.
    """

    def __init__(self, weights: Weights, config: Config, device: str | None = None) -> None:
        self.device = rt.device(device).name

        def array(values: np.ndarray) -> rt.Array:
            return rt.asarray(values, device=self.device)

        def linear(*names: str) -> Linear:
            """Return layers that take one input as one layer, with (inputs, outputs) weights."""
            weight = np.concatenate([weights[f"{n}.weight"].T for n in names], axis=1)
            return Linear(array(weight), array(np.concatenate([weights[f"{n}.bias"] for n in names])))

        def norm(name: str) -> Norm:
            return Norm(array(weights[f"{name}.weight"]), array(weights[f"{name}.bias"]), config.epsilon)

        self.words = array(weights["embeddings.word_embeddings.weight"])
        # Every token is of type 0 here, so its embedding is part of its position's.
        types = weights["embeddings.token_type_embeddings.weight"]
        self.positions = array(weights["embeddings.position_embeddings.weight"] + types[0])
        self.norm = norm("embeddings.LayerNorm")
        self.layers = []
        for n in range(config.layers):
            attention, layer = f"encoder.layer.{n}.attention", f"encoder.layer.{n}"
            self.layers.append(
                Layer(
                    config.heads,
                    linear(*[f"{attention}.self.{part}" for part in ("query", "key", "value")]),
                    linear(f"{attention}.output.dense"),
                    norm(f"{attention}.output.LayerNorm"),
                    linear(f"{layer}.intermediate.dense"),
                    linear(f"{layer}.output.dense"),
                    norm(f"{layer}.output.LayerNorm"),
                )
            )
        #: `forward`, captured once for each shape of its arguments and replayed afterwards.
        self.embed = rt.jit(self.forward)

    def forward(self, ids: rt.Array, mask: rt.Array) -> rt.Array:
        """Return the sentences' embeddings.

        Parameters
        ----------
        ids
            Token numbers, integers of shape (sentences, length).
        mask
            Where tokens are, bool of the same shape; the rest is padding.

        Returns
        -------
        rt.Array
            float32 of shape (sentences, 384), each row of length 1.
        """
        batch, length = ids.shape
        x = self.norm(self.words[ids] + self.positions[:length])
        x = x.reshape(batch * length, -1)  # what follows treats tokens alike, except attention
        bias = rt.where(mask, 0.0, -math.inf)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, bias)
        counted = mask.astype(rt.float32)[:, :, None]
        mean = rt.sum(x.reshape(batch, length, -1) * counted, axis=1) / rt.sum(counted, axis=1)
        return mean / rt.sqrt(rt.sum(mean * mean, axis=1, keepdims=True))
