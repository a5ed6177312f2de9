"""From a scheduled kernel to a linear program: `translate` rewrites expressions, `place` puts them into loops."""
