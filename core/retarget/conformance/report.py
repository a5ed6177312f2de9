"""What a conformance run found: one `Result` per check, as JSON for machines and Markdown for people.

docs/conformance.md documents the JSON; `SCHEMA` is its version and changes when a reader would have to.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConformanceError

SCHEMA = 1
#: What can become of a check.  Only the first two are good.
PASSED, KNOWN, FAILED, UNEXPECTED = "passed", "known failure", "failed", "unexpectedly passed"


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one check.

    Attributes
    ----------
    id
        "L3/alu/ADD/float32".
    status
        "passed", "known failure" (declared in the manifest, with its reason), "failed", or "unexpectedly
        passed" (declared to fail, and did not).
    message
        What is wrong; the declared reason of a known failure.
    """

    id: str
    status: str
    message: str = ""

    @property
    def good(self) -> bool:
        return self.status in (PASSED, KNOWN)


@dataclass(slots=True)
class Report:
    """All results of a run.

    Attributes
    ----------
    backend, target, device
        What was tested; `device` is "" when no level needed one.
    level
        The highest level that was run.
    versions
        Of Retarget, its plugin API and IR, the plugin's distribution, and the compiler.
    results
        One for each check, in order.
    unclaimed
        What works although the capabilities do not say so.
    seconds
        How long the run took.
    """

    backend: str
    target: str
    device: str
    level: int
    versions: dict[str, str]
    results: list[Result] = field(default_factory=list)
    unclaimed: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failures(self) -> list[Result]:
        return [r for r in self.results if not r.good]

    @property
    def passed(self) -> bool:
        return bool(self.results) and not self.failures

    def check(self) -> None:
        """Raise `ConformanceError` with the failures, if there are any."""
        if self.passed:
            return
        shown = [f"{r.id}: {r.status}: {r.message}" for r in self.failures[:20]]
        more = len(self.failures) - len(shown)
        raise ConformanceError(
            "\n  ".join(
                [
                    f"{self.target} fails {len(self.failures)} of {len(self.results)} conformance checks",
                    *shown,
                ]
            )
            + (f"\n  ... and {more} more" if more else "")
        )

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of results of each status, by level and group ("L3/alu")."""
        table: dict[str, Counter[str]] = {}
        for r in self.results:
            table.setdefault("/".join(r.id.split("/")[:2]), Counter())[r.status] += 1
        return {group: dict(counter) for group, counter in table.items()}

    def to_json(self) -> str:
        """Return the report as JSON text that ends with a newline."""
        fields = asdict(self)
        fields["seconds"] = round(self.seconds, 1)
        document: dict[str, Any] = {"schema": SCHEMA, "passed": self.passed, **fields}
        document["results"] = [{k: v for k, v in asdict(r).items() if v} for r in self.results]
        return json.dumps(document, indent=1) + "\n"

    def to_markdown(self) -> str:
        """Return a summary for people."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        verdict = "passes" if self.passed else f"fails {len(self.failures)} of"
        lines = [
            f"# Conformance of {self.target}", "",
            f"{self.target} {verdict} {len(self.results)} checks of levels 0 to {self.level}"
            + (f" on {self.device}" if self.device else "") + f", in {self.seconds:.0f} s ({versions}).", "",
            "| Checks | passed | known failures | failed |", "| --- | ---: | ---: | ---: |",
        ]  # fmt: skip
        for group, counter in self.counts().items():
            bad = counter.get(FAILED, 0) + counter.get(UNEXPECTED, 0)
            lines.append(f"| {group} | {counter.get(PASSED, 0)} | {counter.get(KNOWN, 0)} | {bad} |")
        for title, results in (
            ("Failures", self.failures), ("Known failures", [r for r in self.results if r.status == KNOWN])
        ):  # fmt: skip
            if results:
                lines += ["", f"## {title}", ""]
                lines += [f"* `{r.id}`: {' '.join(r.message.split())}" for r in results]
        if self.unclaimed:
            lines += ["", "## Works without being claimed", "", *[f"* {u}" for u in self.unclaimed]]
        return "\n".join(lines) + "\n"

    def write(self, path: str | Path) -> None:
        """Write JSON to `path`, and the summary beside it with the suffix ".md"."""
        file = Path(path)
        file.write_text(self.to_json(), encoding="utf-8")
        file.with_suffix(".md").write_text(self.to_markdown(), encoding="utf-8")
