"""Tables of what `bayesmem.evaluate.speed` measured: for the terminal, and for docs/RESULTS.md."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

AXES = "BTHDSKM"
PEER = ("delta_rule", "fla")
"""What other libraries' users know best; times are also given as its multiples."""

Row = Mapping[str, Any]

_SECTION = """\
## Speed, memory and error of the ops

From the files that `python -m launch.bench_ops` wrote; all that is in one table took turns in one
run, so ratios hold where absolute times do not.

Columns of which a table knows nothing are left out.

- **gpu ms**: median time of a call on the device alone; **wall ms**: of a call from the host and
  back, with the quartiles in brackets.
- **gain**: wall time of the token recurrence over this one.
- **error**: relative, of the output against the token recurrence in float64 on the same inputs;
  **gradient error**: the largest of any input's gradient, likewise.
- **peak MB**: inputs, outputs and temporaries; **temp MB**: temporaries alone.
- **roofline**: the least time for the bytes and FLOP counted, by the rates that this device reached
  when measured, over the gpu time.
"""


def format_rows(rows: Sequence[Row]) -> str:
    """Returns a table of rows, each time also as a multiple of the first form's."""
    lines = [
        f"{'op':17}{'form':12}{'mode':9}{'B T H D (or S K) M':>21}{'chunk':>6}{'gpu ms':>9}"
        f"{'wall ms':>10}{'speedup':>9}{'error':>9}{'grad.':>9}{'peak MB':>9}{'roofline':>9}"
    ]
    first: dict[tuple[Any, ...], float] = {}
    for row in rows:
        key = (row["op"], row["mode"], _sizes(row))
        wall = row["wall_ms"]
        if wall is not None:
            base = first.setdefault(key, wall)
        speedup = "-" if wall is None else f"{base / wall:.1f}x"
        lines.append(
            f"{row['op']:17}{row['implementation']:12}{row['mode']:9}{' '.join(key[2]):>21}"
            f"{row['chunk_size'] or '-':>6}{_number(row.get('gpu_ms'), '.3f'):>9}"
            f"{_number(wall, '.3f'):>10}{speedup:>9}{_number(row['relative_error'], '.1e'):>9}"
            f"{_number(row.get('gradient_error'), '.1e'):>9}"
            f"{_number(_peak(row), '.1f', 1e-6):>9}{_number(row.get('roofline'), '.1%'):>9}"
        )
        if row.get("note"):
            lines.append(f"  ({row['note']})")
    return "\n".join(lines)


def speed_section(files: Mapping[str, Sequence[Row]], folder: str) -> str:
    """Returns the section of the results page on benchmark files.

    Args:
      files: rows by the file's name. Rows of older files may lack keys: their columns stay away.
      folder: link to the files' folder.
    """
    parts = [_SECTION]
    for name, rows in sorted(files.items()):
        parts.append(f"### [{name}]({folder}/{name})\n")
        devices = ", ".join(sorted({row["device"] for row in rows}))
        found: dict[str, str] = {}
        for row in rows:
            found |= row["versions"]
        parts.append(f"On {devices}; {', '.join(f'{k} {v}' for k, v in found.items())}.\n")
        tables: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            tables.setdefault((*_sizes(row, "{}={}"), row["dtype"]), []).append(row)
        for (*sizes, dtype), of_shape in tables.items():
            parts.append(f"#### {', '.join(sizes)}, {dtype}\n\n{_table(of_shape)}\n")
    return "\n".join(parts)


def _table(rows: Sequence[Row]) -> str:
    """A Markdown table; columns of which no row knows anything are left out."""
    recurrent, peer = _bases(rows, "wall_ms", "recurrent"), _bases(rows, "gpu_ms", PEER[1])
    columns: dict[str, list[str]] = {}

    def column(title: str, cells: Iterable[str]) -> None:
        found = list(cells)
        if any(cell != "-" for cell in found):
            columns[title] = found

    column("op", (f"`{row['op']}`" for row in rows))
    column("form", (row["implementation"] for row in rows))
    column("mode", (row["mode"] for row in rows))
    column("chunk", (str(row["chunk_size"] or "-") for row in rows))
    column("gpu ms", (_number(row.get("gpu_ms"), ".3f") for row in rows))
    ratios = (_ratio(row.get("gpu_ms"), peer.get((PEER[0], row["mode"]))) for row in rows)
    column("to fla's delta rule", (_number(x, ".2f") for x in ratios))
    column("wall ms", map(_wall, rows))
    gains = (_ratio(recurrent.get((row["op"], row["mode"])), row["wall_ms"]) for row in rows)
    column("gain", (_times(x) for x in gains))
    column("error", (_number(row["relative_error"], ".1e") for row in rows))
    column("gradient error", (_number(row.get("gradient_error"), ".1e") for row in rows))
    column("peak MB", (_number(_peak(row), ".0f", 1e-6) for row in rows))
    column("temp MB", (_number(row.get("temp_bytes"), ".0f", 1e-6) for row in rows))
    column("roofline", (_number(row.get("roofline"), ".1%") for row in rows))
    column("note", ((row.get("note") or "-").replace("|", "\\|") for row in rows))
    lines = [columns.keys(), ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _bases(rows: Sequence[Row], clock: str, form: str) -> dict[tuple[str, str], float]:
    """Times of one form by op and mode."""
    of_form = [row for row in rows if row["implementation"] == form]
    return {(row["op"], row["mode"]): row[clock] for row in of_form if row.get(clock)}


def _sizes(row: Row, text: str = "{1}") -> tuple[str, ...]:
    return tuple(text.format(axis, row[axis]) for axis in AXES if axis in row)


def _peak(row: Row) -> int | None:
    """Bytes at the peak; older rows without `temp_bytes` count temporaries under that name."""
    return row["peak_bytes"] if "temp_bytes" in row else None


def _wall(row: Row) -> str:
    if row["wall_ms"] is None:
        return "-"
    return f"{row['wall_ms']:.3f} ({row['wall_ms_low']:.3f}-{row['wall_ms_high']:.3f})"


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def _times(x: float | None) -> str:
    return "-" if x is None else f"{x:.1f}x"


def _number(x: float | None, form: str, scale: float = 1) -> str:
    return "-" if x is None else format(x * scale, form)
