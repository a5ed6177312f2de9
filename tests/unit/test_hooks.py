"""Hooks: documentation, marks, checks, and resolved chains that do exactly what pluggy does."""

from __future__ import annotations

import inspect
import subprocess
import sys
import timeit
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pluggy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retarget.codegen import hook_docs, hookspecs
from retarget.codegen.hooks import HOOKS, HookManager, HookPlugin, check_plugin, hookimpl, resolve
from retarget.errors import PluginError, UnknownNameError
from retarget.ir import dtypes

ROOT = Path(__file__).parents[2]


# Documentation ----------------------------------------------------------------------------------------------


def test_every_hook_is_documented() -> None:
    docs = hook_docs.hook_docs()  # raises if a docstring lacks a part
    assert [doc.name for doc in docs] == list(HOOKS)
    for doc in docs:
        assert all((doc.summary, doc.when, doc.how_often, doc.who_wins, doc.returns))
        collected = not HOOKS[doc.name].firstresult
        assert doc.who_wins.startswith("nobody;" if collected else "first result"), doc.name


def test_docs_page_is_current() -> None:
    page = ROOT / "docs" / "hooks.md"
    command = "python -m retarget.codegen.hook_docs > docs/hooks.md"
    assert page.read_text() == hook_docs.hooks_markdown(), f"run: {command}"


def test_hooks_are_those_of_the_specification_file() -> None:
    functions = [name for name, value in vars(hookspecs).items() if inspect.isfunction(value)]
    assert list(HOOKS) == functions


# Checks -----------------------------------------------------------------------------------------------------


def plugin_of(name: str = "p", **functions: Callable[..., Any]) -> HookPlugin:
    return HookPlugin(name, SimpleNamespace(**functions), f"{name}-dist", "1.0")


def test_misspelt_hook() -> None:
    @hookimpl
    def render_laod(ctx: Any) -> None: ...

    with pytest.raises(PluginError, match=r"p-dist 1\.0.*'render_laod'.*did you mean 'render_load'"):
        check_plugin(plugin_of(render_laod=render_laod))


def test_misspelt_specname() -> None:
    @hookimpl(specname="render_stor")
    def mine(ctx: Any) -> None: ...

    with pytest.raises(PluginError, match="did you mean 'render_store'"):
        check_plugin(plugin_of(mine=mine))


def test_unmarked_function_with_the_name_of_a_hook() -> None:
    with pytest.raises(PluginError, match="put @hookimpl before it"):
        check_plugin(plugin_of(render_load=lambda ctx, uop, operands: None))


def test_unknown_argument() -> None:
    @hookimpl
    def render_barrier(ctx: Any, uop: Any, operands: Any) -> None: ...

    with pytest.raises(PluginError, match="operands"):
        check_plugin(plugin_of(render_barrier=render_barrier))


def test_wrapper_that_is_no_generator() -> None:
    @hookimpl(wrapper=True)
    def render_load(ctx: Any) -> None: ...

    with pytest.raises(PluginError, match="not a generator function"):
        check_plugin(plugin_of(render_load=render_load))


@pytest.mark.parametrize(
    ("options", "hook", "text"),
    [
        ({"ops": ("SQTR",)}, "render_alu", "unknown op 'SQTR': did you mean 'SQRT'"),
        ({"dtypes": ("float23",)}, "render_alu", "unknown dtype 'float23'"),
        ({"ops": ("ADD",)}, "render_preamble", "called for no uop"),
    ],
)
def test_filter_that_can_never_match(options: dict[str, Any], hook: str, text: str) -> None:
    def function(ctx: Any) -> None: ...

    with pytest.raises(PluginError, match=text):
        check_plugin(plugin_of(**{hook: hookimpl(**options)(function)}))


def test_a_plugin_that_fails_its_check_is_not_registered() -> None:
    manager = HookManager()

    @hookimpl
    def render_load(ctx: Any, nonsense: Any) -> None: ...

    with pytest.raises(PluginError):
        manager.add(plugin_of(render_load=render_load))
    assert manager.epoch == 0 and not manager.get_plugins()


def test_static_class_and_module_functions() -> None:
    class Plugin:
        @hookimpl
        @staticmethod
        def render_load(ctx: Any) -> str:
            return "static"

        @classmethod
        @hookimpl(dtypes=("float32",))
        def render_store(cls, ctx: Any) -> str:
            return cls.__name__

    for plugin in (Plugin, Plugin()):
        hooks = resolve([HookPlugin("p", plugin)], "t/v")
        assert hooks.chain("render_load", "LOAD", "float32")(0, 0, 0) == "static"
        assert hooks.chain("render_store", "STORE", "float32")(0, 0, 0) == "Plugin"
        assert hooks.chain("render_store", "STORE", "int32")(0, 0, 0) is None


def test_an_overriding_method_keeps_the_mark() -> None:
    class Base:
        @hookimpl(dtypes=("float32",))
        def render_const(self, ctx: Any, uop: Any) -> str:
            return "base"

        @hookimpl
        def render_alu(self, ctx: Any) -> str:
            return "base"

    class Derived(Base):
        def render_const(self, ctx: Any, uop: Any) -> str:
            return "derived"

        render_alu = None  # type: ignore[assignment]

    hooks = resolve([HookPlugin("p", Derived())], "t/v")
    assert hooks.chain("render_const", "CONST", "float32")(None, None) == "derived"
    assert hooks.chain("render_const", "CONST", "int32")(None, None) is None
    assert not hooks.has("render_alu")


# Resolution -------------------------------------------------------------------------------------------------


def test_one_implementation_is_called_directly() -> None:
    class Renderer:
        @hookimpl
        def render_load(self, ctx: Any, uop: Any, operands: Any) -> tuple[Any, ...]:
            return ctx, uop, operands

    renderer = Renderer()
    chain = resolve([HookPlugin("p", renderer)], "t/v").chain("render_load", "LOAD", "float32")
    assert chain == renderer.render_load
    assert chain(1, 2, 3) == (1, 2, 3)


def test_filters() -> None:
    @hookimpl
    def plain(ctx: Any) -> str:
        return "backend"

    @hookimpl(specname="render_alu", targets=("cuda/*",), ops=("ADD", "MUL"), dtypes=("float32",))
    def special(ctx: Any) -> str:
        return "special"

    plugins = [plugin_of("backend", render_alu=plain), plugin_of("extension", special=special)]
    cuda, llvm = resolve(plugins, "cuda/sm_90a"), resolve(plugins, "llvm/native")
    assert cuda.chain("render_alu", "ADD", "float32")(0, 0, 0) == "special"
    assert cuda.chain("render_alu", "ADD", dtypes.float32.vector(4))(0, 0, 0) == "special"
    assert cuda.chain("render_alu", "ADD", dtypes.float64)(0, 0, 0) == "backend"
    assert cuda.chain("render_alu", "SUB", "float32")(0, 0, 0) == "backend"
    assert llvm.chain("render_alu", "ADD", "float32")(0, 0, 0) == "backend"
    # keys with the same steps share one callable
    assert cuda.chain("render_alu", "SUB", "float32") is cuda.chain("render_alu", "MAX", "int8")

    everything = cuda.explain("render_alu")
    assert [step.plugin for step in everything] == ["extension", "backend"]
    assert everything[0].filter == "targets=cuda/* ops=ADD,MUL dtypes=float32"
    assert everything[0].distribution == "extension-dist" and not everything[0].wrapper
    assert [step.plugin for step in cuda.explain("render_alu", "ADD")] == ["extension", "backend"]
    assert [step.plugin for step in cuda.explain("render_alu", "SUB")] == ["backend"]
    assert [step.plugin for step in llvm.explain("render_alu")] == ["backend"]


def test_unknown_hook() -> None:
    hooks = resolve([], "t/v")
    for ask in (hooks.chain, hooks.explain, hooks.has):
        with pytest.raises(UnknownNameError, match="did you mean 'render_load'"):
            ask("render_lod")  # type: ignore[operator]


def test_registering_invalidates_chains() -> None:
    manager = HookManager()
    hooks = resolve(manager, "t/v")
    assert hooks.chain("render_preamble")(None) == []
    before = hooks.identity()

    @hookimpl
    def render_preamble(ctx: Any) -> str:
        return "text"

    manager.add(plugin_of(render_preamble=render_preamble))
    assert hooks.chain("render_preamble")(None) == ["text"]
    assert hooks.identity() != before
    manager.remove("p")
    assert hooks.chain("render_preamble")(None) == []
    assert hooks.identity() == before
    with pytest.raises(UnknownNameError):
        manager.remove("p")


IDENTITY = """
import sys
from retarget.codegen.hooks import HookPlugin, hookimpl, resolve
TABLE = {{"ADD": {add!r}}}
KINDS = {{"aa", "bb", "cc", "dd"}}
def helper(x):
    return TABLE[x] if x in {{"p", "q", "r", "ADD"}} else KINDS
class Renderer:
    names = {{"x": 1}}
    @hookimpl
    def render_alu(self, ctx):
        return [helper(y) for y in self.names]
print(resolve([HookPlugin("p", Renderer(), "d", "1")], "t/v").identity())
"""


def identity(seed: str, add: str) -> str:
    import retarget

    environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(retarget.__file__).parents[1])}
    command = [sys.executable, "-c", IDENTITY.format(add=add)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_identity_is_the_same_in_every_process_and_follows_tables() -> None:
    first = identity("1", "+")
    assert first.startswith("p=d-1 ") and "render_alu.0" in first
    assert identity("2", "+") == first
    assert identity("1", "fadd") != first


def test_overhead() -> None:
    """A resolved chain costs less than pluggy's call (a fraction, but a test of time must be loose)."""

    class Renderer:
        @hookimpl
        def render_load(self, ctx: Any, uop: Any, operands: Any) -> int:
            return 1

    @hookimpl(wrapper=True)
    def render_load(ctx: Any) -> Any:
        return (yield)

    for extensions in ([], [plugin_of("w", render_load=render_load)]):
        manager = HookManager()
        for each in [HookPlugin("p", Renderer()), *extensions]:
            manager.add(each)
        chain = resolve(manager, "t/v").chain("render_load", "LOAD", "float32")
        call = manager.hook.render_load
        ours = min(timeit.repeat(lambda chain=chain: chain(1, 2, 3), number=2000, repeat=5))
        theirs = min(timeit.repeat(lambda call=call: call(ctx=1, uop=2, operands=3), number=2000, repeat=5))
        assert ours < theirs


# The property -----------------------------------------------------------------------------------------------


class Fault(Exception):
    """Raised by generated implementations, and compared by its text."""


FAULTS: dict[str, Callable[[str], BaseException]] = {
    "error": lambda text: Fault(text),
    "stop": lambda text: StopIteration(text),
    "runtime": lambda text: RuntimeError(text),
    "exit": lambda text: SystemExit(text),
}

#: Parameters that a generated implementation of render_load may have.
PARAMETERS = (
    "", "ctx", "uop, ctx", "ctx, uop, operands", "operands, uop", "ctx, uop=5", "ctx, operands=7, uop=5",
)  # fmt: skip


class Script:
    """What a generated implementation does, raises and returns; it logs what it sees."""

    def __init__(self, spec: dict[str, Any], label: str, log: list[str]) -> None:
        self.spec, self.label, self.log = spec, label, log

    def act(self, action: str, moment: str, values: tuple[Any, ...]) -> Any:
        self.log.append(f"{self.label} {moment} {values}")
        if action in FAULTS:
            raise FAULTS[action](self.label)
        return None if action == "none" else f"{self.label}{values}"

    def plain(self, *values: Any) -> Any:
        return self.act(self.spec["before"], "called", values)

    def wrap(self, *values: Any) -> Any:
        after = self.spec["after"]
        self.act(self.spec["before"], "starts", values)
        if self.spec["yields"] == 0:
            return None
        got: Any = None
        try:
            got = yield
        except BaseException as error:
            self.log.append(f"{self.label} caught {error!r}")
            if after == "pass":
                raise
        if isinstance(got, pluggy.Result):
            self.log.append(f"{self.label} got {got.exception!r}")
            if after == "replace":
                got.force_result([self.label])
            elif after == "fail":
                got.force_exception(Fault(self.label))
        else:
            self.log.append(f"{self.label} got {got!r}")
        if self.spec["yields"] == 2:
            yield
        self.act(after, "ends", values)
        return got if after == "pass" else [self.label, repr(got)]


def implementation(kind: str, **changes: Any) -> dict[str, Any]:
    """What a generated implementation is like; the defaults are a good citizen."""
    defaults = {
        "place": "",
        "parameters": "ctx",
        "before": "value",
        "after": "pass",
        "yields": 1,
        "targets": (),
        "ops": (),
        "dtypes": (),
    }
    return {"kind": kind, **defaults, **changes}


plain, wrapper, hookwrapper = (partial(implementation, kind) for kind in ("plain", "wrapper", "hookwrapper"))


@st.composite
def implementations(draw: st.DrawFn) -> dict[str, Any]:
    def one_of(*choices: Any) -> Any:
        return draw(st.sampled_from(choices))

    return implementation(
        one_of("plain", "plain", "plain", "wrapper", "wrapper", "hookwrapper"),
        place=one_of("", "", "tryfirst", "trylast"),
        parameters=one_of(*PARAMETERS),
        before=one_of("value", "value", "none", "none", *FAULTS),
        after=one_of("pass", "pass", "replace", "fail", *FAULTS),
        yields=one_of(1, 1, 1, 1, 1, 1, 0, 2),
        targets=one_of((), (), (), ("t/*",), ("other/*",)),
        ops=one_of((), (), (), ("ADD", "LOAD"), ("SUB",)),
        dtypes=one_of((), (), (), ("float32",), ("int8", "bool")),
    )


def matches(spec: dict[str, Any]) -> bool:
    """Whether the filter lets it take part for target t/v, op LOAD, dtype float32."""
    return (
        spec["targets"] in ((), ("t/*",))
        and spec["ops"] in ((), ("ADD", "LOAD"))
        and spec["dtypes"] in ((), ("float32",))
    )


def make(spec: dict[str, Any], hook: str, label: str, log: list[str], *, filtered: bool) -> object:
    """Build the plugin object of a generated implementation, marked by us or by plain pluggy."""
    parameters = spec["parameters"] if hook == "render_load" else spec["parameters"] and "ctx"
    names = [name.partition("=")[0].strip() for name in parameters.split(",") if name]
    script = Script(spec, label, log)
    arguments = ", ".join(names)
    wraps = spec["kind"] != "plain"
    call = f"(yield from script.wrap({arguments}))" if wraps else f"script.plain({arguments})"
    namespace: dict[str, Any] = {"script": script}
    exec(f"def {hook}({parameters}): return {call}", namespace)
    function = namespace[hook]
    options = {flag: True for flag in (spec["kind"], spec["place"]) if flag not in ("plain", "")}
    if filtered:
        filters = ("targets", "ops", "dtypes") if hook == "render_load" else ("targets",)
        marked = hookimpl(**options, **{name: spec[name] for name in filters})(function)
    else:
        marked = pluggy.HookimplMarker("retarget")(function, **options)
    return SimpleNamespace(**{hook: marked})


def outcome(call: Callable[[], Any], log: list[str]) -> tuple[Any, ...]:
    """Everything that can be seen of a call: result or exception, order of events, warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = ("returned", call())
        except BaseException as error:
            cause = error.__cause__
            result = ("raised", type(error), str(error), type(cause), str(cause))
    return (*result, tuple(log), tuple(warning.category for warning in caught))


# A wrapper with a second yield makes pluggy abandon those outside it, which Python closes at some later time.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::pluggy.PluggyTeardownRaisedWarning")
@example([plain(before="stop"), wrapper(), hookwrapper()], "render_load")
@example([plain(), wrapper(yields=2), wrapper()], "render_load")
@example([plain(), hookwrapper(yields=0), wrapper()], "render_load")
@example([plain(parameters="ctx, uop=5"), plain(before="none")], "render_load")
@example([plain(place="tryfirst"), plain(), plain(place="trylast")], "render_preamble")
@settings(max_examples=300, deadline=None)
@given(
    st.lists(implementations(), max_size=6),
    st.sampled_from(["render_load", "render_load", "render_preamble"]),
)
def test_resolved_chain_is_what_pluggy_does(specs: list[dict[str, Any]], hook: str) -> None:
    reference_log: list[str] = []
    log: list[str] = []
    reference = pluggy.PluginManager("retarget")
    reference.add_hookspecs(hookspecs)
    plugins = []
    for number, spec in enumerate(specs):
        if hook == "render_preamble":
            spec = {**spec, "ops": (), "dtypes": ()}
        label = f"i{number}"
        plugins.append(HookPlugin(label, make(spec, hook, label, log, filtered=True)))
        if matches(spec):
            reference.register(make(spec, hook, label, reference_log, filtered=False), label)
    arguments = {"ctx": 1, "uop": 2, "operands": (3,)} if hook == "render_load" else {"ctx": 1}
    call = getattr(reference.hook, hook)
    chain = resolve(plugins, "t/v").chain(hook, "LOAD", "float32")
    expected = outcome(lambda: call(**arguments), reference_log)
    assert outcome(lambda: chain(*arguments.values()), log) == expected
