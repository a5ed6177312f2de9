"""The portable CPU backend: LLVM IR, compiled in the process by llvmlite."""
