"""Checks programs.  A binary is the program's text, which the runtime parses and translates again."""

from __future__ import annotations

import numpy as np

from retarget.errors import CompileError, InternalError, ParseError
from retarget.ir.text import parse_program
from retarget.registry.backend import Binary, Source
from retarget.registry.capabilities import Capabilities

from .interpreter import Interpreter


class NumpyCompiler:
    """The compiler of the target numpy/uops."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities

    def identity(self) -> str:
        """Return the version of NumPy."""
        return f"numpy {np.__version__}"

    def compile(self, source: Source) -> Binary:
        """Return the text as a binary.

        Raises
        ------
        CompileError
            If the text is not that of a well-formed linear program.
        """
        try:
            Interpreter(parse_program(source.text), self._capabilities.tensor_cores)
        except (ParseError, InternalError) as error:
            raise CompileError(
                f"{source.entry} is not a linear program that runs: {error}", source.text
            ) from error
        return Binary(source.text.encode(), source.entry, source.target, source.arguments, source.launch)

    def assembly(self, binary: Binary) -> str:
        """Return the Python function that the interpreter runs for each thread."""
        return Interpreter(parse_program(binary.data.decode()), self._capabilities.tensor_cores).source
