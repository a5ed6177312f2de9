"""`RETARGET_DEBUG`: print what the stages of the compiler made, and how long they took, to standard error.

The grammar is `GRAMMAR` below; a malformed value raises it.  The variable is looked at when Retarget is
imported: where it is not set, `stage` returns the functions as they are, so that nothing is paid for it.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from .errors import UserError, closest_match

P = ParamSpec("P")
R = TypeVar("R")

#: Topic -> what it prints.
TOPICS = {
    "kernels": "each kernel after fusion, as IR",
    "schedule": "the schedule of each kernel, as the line that rt.with_schedule takes",
    "uops": "each linear program",
    "source": "each kernel's source",
    "plugins": "each target's plugins and their hooks",
    "time": "the time of each stage, without that of the stages inside it",
}

GRAMMAR = "\n".join(
    ["RETARGET_DEBUG=TOPIC[,TOPIC...], where TOPIC is one of"]
    + [f"  {name:10}{meaning}" for name, meaning in TOPICS.items()]
    + [f"  {'all':10}all of these", "for example RETARGET_DEBUG=schedule,time"]
)


def parse_topics(text: str) -> frozenset[str]:
    """Return the topics that a value of RETARGET_DEBUG asks for.

    Raises
    ------
    UserError
        If one does not exist; the text has the grammar.
    """
    words = [word.strip().lower() for word in text.split(",")]
    topics = set(TOPICS) if "all" in words else {word for word in words if word}
    for word in words:
        if word and word != "all" and word not in TOPICS:
            match = closest_match(word, [*TOPICS, "all"])
            hint = f" (did you mean {match!r}?)" if match else ""
            raise UserError(f"RETARGET_DEBUG is {text!r}, and {word!r} is no topic{hint}\n{GRAMMAR}")
    return frozenset(topics)


_text = os.environ.get("RETARGET_DEBUG", "").strip()


@functools.cache
def _topics() -> frozenset[str]:
    return parse_topics(_text)


class _Clock(threading.local):
    """Seconds that the stages inside the running one took."""

    inner = 0.0


_clock = _Clock()


def stage(topic: str, show: Callable[[Any], str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function as a stage of the compiler: what it returns is printed if its topic was asked for.

    Parameters
    ----------
    topic
        One of `TOPICS`, or another word: then only its time is printed.
    show
        Makes the text of a result.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if not _text:
            return function

        @functools.wraps(function)
        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            topics = _topics()
            outside, _clock.inner = _clock.inner, 0.0
            start = time.perf_counter()
            try:
                result = function(*args, **kwargs)
            finally:
                taken = time.perf_counter() - start
                own, _clock.inner = taken - _clock.inner, outside + taken
            if topic in topics:
                _print(topic, show(result))
            if "time" in topics:
                _print("time", f"{topic} {own * 1e3:.3f} ms")
            return result

        return watched

    return decorate


def _print(topic: str, text: str) -> None:
    first, *rest = text.splitlines() or [""]
    lines = [f"[{topic}] {first}", *(f"  {line}" for line in rest)]
    sys.stderr.write("\n".join(lines) + "\n")
