"""Puts runs side by side: `python -m launch.compare --run=LABEL=DIR --run=... --output=FILE.json`.

Reads what training and `launch.evaluate` have written in each workdir, writes one JSON file,
prints its tables, and draws FILE_depths.png and .svg where needles were looked for and one of the
runs is the --baseline. As docs/results/comparison_NAME.json the file is a section of the page that
`launch.report` makes.
"""

from pathlib import Path

from absl import app, flags

from bayesmem.evaluate.comparison import compare_runs
from bayesmem.evaluate.comparison_report import comparison_section
from bayesmem.files import write_json
from bayesmem.plots.comparison import plot_depths
from launch.errors import short_errors

_RUN = flags.DEFINE_multi_string("run", None, "LABEL=DIR, once a run.", required=True)
_BASELINE = flags.DEFINE_string("baseline", None, "Label of the run to compare with.")
_OUTPUT = flags.DEFINE_string("output", None, "The JSON file; must not be there.", required=True)
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Write the file anew where it is there.")


def main(argv: list[str]) -> None:
    """Compares, stores, prints and draws."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    pairs = [text.partition("=") for text in _RUN.value]
    if any(not label or not folder for label, _, folder in pairs):
        raise ValueError(f"--run: found {_RUN.value}, wanted LABEL=DIR each")
    runs = {label: Path(folder) for label, _, folder in pairs}
    if len(runs) < len(pairs):
        raise ValueError(f"--run: found {_RUN.value}, wanted different labels")
    output = Path(_OUTPUT.value)
    if output.is_dir():
        raise ValueError(f"--output: found a folder at {output}, wanted a file")
    if output.exists() and not _OVERWRITE.value:
        raise ValueError(f"--output: found a file at {output}, wanted a new one, or --overwrite")
    found = compare_runs(runs, _BASELINE.value)
    text = comparison_section(output.name, "Comparison", found, [])
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output, found)
    print(text)
    drawn = plot_depths(found, output.parent, f"{output.stem}_depths") if _BASELINE.value else []
    for path in (output, *drawn):
        print(f"Written: {path}")


if __name__ == "__main__":
    with short_errors():
        app.run(main)
