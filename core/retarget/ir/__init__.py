"""The IR: dtypes, the op table, interned UOps, index arithmetic, textual form, verifier (docs/ir.md).

Modules stand for themselves: `from retarget.ir import dtypes, index, ops`.  The names below are what most
code needs.
"""

from . import dtypes, index, ops
from .dtypes import DType, as_dtype
from .ops import OPS, Op
from .simplify import alu, bitcast, cast, where
from .text import dump, dump_program, expr, parse, parse_program
from .uop import UOp, const, toposort
from .verify import verify_program

__all__ = [
    "OPS", "DType", "Op", "UOp", "alu", "as_dtype", "bitcast", "cast", "const", "dtypes", "dump",
    "dump_program", "expr", "index", "ops", "parse", "parse_program", "toposort", "verify_program", "where",
]  # fmt: skip
