"""The CPU, through C: readable kernels, compiled by clang, gcc or `python -m ziglang`."""
