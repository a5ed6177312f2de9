"""Sentence embeddings by all-MiniLM-L6-v2, written against Retarget's public API; see docs/minilm.md."""
