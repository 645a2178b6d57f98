"""The section of a comparison of language models on the results page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bayesmem.evaluate.comparison import DECILES
from bayesmem.evaluate.markdown import origins, table

Comparison = Mapping[str, Any]

_TRAINING = (
    "Tokens are those of the run itself, steps x rows x length. Validation: before the first step, "
    "where that is known, and at the end; what a phase of a distillation descends is no "
    "cross-entropy."
)
_SCORES = ("perplexity", "score", "contains", "acc", "accuracy", "acc_norm", "exact", "f1")
"""The measure of a task that the table has: the first of these that its result holds."""


def comparison_section(
    name: str, title: str, found: Comparison, figures: Sequence[str], note: str = ""
) -> str:
    """Returns the Markdown section of one file.

    Args:
      name: link to the file, relative to the page.
      title: of the section.
      found: of `compare_runs`.
      figures: links to its figures.
      note: what is said besides.
    """
    parts = [f"### {title}\n", f"From [{name}]({name}).", _origin(found), ""]
    parts += [note.strip() + "\n"] if note.strip() else []
    parts += [training_table(found), "", _TRAINING, ""]
    if layers := layer_table(found):
        parts += [layers, ""]
    if found["tasks"]:
        parts += [task_table(found), ""]
    parts += [f"![{title}]({figure})\n" for figure in figures]
    for task, by_run in found["tasks"].items():
        if not any("deciles" in result for result in by_run.values()):
            continue
        if nothing_found(by_run):
            each = "/".join(map(str, sorted({result["count"] for result in by_run.values()})))
            parts += [
                f"`{task}` by the depth of the needle: 0 everywhere, of {each} prompts a run.\n"
            ]
            continue
        parts += [f"`{task}` by the depth of the needle, score in % (prompts):\n"]
        parts += [decile_table(by_run), ""]
    return "\n".join(parts)


def training_table(found: Comparison) -> str:
    """Runs with what they were trained on, and their first and last validation losses."""
    head = ("run", "mixers", "parameters", "tokens", "peak rate", "seed", "tokens/s", "validation")
    rows = []
    for label, run in found["runs"].items():
        config = run["config"]
        size = config["train"]["batch_size"] * config["data"]["seq_len"]
        steps = run["valid"][-1]["step"] if run["valid"] else 0
        rows.append(
            (
                label,
                _mixers(config["model"]),
                f"{run['parameters']:,}" if run["parameters"] else "-",
                f"{size * steps:,}" if steps else "-",
                f"{config['optimizer']['learning_rate']:g}" if steps else "-",
                str(config["seed"]),
                f"{run['tokens_per_second']:,.0f}" if run["tokens_per_second"] else "-",
                _validation(run["valid"]),
            )
        )
    return table(head, rows)


def layer_table(found: Comparison) -> str:
    """Errors of replaced layers over the steps of a distillation; "" where there are none."""
    rows = []
    for label, run in found["runs"].items():
        names = sorted(
            {key for row in run["valid"] for key in row if "_layer_" in key},
            key=lambda key: int(key.rpartition("_")[2]),
        )
        for key in names:
            kind, _, layer = key.partition("_layer_")
            values = ", ".join(f"{_short(row.get(key))} ({row['step']})" for row in run["valid"])
            rows.append((label, layer, kind, values))
    if not rows:
        return ""
    return table(("run", "layer", "error", "value (step)"), rows)


def task_table(found: Comparison) -> str:
    """A row a task, a column a run; beside it the difference from a baseline with its items."""
    labels, baseline = list(found["runs"]), found["baseline"]
    rows = []
    for task, by_run in found["tasks"].items():
        measure = next(
            (m for m in _SCORES for result in by_run.values() if m in result["result"]), None
        )
        if measure is None:
            continue
        values = {
            label: by_run[label]["result"].get(measure) for label in labels if label in by_run
        }
        base = None if baseline is None else values.get(baseline)
        counts = sorted({result["count"] for result in by_run.values()})
        same = {
            label
            for label, result in by_run.items()
            if base is not None and _items(result) == _items(by_run[str(baseline)])
        }
        beside = {label: base for label in same - {baseline}}
        cells = [_cell(measure, values.get(x), beside.get(x)) for x in labels]
        rows.append((f"`{task}`", measure, "/".join(map(str, counts)), *cells))
    return table(("task", "measure", "items", *labels), rows)


def _items(result: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells the items of a result from those of another; earlier files have their count."""
    return result["count"], result.get("items_of")


def nothing_found(by_run: Mapping[str, Any]) -> bool:
    """Whether no run has found a needle at any depth."""
    return not any(score for x in by_run.values() for _, score in x.get("deciles", ()))


def decile_table(by_run: Mapping[str, Any]) -> str:
    """A row a run, a column a tenth of the depth, with the number of prompts in each."""
    head = ["run", *(f"{k / DECILES:.1f}-{(k + 1) / DECILES:.1f}" for k in range(DECILES))]
    rows = []
    for label, result in by_run.items():
        pairs = result.get("deciles", [(0, None)] * DECILES)
        cells = ["-" if score is None else f"{100 * score:.0f} ({n})" for n, score in pairs]
        rows.append((label, *cells))
    return table(head, rows)


def _cell(measure: str, value: float | None, base: float | None) -> str:
    if value is None:
        return "-"
    scale, places = (1, 2) if measure == "perplexity" else (100, 1)
    text = f"{scale * value:.{places}f}"
    if base is None:
        return text
    if measure == "perplexity":
        return f"{text} ({100 * (value / base - 1):+.1f}%)"
    return f"{text} ({scale * (value - base):+.{places}f})"


def _validation(rows: Sequence[Mapping[str, Any]]) -> str:
    """First and last value: of perplexity, where the model's is known, and of what is descended."""
    if not rows:
        return "-"
    return " to ".join(map(_value, rows if len(rows) == 1 else (rows[0], rows[-1])))


def _value(row: Mapping[str, Any]) -> str:
    if row["loss"] is None:
        return "failed"
    if "bits_per_token" in row:
        return f"ppl {_perplexity(row['loss'])}"
    if row.get("cross_entropy") is not None:
        return f"ppl {_perplexity(row['cross_entropy'])}, descended {row['loss']:.4g}"
    return f"descended {row['loss']:.4g}"


def _short(value: float | None) -> str:
    return "failed" if value is None else f"{value:.4g}"


def _perplexity(nats: float) -> str:
    return f"{math.exp(min(nats, 700.0)):.4g}"


def _mixers(model: Mapping[str, Any]) -> str:
    """Names of a turn, equal neighbours counted."""
    names, counted = list(model["mixers"]), list[tuple[int, str]]()
    if len(set(names)) == 1:
        return names[0]
    for name in names:
        if counted and counted[-1][1] == name:
            counted[-1] = counted[-1][0] + 1, name
        else:
            counted.append((1, name))
    text = " + ".join(f"{n} x {name}" if n > 1 else name for n, name in counted)
    turns = model["num_layers"] // len(names)
    return f"({text}) x {turns}" if len(counted) > 1 and turns > 1 else text


def _origin(found: Comparison) -> str:
    results = [r["provenance"] for by_run in found["tasks"].values() for r in by_run.values()]
    if not results:
        return "No task was evaluated."
    device, versions, commit = origins(results)
    return f"Tasks evaluated on {device}; {versions}; commit {commit}."
