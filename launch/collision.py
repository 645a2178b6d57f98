"""Reproduces the deterministic collision experiment: `python -m launch.collision --workdir=DIR`.

Writes DIR/results.json, DIR/collision.png and DIR/collision.svg, and prints the paper's numbers
beside ours. Takes seconds on a CPU.
"""

import json
from pathlib import Path

from absl import app, flags, logging

from bayesmem.evaluate.collision_report import NOTES, comparison, format_table
from bayesmem.evaluate.collision_results import run_collision, write_results
from bayesmem.plots.collision import plot_collision
from launch.errors import short_errors

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the results.", required=True)
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Replace results that are there already.")


def main(argv: list[str]) -> None:
    """Runs the experiment, stores it, and prints the comparison."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    logging.set_verbosity(logging.WARNING)  # JAX reports every backend it does not find
    workdir = Path(_WORKDIR.value)
    results_path = workdir / "results.json"
    targets = [results_path, workdir / "collision.png", workdir / "collision.svg"]
    found = [str(path) for path in targets if path.exists()]
    if found and not _OVERWRITE.value:
        raise app.UsageError(
            f"--workdir: found {', '.join(found)}, wanted a folder without results; "
            "name another one, or pass --overwrite to replace them"
        )
    write_results(run_collision(), results_path)
    results = json.loads(results_path.read_text())
    figures = plot_collision(results, workdir)
    rows = comparison(results)
    print(format_table(rows))
    print(f"\n{sum(row.matches for row in rows)} of {len(rows)} rows agree in all printed digits.")
    for note in NOTES:
        print(f"- {note}")
    print("\nWritten: " + ", ".join(str(path) for path in [results_path, *figures]))


if __name__ == "__main__":
    with short_errors():
        app.run(main)
