"""Parts that every section of the results page has: a table, and where results come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def origins(results: Sequence[Mapping[str, Any]]) -> tuple[str, str, str]:
    """Devices, versions and commits of results, each once."""
    devices = ", ".join(sorted({result["device"] for result in results}))
    versions: dict[str, set[str]] = {}
    for result in results:
        for package, version in result["versions"].items():
            versions.setdefault(package, set()).add(version)
    listed = ", ".join(f"{name} {'/'.join(sorted(x))}" for name, x in versions.items())
    commits = ", ".join(sorted({_commit(result["commit"]) for result in results}))
    return devices, listed, commits


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars inside of cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(x.replace("|", "\\|") for x in line) + " |" for line in lines
    )


def _commit(commit: str | None) -> str:
    if commit is None:
        return "unknown"
    return commit[:10] + (" with changes" if commit.endswith("+") else "")
