"""Sizes of a config's model: `python -m launch.describe --config=configs/NAME.py[:VARIANT]`.

Prints parameters, state of a sequence, state that a token reads and writes, and FLOPs a token of
decoding, for the config's model and, at the same width and depth, for every other mixer. Nothing
is made or trained. `--output=FILE.json` also writes the numbers.
"""

import json
import sys
from pathlib import Path

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from bayesmem.layers import MIXERS
from bayesmem.models.config import ModelConfig
from bayesmem.models.sizes import model_sizes, size_table
from launch.errors import short_errors

HEAD_DIM = 128
"""Width of a baseline's head, where the model is wide enough."""

_CONFIG = config_flags.DEFINE_config_file("config", help_string="Config file, with :VARIANT.")
_BASELINES = flags.DEFINE_bool("baselines", True, "Also the same model with each other mixer.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file to write; must not exist.")
flags.mark_flag_as_required("config")


def main(argv: list[str]) -> None:
    """Counts, prints and stores."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    absl_logging.set_verbosity(absl_logging.WARNING)
    output = Path(_OUTPUT.value) if _OUTPUT.value else None
    if output is not None and output.exists():
        raise FileExistsError(f"--output: {output} exists already and is left as it is")
    model = ModelConfig.from_dict(_CONFIG.value.model)
    rows = {"this config": model_sizes(model)}
    kinds = {name.partition("/")[0] for name in model.mixers}
    for name in MIXERS if _BASELINES.value else ():
        if name not in kinds:
            most = max(1, model.width // HEAD_DIM)
            heads = next(h for h in range(most, 0, -1) if model.width % h == 0)
            options = {name: {"num_heads": heads}}
            fields = {"mixers": (name,), "mixer_options": options}
            try:
                other = ModelConfig.from_dict(_CONFIG.value.model.to_dict() | fields)
            except ValueError as error:  # such as rotary attention in an odd width
                print(f"{name} is left out: {error}", file=sys.stderr)
                continue
            rows[name] = model_sizes(other)
    print(size_table(rows))
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        numbers = {name: sizes._asdict() for name, sizes in rows.items()}
        output.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    with short_errors():
        app.run(main)
