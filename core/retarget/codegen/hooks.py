"""Hook implementations: marked, checked at registration, and resolved once into direct callables.

pluggy defines what happens: last registered first, `tryfirst` and `trylast`, wrappers around everything,
None for "next", and an implementation takes only the arguments that it names.  A resolved chain does the
same without paying for it at every call, and leaves out the implementations whose filter does not match.  A
test holds the two equal.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

import pluggy

from ..errors import PluginError, UnknownNameError, closest_match
from . import hookspecs
from .fingerprint import code_fingerprint

if TYPE_CHECKING:
    from ..ir.dtypes import DType

F = TypeVar("F", bound=Callable[..., Any])
Chain = Callable[..., Any]

_OPTIONS = "retarget_impl"  # where pluggy's marker keeps an implementation's options
_FILTER = "retarget_filter"  # ours, in the same dict, so that it survives static and class methods


# Hooks and filters ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook of `hookspecs`: its arguments in order, and whether the first result wins."""

    name: str
    arguments: tuple[str, ...]
    firstresult: bool
    doc: str

    @property
    def per_uop(self) -> bool:
        """Whether it is called for a uop, so that it can be restricted to ops and dtypes."""
        return "uop" in self.arguments


def _read_hookspecs() -> dict[str, Hook]:
    hooks = {}
    for name, function in vars(hookspecs).items():
        options = getattr(function, "retarget_spec", None)
        if options is not None:
            arguments = tuple(inspect.signature(function).parameters)
            hooks[name] = Hook(name, arguments, options["firstresult"], inspect.cleandoc(function.__doc__))
    return hooks


#: Every hook by name, in call order.
HOOKS: dict[str, Hook] = _read_hookspecs()


@dataclass(frozen=True, slots=True)
class Filter:
    """What an implementation restricts itself to: target patterns, op and dtype names; empty: everything."""

    targets: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    def admits_target(self, target: str) -> bool:
        return not self.targets or any(fnmatchcase(target, pattern) for pattern in self.targets)

    def admits_uop(self, op: str | None, dtype: str | None) -> bool:
        return (not self.ops or op in self.ops) and (not self.dtypes or dtype in self.dtypes)

    def __str__(self) -> str:
        parts = (("targets", self.targets), ("ops", self.ops), ("dtypes", self.dtypes))
        return " ".join(f"{name}={','.join(values)}" for name, values in parts if values)


_EVERYTHING = Filter()


@overload
def hookimpl(function: F) -> F: ...
@overload
def hookimpl(
    *,
    targets: Iterable[str] = ...,
    ops: Iterable[str] = ...,
    dtypes: Iterable[str] = ...,
    tryfirst: bool = ...,
    trylast: bool = ...,
    wrapper: bool = ...,
    hookwrapper: bool = ...,
    specname: str | None = ...,
) -> Callable[[F], F]: ...
def hookimpl(
    function: F | None = None,
    *,
    targets: Iterable[str] = (),
    ops: Iterable[str] = (),
    dtypes: Iterable[str] = (),
    tryfirst: bool = False,
    trylast: bool = False,
    wrapper: bool = False,
    hookwrapper: bool = False,
    specname: str | None = None,
) -> F | Callable[[F], F]:
    """Mark a function or method as the implementation of the hook that has its name.

    Parameters
    ----------
    targets, ops, dtypes
        Restrict the implementation to targets (patterns such as "cuda/*"), to uops with one of these op
        names, or to uops whose scalar dtype has one of these names.  Empty: everything.
    tryfirst, trylast
        Be called before, or after, the implementations that do not say so.
    wrapper
        The function is a generator: it yields once, is sent the result of everything that it wraps (or has
        the exception raised at its yield), and returns the result to use instead.
    hookwrapper
        pluggy's older kind of wrapper, which is sent a `pluggy.Result`.
    specname
        The hook's name, where the function is called otherwise.
    """
    restriction = Filter(tuple(targets), tuple(ops), tuple(dtypes))
    mark = pluggy.HookimplMarker("retarget")

    def decorate(target: F) -> F:
        marked = mark(
            target,
            tryfirst=tryfirst,
            trylast=trylast,
            wrapper=wrapper,
            hookwrapper=hookwrapper,
            specname=specname,
        )
        getattr(marked, _OPTIONS)[_FILTER] = restriction
        return marked

    return decorate if function is None else decorate(function)


# Registration -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class HookPlugin:
    """An object with hook implementations, and the distribution that it came with."""

    name: str
    implementation: object
    distribution: str = ""
    version: str = ""

    def __str__(self) -> str:
        origin = f" ({self.distribution} {self.version})" if self.distribution else ""
        return f"plugin {self.name!r}{origin}"


class HookManager(pluggy.PluginManager):
    """pluggy's plugin manager, with our hooks and strict about what is registered.

    `epoch` grows with every change; resolved chains compare it and are resolved again.
    """

    def __init__(self) -> None:
        super().__init__("retarget")
        self.add_hookspecs(hookspecs)
        self.epoch = 0
        self.sources: dict[str, HookPlugin] = {}

    def add(self, plugin: HookPlugin) -> None:
        """Register a plugin; it is called before those registered earlier.

        Raises
        ------
        PluginError
            It implements a hook that does not exist, takes an argument that the hook does not have, restricts
            itself to an op or dtype that does not exist, or has an unmarked function named like a hook.
            Nothing is registered then.
        """
        marked = _Marked(plugin)
        try:
            self.register(marked, plugin.name)
            self.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(f"{plugin}: {error}") from error
        self.sources[plugin.name] = plugin
        self.epoch += 1

    def remove(self, name: str) -> None:
        """Unregister the plugin with this name."""
        if name not in self.sources:
            raise UnknownNameError("hook plugin", name, self.sources)
        self.unregister(name=name)
        del self.sources[name]
        self.epoch += 1

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """Return the options that `_Marked` found; called by pluggy."""
        return plugin.options.get(name) if isinstance(plugin, _Marked) else None


def check_plugin(plugin: HookPlugin) -> None:
    """Raise `PluginError` if a plugin's hook implementations are not as `HookManager.add` wants them."""
    HookManager().add(plugin)


class _Marked:
    """The hook implementations of a plugin, bound, and nothing else: what pluggy gets to see.

    A method that overrides a marked one is marked as that one is; an override that is no function removes it.
    """

    def __init__(self, plugin: HookPlugin) -> None:
        self.options: dict[str, dict[str, Any]] = {}
        for name, members in sorted(_members(plugin.implementation).items()):
            if not isinstance(members[0], _FUNCTIONS):
                continue
            options = next(filter(None, map(_mark, members)), None)
            if options is not None:
                _check_mark(plugin, name, options)
                self.options[name] = options
                setattr(self, name, getattr(plugin.implementation, name))
            elif name in HOOKS and not hasattr(members[0], "retarget_spec"):
                raise PluginError(f"{plugin}: {name} has a hook's name but no mark: put @hookimpl before it")

    def __dir__(self) -> list[str]:
        return list(self.options)


_FUNCTIONS = (types.FunctionType, types.MethodType, staticmethod, classmethod)


def _members(implementation: object) -> dict[str, list[object]]:
    """Return what each name stands for in an object, its class and the bases, the nearest first."""
    classes = (implementation if isinstance(implementation, type) else type(implementation)).__mro__
    namespaces: list[Mapping[str, object]] = [vars(each) for each in classes]
    if not isinstance(implementation, type) and hasattr(implementation, "__dict__"):
        namespaces.insert(0, vars(implementation))
    members: dict[str, list[object]] = {}
    for namespace in namespaces:
        for name, member in namespace.items():
            if not name.startswith("__"):
                members.setdefault(name, []).append(member)
    return members


def _mark(member: object) -> dict[str, Any] | None:
    """Return the options of a marked function, also if `staticmethod` or `classmethod` stands around it."""
    options = getattr(member, _OPTIONS, None) or getattr(getattr(member, "__func__", None), _OPTIONS, None)
    return dict(options) if options else None


def _check_mark(plugin: HookPlugin, name: str, options: Mapping[str, Any]) -> None:
    hook = HOOKS.get(options["specname"] or name)
    if hook is None:
        raise PluginError(f"{plugin}: {UnknownNameError('hook', options['specname'] or name, HOOKS)}")
    restriction: Filter = options.get(_FILTER, _EVERYTHING)
    if restriction.ops or restriction.dtypes:
        if not hook.per_uop:
            raise PluginError(f"{plugin}: {name} is called for no uop: ops= and dtypes= cannot restrict it")
        _check_filter(plugin, name, restriction)


def _check_filter(plugin: HookPlugin, name: str, restriction: Filter) -> None:
    from ..ir import dtypes, ops

    scalars = [value.name for value in vars(dtypes).values() if isinstance(value, dtypes.DType)]
    for kind, used, known in (("op", restriction.ops, [*ops.OPS]), ("dtype", restriction.dtypes, scalars)):
        for item in used:
            if item not in known:
                match = closest_match(item, known)
                hint = f": did you mean {match!r}?" if match else ""
                raise PluginError(f"{plugin}: {name} restricts itself to the unknown {kind} {item!r}{hint}")


# Resolution -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HookStep:
    """One implementation in a resolved chain."""

    hook: str
    plugin: str
    distribution: str
    version: str
    function: str
    wrapper: bool
    filter: str


class ResolvedHooks:
    """The hooks as they are for one target: each chain is one direct callable."""

    def __init__(self, manager: HookManager, target: str) -> None:
        self.target = target
        self._manager = manager
        self._epoch = manager.epoch
        self._by_key: dict[tuple[str, str | None, DType | str | None], Chain] = {}
        self._by_steps: dict[tuple[str, tuple[int, ...]], Chain] = {}
        self._identity = ""

    def chain(self, hook: str, op: str | None = None, dtype: DType | str | None = None) -> Chain:
        """Return the callable for a hook, on uops with this op and dtype (a vector counts as its scalar).

        It takes all of the hook's arguments by position, and returns what pluggy's own call would.
        """
        if self._epoch != self._manager.epoch:
            self._forget()
        found = self._by_key.get((hook, op, dtype))
        return found if found is not None else self._resolve(hook, op, dtype)

    def has(self, hook: str) -> bool:
        """Whether any implementation of a hook applies to the target."""
        return bool(self._applicable(hook))

    def explain(self, hook: str, op: str | None = None, dtype: str | None = None) -> list[HookStep]:
        """Return the implementations in the order in which they are called, wrappers first.

        Without an op, or without a dtype, those for any are listed.
        """
        steps = []
        for implementation in reversed(self._applicable(hook)):
            restriction = _filter_of(implementation)
            some_op, some_dtype = [*restriction.ops, None][0], [*restriction.dtypes, None][0]
            if restriction.admits_uop(op or some_op, dtype or some_dtype):
                source = self._manager.sources[implementation.plugin_name]
                steps.append(
                    HookStep(
                        hook=hook,
                        plugin=source.name,
                        distribution=source.distribution,
                        version=source.version,
                        function=_qualified_name(implementation.function),
                        wrapper=_is_wrapper(implementation),
                        filter=str(restriction),
                    )
                )
        return steps

    def identity(self) -> str:
        """Return what these hooks depend on: plugins in order, their versions and a hash of their code."""
        if self._epoch != self._manager.epoch:
            self._forget()
        if not self._identity:
            functions: dict[str, list[Callable[..., Any]]] = {name: [] for name in self._manager.sources}
            options: dict[str, list[str]] = {name: [] for name in self._manager.sources}
            for hook in HOOKS:
                for step, implementation in enumerate(self._applicable(hook)):
                    functions[implementation.plugin_name].append(implementation.function)
                    options[implementation.plugin_name].append(f"{hook}.{step} {_filter_of(implementation)}")
            self._identity = "\n".join(
                f"{source.name}={source.distribution}-{source.version}"
                f" {code_fingerprint(*functions[name])} {'; '.join(options[name])}"
                for name, source in self._manager.sources.items()
            )
        return self._identity

    def _forget(self) -> None:
        self._by_key.clear()
        self._by_steps.clear()
        self._identity = ""
        self._epoch = self._manager.epoch

    def _applicable(self, hook: str) -> list[pluggy.HookImpl]:
        """Return the implementations for the target, in reverse call order as pluggy keeps them."""
        if hook not in HOOKS:
            raise UnknownNameError("hook", hook, HOOKS)
        caller: pluggy.HookCaller = getattr(self._manager.hook, hook)
        return [each for each in caller.get_hookimpls() if _filter_of(each).admits_target(self.target)]

    def _resolve(self, hook: str, op: str | None, dtype: DType | str | None) -> Chain:
        scalar = dtype if dtype is None or isinstance(dtype, str) else dtype.name
        applicable = reversed(self._applicable(hook))
        steps = [each for each in applicable if _filter_of(each).admits_uop(op, scalar)]
        shared = (hook, tuple(map(id, steps)))  # most keys of a hook have the same steps, and share a chain
        chain = self._by_steps.get(shared)
        if chain is None:
            chain = self._by_steps[shared] = _compose(HOOKS[hook], steps)
        self._by_key[hook, op, dtype] = chain
        return chain


def resolve(plugins: HookManager | Iterable[HookPlugin], target: str) -> ResolvedHooks:
    """Resolve hooks for a target, from a manager or from plugins in the order in which to register them."""
    if not isinstance(plugins, HookManager):
        manager = HookManager()
        for plugin in plugins:
            manager.add(plugin)
        plugins = manager
    return ResolvedHooks(plugins, target)


def _filter_of(implementation: pluggy.HookImpl) -> Filter:
    options: dict[str, Any] = {**implementation.opts}
    restriction: Filter = options.get(_FILTER, _EVERYTHING)
    return restriction


def _is_wrapper(implementation: pluggy.HookImpl) -> bool:
    return implementation.wrapper or implementation.hookwrapper


def _qualified_name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


# Composition: pluggy's semantics, without its call ----------------------------------------------------------


def _compose(hook: Hook, steps: Sequence[pluggy.HookImpl]) -> Chain:
    """Return one callable for implementations in call order."""
    plain = _compose_plain(hook, [step for step in steps if not _is_wrapper(step)])
    wrappers = [step for step in steps if _is_wrapper(step)]
    if not wrappers:
        return plain
    return _compose_wrapped([_starter(hook, step) for step in wrappers], plain)


def _compose_plain(hook: Hook, steps: Sequence[pluggy.HookImpl]) -> Chain:
    """Return a function that asks each step, written out for exactly these steps."""
    if hook.firstresult and len(steps) == 1 and steps[0].argnames == hook.arguments:
        return steps[0].function
    body = []
    for number, step in enumerate(steps):
        call = _call(f"step{number}", hook, step)
        if hook.firstresult and number == len(steps) - 1:
            body.append(f"return {call}")
        elif hook.firstresult:
            body += [f"result = {call}", "if result is not None: return result"]
        else:
            body += [f"result = {call}", "if result is not None: results.append(result)"]
    if not hook.firstresult:
        body = ["results = []", *body, "return results"]
    return _define(hook, body or ["return None"], steps)


def _call(function: str, hook: Hook, step: pluggy.HookImpl) -> str:
    """Return the text of a call with the arguments that the step names, by keyword if they have a default."""
    keywords = [f"{name}={name}" for name in step.kwargnames if name in hook.arguments]
    return f"{function}({', '.join([*step.argnames, *keywords])})"


def _define(hook: Hook, body: Sequence[str], steps: Sequence[pluggy.HookImpl]) -> Chain:
    lines = [f"def {hook.name}({', '.join(hook.arguments)}):", *(f"    {line}" for line in body)]
    namespace: dict[str, Any] = {f"step{number}": step.function for number, step in enumerate(steps)}
    exec(compile("\n".join(lines), f"<{hook.name} chain>", "exec"), namespace)
    chain: Chain = namespace[hook.name]
    return chain


def _starter(hook: Hook, step: pluggy.HookImpl) -> Callable[..., Generator[None, Any, Any]]:
    """Return a function that starts a wrapper's generator; the older kind is adapted to the newer."""
    start = _define(hook, [f"return {_call('step0', hook, step)}"], [step])
    return start if step.wrapper else _adapt_hookwrapper(hook, step, start)


def _compose_wrapped(starters: Sequence[Callable[..., Generator[None, Any, Any]]], inner: Chain) -> Chain:
    """Return a callable that runs each wrapper up to its yield, then `inner`, then their rest, inside out."""

    def chain(*arguments: Any) -> Any:
        suspended: list[Generator[None, Any, Any]] = []
        result: Any = None
        failure: BaseException | None = None
        try:
            for start in starters:
                wrapper = start(*arguments)
                _run_to_yield(wrapper)
                suspended.append(wrapper)
            result = inner(*arguments)
        except BaseException as error:
            failure = error
        while suspended:
            wrapper = suspended.pop()
            try:
                if failure is None:
                    wrapper.send(result)
                else:
                    wrapper.throw(failure)
                wrapper.close()
            except StopIteration as end:
                result, failure = end.value, None
            except BaseException as error:
                # Python turns a StopIteration that passes through a generator into a RuntimeError: undo that.
                passed = isinstance(failure, StopIteration) and isinstance(error, RuntimeError)
                if not (passed and error.__cause__ is failure):
                    failure = error
            else:
                _fail_wrapper(wrapper, "has second yield")
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # the traceback refers to this frame: break the cycle
        return result

    return chain


def _adapt_hookwrapper(
    hook: Hook, step: pluggy.HookImpl, start: Callable[..., Generator[None, Any, Any]]
) -> Callable[..., Generator[None, Any, Any]]:
    def wrapper(*arguments: Any) -> Generator[None, Any, Any]:
        old = start(*arguments)
        _run_to_yield(old)
        try:
            outcome: pluggy.Result[Any] = pluggy.Result((yield), None)
        except BaseException as error:
            outcome = pluggy.Result(None, error)
        try:
            old.send(outcome)
        except StopIteration:
            return outcome.get_result()
        except BaseException as error:
            text = f"{hook.name} wrapper of plugin {step.plugin_name!r} failed after its yield: {error!r}"
            warnings.warn(pluggy.PluggyTeardownRaisedWarning(text), stacklevel=4)
            raise
        finally:
            old.close()
        _fail_wrapper(old, "has second yield")

    return wrapper


def _run_to_yield(wrapper: Generator[None, Any, Any]) -> None:
    try:
        next(wrapper)
    except StopIteration:
        _fail_wrapper(wrapper, "did not yield")


def _fail_wrapper(wrapper: Generator[None, Any, Any], fault: str) -> NoReturn:
    code: types.CodeType = getattr(wrapper, "gi_code")  # noqa: B009 - generators of other kinds have it too
    place = f"{code.co_name!r} {code.co_filename}:{code.co_firstlineno}"
    raise RuntimeError(f"wrap_controller at {place} {fault}")
