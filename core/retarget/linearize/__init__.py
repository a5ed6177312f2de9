"""From scheduled kernels to linear programs: `translate` rewrites expressions, `place` opens loops."""
