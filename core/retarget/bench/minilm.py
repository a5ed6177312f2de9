"""The sentence-embedding model of `examples/minilm` as a case: 32 sentences, ours beside PyTorch.

The example and its model come with a clone of the repository and `retarget[examples]`.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError

_SENTENCES = """\
The cat sat on the mat.
A kitten is asleep on the rug in front of the fireplace.
Dogs need a long walk every day, whatever the weather.
The central bank raised interest rates by half a percentage point, more than analysts had expected.
Borrowing money became more expensive.
Shares fell in Frankfurt and rose in Tokyo.
Stir the onions until they are golden, then add garlic, tomatoes and a pinch of salt.
A simple recipe for tomato soup
The rocket lifted off at dawn and reached orbit nine minutes later.
Two astronauts docked with the space station.
The committee will meet again on Thursday to discuss the proposal.
Rain is expected in the north, with sunshine later in the day.
He tuned the piano before the concert, as he had done every year since he moved to the city.
The museum is closed on Mondays.
Our train was delayed by forty minutes because of a fallen tree on the line.
She planted roses along the southern wall.
The new bridge carries four lanes of traffic and a footpath across the river.
Bread rises because yeast turns sugar into gas.
The referee stopped the match after the floodlights failed.
A good dictionary lists the origin of every word.
The glacier has retreated by more than a kilometre within one lifetime.
They painted the kitchen yellow.
Whales communicate over great distances with low-frequency sound.
The library lends books, films and, since last year, tools.
Prices of wheat and maize rose sharply after the drought.
The violin was made in Cremona three hundred years ago.
Please switch off your telephone during the performance.
A small earthquake woke the town shortly after midnight, but no damage was reported.
The ferry leaves from the old harbour.
Chess players think several moves ahead.
The lighthouse keeper wrote down the wind and the state of the sea every three hours.
Honey keeps for years without spoiling.
""".splitlines()

LENGTH = 32


@functools.cache
def _example() -> tuple[Any, Any, Any]:
    """Return the example's modules `checkpoint`, `model` and `reference`."""
    root = Path(__file__).resolve().parents[3]
    for folder in (root, Path.cwd()):
        if (folder / "examples/minilm/model.py").exists():
            sys.path.insert(0, str(folder))
            break
    try:
        checkpoint, model, reference = [
            importlib.import_module(f"examples.minilm.{name}")
            for name in ("checkpoint", "model", "reference")
        ]
    except ImportError as error:
        raise UserError(
            f"the case minilm needs examples/minilm, which a clone of the repository has ({error}); "
            "run it there"
        ) from None
    return checkpoint, model, reference


@functools.cache
def _weights() -> tuple[Path, Mapping[str, Any], Any]:
    """Return the model's folder, its weights and its configuration."""
    checkpoint = _example()[0]
    try:
        folder: Path = checkpoint.model_folder()
        return folder, checkpoint.load_weights(folder), checkpoint.load_config(folder)
    except (checkpoint.MissingModelError, ImportError) as error:
        raise UserError(f"the case minilm: {error}; it needs {checkpoint.INSTALL}") from None


def operands() -> Sequence[np.ndarray[Any, Any]]:
    """Return token numbers and where they are, both of shape (32, `LENGTH`)."""
    folder, _, _ = _weights()
    ids, mask = _example()[0].tokenize(folder, _SENTENCES)
    pad = ((0, 0), (0, LENGTH - ids.shape[1]))
    return np.pad(ids, pad), np.pad(mask, pad)


@functools.cache
def _model(device: str) -> Any:
    _, weights, config = _weights()
    return _example()[1].MiniLM(weights, config, device)


def ours(rt: Any, ids: Any, mask: Any) -> Any:
    """Return the sentences' embeddings by the example's model."""
    return _model(ids.device).forward(ids, mask)


def reference(ids: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return them by the example's NumPy model, in float64."""
    _, weights, config = _weights()
    return np.asarray(_example()[2].embed(weights, config, ids, mask))


@functools.cache
def _tensors() -> tuple[Mapping[str, Any], Any]:
    """Return the weights as PyTorch's, query, key and value of a layer as one, and the configuration."""
    torch = importlib.import_module("torch")
    _, weights, config = _weights()
    tensors = {name: torch.from_numpy(np.ascontiguousarray(w)) for name, w in weights.items()}
    for n in range(config.layers):
        prefix = f"encoder.layer.{n}.attention.self"
        for kind in ("weight", "bias"):
            parts = [tensors[f"{prefix}.{part}.{kind}"] for part in ("query", "key", "value")]
            tensors[f"{prefix}.{kind}"] = torch.cat(parts)
    return tensors, config


def torch_way(torch: Any, ids: Any, mask: Any) -> Callable[[], Any]:
    """PyTorch's way, eager."""
    weights, config = _tensors()
    return lambda: _forward(torch, weights, config, ids, mask)


def compiled_way(torch: Any, ids: Any, mask: Any) -> Callable[[], Any]:
    """PyTorch's way with torch.compile."""
    weights, config = _tensors()
    torch.compiler.reset()
    compiled = torch.compile(lambda *xs: _forward(torch, weights, config, *xs), dynamic=False)
    return lambda: compiled(ids, mask)


def _forward(t: Any, w: Mapping[str, Any], config: Any, ids: Any, mask: Any) -> Any:
    """Return the embeddings by the same model in PyTorch, with its own attention, norm and GELU."""
    f = t.nn.functional

    def linear(name: str, x: Any) -> Any:
        return f.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(name: str, x: Any) -> Any:
        return f.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], config.epsilon)

    batch, length = ids.shape
    x = f.embedding(ids, w["embeddings.word_embeddings.weight"])
    x = x + w["embeddings.position_embeddings.weight"][:length]
    x = norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][0])
    seen = mask[:, None, None, :]
    for n in range(config.layers):
        layer, attention = f"encoder.layer.{n}", f"encoder.layer.{n}.attention"
        parts = linear(f"{attention}.self", x).view(batch, length, 3, config.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = f.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        mixed = mixed.transpose(1, 2).reshape(x.shape)
        x = norm(f"{attention}.output.LayerNorm", x + linear(f"{attention}.output.dense", mixed))
        up = f.gelu(linear(f"{layer}.intermediate.dense", x))
        x = norm(f"{layer}.output.LayerNorm", x + linear(f"{layer}.output.dense", up))
    counted = mask[:, :, None].to(x.dtype)
    mean = (x * counted).sum(1) / counted.sum(1)
    return mean / t.linalg.vector_norm(mean, dim=1, keepdim=True)
