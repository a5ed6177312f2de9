"""`NVPTXRenderer`: the same LLVM IR for NVIDIA GPUs, and what only they have.

A kernel is one function with the calling convention `ptx_kernel`.  Parameters point to address space 1, which
is global memory; shared memory is globals in address space 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from retarget.codegen.driver import EmitContext
from retarget.codegen.hooks import hookimpl
from retarget.errors import CompileError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType
from retarget.ir.uop import UOp
from retarget.linearize.local import placement
from retarget.runtime.nvidia import STATIC_SHARED

from .renderer import LLVMRenderer, declare, memory_type, proved_alignment, unique, value_type

GLOBAL, SHARED = "ptr addrspace(1)", "ptr addrspace(3)"
_REGISTERS = {
    **{f"grid{n}": f"ctaid.{c}" for n, c in enumerate("xyz")},
    **{f"block{n}": f"tid.{c}" for n, c in enumerate("xyz")},
    "warp0": "tid.x",
}
_ALIGNMENT = 16  # of arrays in shared memory, in bytes


class NVPTXRenderer(LLVMRenderer):
    """Renders for NVIDIA GPUs; the driver translates the PTX that LLVM makes of it."""

    branches = True

    # declarations

    def pointer(self, buffer: UOp) -> str:
        if buffer.op is not ops.LOCAL:
            return GLOBAL
        return SHARED if buffer.arg[2] == "local" else "ptr"

    def _array(self, ctx: EmitContext, uop: UOp) -> str:
        if uop.arg[2] != "local":
            return super()._array(ctx, uop)
        shared = placement(ctx.program.uops)
        name, kind = unique(ctx, uop.arg[0]), memory_type(uop.dtype)
        if shared.total <= STATIC_SHARED:
            size = math.prod(n for n in uop.arg[1] if n)
            memory = "internal unnamed_addr addrspace(3) global"
            declare(ctx, f"@{name} = {memory} [{size} x {kind}] undef, align {_ALIGNMENT}")
            return f"@{name}"
        declare(ctx, "@shared = external addrspace(3) global [0 x i8], align 128")
        return self.define(ctx, "array", f"getelementptr i8, {SHARED} @shared, i32 {shared.offsets[uop]}")

    def _alignment(self, buffer: UOp, uop: UOp) -> int:
        return min(proved_alignment(buffer, uop), _ALIGNMENT)

    def _has_masks(self, dtype: DType) -> bool:
        return False

    def _too_wide(self, dtype: DType) -> bool:
        return True  # masked accesses are done lane by lane: LLVM 22 asserts that they have no zeros to give

    @hookimpl
    def render_special(self, ctx: EmitContext, uop: UOp) -> str | None:
        name, size = uop.arg
        register = _REGISTERS.get(name)
        if register is None:
            return None
        value = self._special(ctx, register)
        if uop.dtype is dtypes.int64:
            value = self.define(ctx, name, f"zext i32 {value} to i64")
        if isinstance(size, int):
            ctx.state.bounds[value] = (0, size - 1)
        return value

    def _special(self, ctx: EmitContext, register: str) -> str:
        function = f"@llvm.nvvm.read.ptx.sreg.{register}"
        declare(ctx, f"declare i32 {function}()")
        return self.define(ctx, register, f"call i32 {function}()")

    # values

    @hookimpl
    def render_alu(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str | None:
        if uop.op in (ops.MAXIMUM, ops.MINIMUM) and uop.dtype.kind == "float":
            return self._nan_extremum(ctx, uop.op, uop.dtype, *operands)
        return super().render_alu(ctx, uop, operands)

    def _nan_extremum(self, ctx: EmitContext, op: ops.Op, dtype: DType, x: str, y: str) -> str | None:
        if dtype.name not in self.capabilities.functions[op.name]:
            return super()._nan_extremum(ctx, op, dtype, x, y)
        return self.intrinsic(ctx, f"@llvm.{op.name.lower()}", dtype, (x, y))  # max.NaN

    # threads

    @hookimpl
    def render_barrier(self, ctx: EmitContext, uop: UOp) -> str:
        declare(ctx, "declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)")
        ctx.line("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")
        return ""

    @hookimpl
    def render_shuffle(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str:
        dtype, value = uop.dtype, operands[0]
        kind, bits = value_type(dtype), (1 if dtype.kind == "bool" else dtype.bits) * dtype.lanes
        if bits < 32:
            whole = f"i{bits}"
            value = self._convert(ctx, "bitcast", value, kind, whole)
            moved = self._butterfly(ctx, self.define(ctx, "cast", f"zext {whole} {value} to i32"), uop.arg)
            moved = self.define(ctx, "cast", f"trunc i32 {moved} to {whole}")
        elif bits == 32:
            whole = "i32"
            moved = self._butterfly(ctx, self._convert(ctx, "bitcast", value, kind, whole), uop.arg)
        else:
            whole, moved = f"<{bits // 32} x i32>", "poison"
            value = self._convert(ctx, "bitcast", value, kind, whole)
            for n in range(bits // 32):
                word = self.define(ctx, "lane", f"extractelement {whole} {value}, i64 {n}")
                word = self._butterfly(ctx, word, uop.arg)
                moved = self.define(ctx, "vector", f"insertelement {whole} {moved}, i32 {word}, i64 {n}")
        return self._convert(ctx, "bitcast", moved, whole, kind)

    def _butterfly(self, ctx: EmitContext, value: str, mask: int) -> str:
        """Return an i32 of the thread whose number differs in the bits of `mask`."""
        function = "@llvm.nvvm.shfl.sync.bfly.i32"
        declare(ctx, f"declare i32 {function}(i32, i32, i32, i32)")
        return self.define(ctx, "shuffle", f"call i32 {function}(i32 -1, i32 {value}, i32 {mask}, i32 31)")

    # copies in the background

    @hookimpl
    def stage_copy(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str:
        to, place, buffer, origin = operands
        size = uop.arg * uop.src[0].dtype.itemsize
        if size not in (4, 8, 16):
            raise CompileError(f"cp.async copies 4, 8 or 16 bytes, not {size} ({ctx.program.name})")
        target = self._address(ctx, uop.src[0], uop.src[1], to, place, gated=False)
        source = self._address(ctx, uop.src[2], uop.src[3], buffer, origin, gated=False)
        function = f"@llvm.nvvm.cp.async.{'cg' if size == 16 else 'ca'}.shared.global.{size}"
        declare(ctx, f"declare void {function}({SHARED}, {GLOBAL})")
        ctx.line(f"call void {function}({SHARED} {target}, {GLOBAL} {source})")
        return ""

    @hookimpl
    def stage_commit(self, ctx: EmitContext, uop: UOp) -> str:
        declare(ctx, "declare void @llvm.nvvm.cp.async.commit.group()")
        ctx.line("call void @llvm.nvvm.cp.async.commit.group()")
        return ""

    @hookimpl
    def stage_wait(self, ctx: EmitContext, uop: UOp) -> str:
        declare(ctx, "declare void @llvm.nvvm.cp.async.wait.group(i32)")
        ctx.line(f"call void @llvm.nvvm.cp.async.wait.group(i32 {uop.arg})")
        return ""

    # the whole kernel

    @hookimpl
    def render_kernel(self, ctx: EmitContext, body: Sequence[str]) -> str:
        state, program = ctx.state, ctx.program
        parameters, cut = [], []
        for argument in program.arguments:
            name, known = argument.name, state.parameters.get(argument.name)
            if argument.kind == "buffer":
                qualifiers = "noalias" if argument.writable else "noalias readonly"
                parameters.append(f"{GLOBAL} {qualifiers} %{name}")
            elif known in (None, "i64"):
                parameters.append(f"i64 %{name}")
            else:
                parameters.append(f"i64 %{name}.whole")
                cut.append(f"  %{name} = trunc i64 %{name}.whole to {known}")
        block = program.launch.block
        threads = ",".join(map(str, block)) if all(isinstance(n, int) for n in block) else ""
        bounds = f' "nvvm.maxntid"="{threads or 1}"' if threads or not block else ""
        streams = any(u.op is ops.STORE and u.arg == "stream" for u in program.uops)
        return "\n".join([
            f"; {program.name} for {self.target}",
            *ctx.preamble.values(),
            "",
            f"define ptx_kernel void @{program.name}({', '.join(parameters)}) #0 {{",
            "entry:",
            *cut,
            *(f"  {line}" for line in state.allocas),
            *body,
            "  ret void",
            "}",
            "",
            *(["!0 = !{i32 1}"] if streams else []),
            f'attributes #0 = {{ nounwind "no-builtins"{bounds} }}',
            "",
        ])  # fmt: skip
