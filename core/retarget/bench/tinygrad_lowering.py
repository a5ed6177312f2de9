"""Time tinygrad's lowering from graph to source; run by an interpreter that has tinygrad, prints JSON.

Written for the interface of tinygrad 0.14.  Nothing of Retarget is imported: the shapes come on standard
input as {case: [[shape, ...] for each repetition]}, and the argument says how many of the first are not
counted.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any


def main() -> None:
    tinygrad = import_module("tinygrad")
    do_to_program: Callable[..., Any] = import_module("tinygrad.codegen").do_to_program
    ops = import_module("tinygrad.uop.ops").Ops
    build: dict[str, Callable[..., Any]] = {
        "add": lambda a, b: a + b,
        "sum": lambda a: a.sum(),
        "softmax": lambda a: a.softmax(1),
        "matmul": lambda a, b: a @ b,
        "conv3x3": lambda a, w: a.conv2d(w, padding=1),
        "layernorm": lambda a, w, b: a.layernorm() * w + b,
    }
    renderer = tinygrad.Device[tinygrad.Device.DEFAULT].renderer
    renderer.compiler.compile_cached = lambda source: b""  # stop at the source

    def lower(tensor: Any) -> int:
        kernels = 0
        for call in tensor.schedule_linear().toposort():
            if call.op is ops.CALL and call.src[0].op is ops.SINK:
                do_to_program(call.src[0], renderer)
                kernels += 1
        return kernels

    warm_up = int(sys.argv[1])
    result = {}
    for case, repetitions in json.load(sys.stdin).items():
        times = []
        for shapes in repetitions:
            operands = [tinygrad.Tensor.empty(*shape) for shape in shapes]
            expression = build[case](*operands)
            start = time.perf_counter()
            if lower(expression) == 0:
                raise RuntimeError(f"tinygrad lowered no kernel for {case}")
            times.append(time.perf_counter() - start)
        result[case] = times[warm_up:]
        print(f"{case}: {statistics.median(times) * 1e3:.1f} ms", file=sys.stderr)
    json.dump({"version": version("tinygrad"), "seconds": result}, sys.stdout)


if __name__ == "__main__":
    main()
