"""The table of hooks, for `retarget plugins --hooks` and docs/hooks.md, read from the docstrings of
`hookspecs`.

`python -m retarget.codegen.hook_docs > docs/hooks.md` writes the page again.
"""

from __future__ import annotations

from dataclasses import dataclass

from .hooks import HOOKS, Hook

_FIELDS = ("When", "How often", "Who wins", "Returns")

_INTRODUCTION = """\
# Hooks

What a plugin can add to, wrap or replace, in call order.  A renderer or an extension plugin implements a
hook with a function or method of the hook's name, marked with `hookimpl`.  It takes those of the hook's
arguments that it needs, by name; returning None means "ask the next one".

```python
from retarget.codegen.hooks import hookimpl


class FastExp:
    @hookimpl(targets=("cuda/*",), ops=("EXP2",), dtypes=("float32",))
    def render_alu(self, operands):
        return f"exp2_approx({operands[0]})"
```

This page is generated from `core/retarget/codegen/hookspecs.py` by `python -m retarget.codegen.hook_docs`.
"""


@dataclass(frozen=True, slots=True)
class HookDoc:
    """A hook's documentation, taken apart."""

    name: str
    signature: str
    summary: str
    when: str
    how_often: str
    who_wins: str
    returns: str


def hook_docs() -> list[HookDoc]:
    """Return the documentation of every hook, in call order."""
    return [_read(hook) for hook in HOOKS.values()]


def hooks_markdown() -> str:
    """Return the text of docs/hooks.md."""
    lines = [_INTRODUCTION]
    for doc in hook_docs():
        lines += [f"## {doc.signature}", "", doc.summary, ""]
        values = (doc.when, doc.how_often, doc.who_wins, doc.returns)
        lines += [f"- **{name}:** {value}" for name, value in zip(_FIELDS, values, strict=True)]
        lines.append("")
    return "\n".join(lines)


def _read(hook: Hook) -> HookDoc:
    summary, _, rest = hook.doc.partition("\n\n")
    values: dict[str, str] = {}
    field = ""
    for line in rest.splitlines():
        name, colon, value = line.partition(": ")
        if colon and name in _FIELDS:
            field, values[name] = name, value.strip()
        elif field:
            values[field] += " " + line.strip()
    if tuple(values) != _FIELDS:
        raise ValueError(f"the docstring of hook {hook.name} must have {', '.join(_FIELDS)}, in this order")
    signature = f"{hook.name}({', '.join(hook.arguments)})"
    return HookDoc(hook.name, signature, " ".join(summary.split()), *(values[name] for name in _FIELDS))


if __name__ == "__main__":
    print(hooks_markdown(), end="")
