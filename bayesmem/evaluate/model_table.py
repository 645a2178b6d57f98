"""The results page's section on language models' speed, from files of `launch.bench_model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayesmem.evaluate.markdown import origins, table

PEER = "fla"
"""The implementation that others' rates are also given as multiples of."""

Row = Mapping[str, Any]
_Program = tuple[str, int, int]

_SECTION = """\
## Speed of language models

From the files that `python -m launch.bench_model` wrote, each in one run on one device, program
after program. Numbers are tokens a second, over all rows of a batch, medians of timed calls; in
brackets the multiple of flash-linear-attention's rate for the same model and program, and the
memory in MB that the program needs at its peak (ours as XLA plans it, fla's as PyTorch has counted
it). "B x T" of training is the batch, T of the others the tokens that were read before.
"""


def model_section(files: Mapping[str, Mapping[str, Any]], folder: str) -> str:
    """Returns the section.

    Args:
      files: contents of each file, by its name.
      folder: link to the files' folder.
    """
    parts = [_SECTION]
    for name, found in files.items():
        device, versions, commit = origins([found])
        parts.append(f"### [{name}]({folder}/{name})\n")
        parts.append(f"Size `{found['size']}`, on {device}; {versions}; commit {commit}.\n")
        parts.append(_table(found["rows"]) + "\n")
    return "\n".join(parts)


def _table(rows: Sequence[Row]) -> str:
    """A line a model and implementation, a column a program; what was not run is a dash."""
    programs = list(dict.fromkeys(map(_program, filter(lambda row: row["batch"], rows))))
    lines: dict[tuple[str, str], dict[_Program, Row]] = {}
    errors: dict[tuple[str, str], str] = {}
    for row in rows:
        key = (row["model"], row["implementation"])
        lines.setdefault(key, {})
        if row["batch"]:
            lines[key][_program(row)] = row
        else:  # of no program alone: what is missing for all of them
            errors[key] = row["error"]
    body = []
    for (model, form), own in lines.items():
        peers = lines.get((model, PEER), {}) if form != PEER else {}
        cells = [_cell(own.get(program), peers.get(program)) for program in programs]
        if (model, form) in errors:
            cells[0] = errors[(model, form)]
        count = next((row["parameters"] for row in own.values()), None)
        size = "-" if count is None else f"{count / 1e6:.0f}M"
        body.append((f"`{model}`", form, size, *cells))
    heads = [f"{mode} {batch} x {tokens:,}" for mode, batch, tokens in programs]
    notes = [
        f"`{row['model']}`, {row['implementation']}, {row['mode']}: {row['note']}."
        for row in rows
        if row.get("note")
    ]
    found = table(("model", "implementation", "parameters", *heads), body)
    return "\n\n".join([found, *notes])


def _program(row: Row) -> _Program:
    return row["mode"], row["batch"], row["tokens"]


def _cell(row: Row | None, peer: Row | None) -> str:
    """Tokens a second, the multiple of the peer's, and the memory."""
    if row is None:
        return "-"
    if "error" in row:
        return row["error"]
    there = peer is not None and "error" not in peer
    ratio = f"{row['tokens_per_s'] / peer['tokens_per_s']:.2f}x, " if there and peer else ""
    return f"{row['tokens_per_s']:,.0f} ({ratio}{row['peak_mb']:,.0f} MB)"
