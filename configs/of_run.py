"""The config of an earlier run, to run it again or with changes: the variant is its workdir.

python -m launch.train --config=configs/of_run.py:runs/tiny/phase_b --workdir=runs/plain \
  --config.train.steps=50

It takes the workdir of any run, such as one of a phase of a distillation: here its student is
trained from scratch.
"""

import json
from pathlib import Path

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The config in a workdir, locked.

    Args:
        variant: The workdir.

    Returns:
        ConfigDict.

    Raises:
        ValueError: There is no config.json in it.
    """
    path = Path(variant) / "config.json"
    if not variant or not path.is_file():
        raise ValueError(f"variant: found no {path}, wanted configs/of_run.py:WORKDIR of a run")
    try:
        config = ml_collections.ConfigDict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"variant: found no config in {path} ({error})") from error
    return config.lock()
