"""Times language models: `python -m launch.bench_model --size=340m --output=FILE.json`.

Training, prefill and decoding of the models of `configs/pretrain.py`, one after the other, each
program compiled ahead. Prints a table and writes its rows as JSON, a row as soon as it is measured.
On a GPU `--peers=fla` times flash-linear-attention's models of the same sizes in the same run.
"""

import json
import os
import sys
from pathlib import Path

from absl import app, flags, logging
from ml_collections import ConfigDict

from bayesmem.evaluate.model_peers import bench_peer, require
from bayesmem.evaluate.model_speed import MODES, ModelOptions, bench_model
from bayesmem.train.provenance import provenance
from configs import common, pretrain
from launch.errors import short_errors

_SIZE = flags.DEFINE_enum("size", "tiny", list(pretrain.SIZES), "Of configs/pretrain.py.")
_MIXERS = flags.DEFINE_list("mixers", list(common.MIXERS), "Models, hybrids with +.")
_MODES = flags.DEFINE_list("modes", list(MODES), "What to time.")
_CONTEXTS = flags.DEFINE_multi_integer("contexts", [1_024, 32_768], "Tokens read before decoding.")
_BATCHES = flags.DEFINE_multi_integer("batches", [1], "Rows decoded together.")
# Those left out are the config's.
_BATCH_SIZE = flags.DEFINE_integer("batch_size", None, "Rows a training step.", lower_bound=1)
_SEQ_LEN = flags.DEFINE_integer("seq_len", None, "Tokens a training row.", lower_bound=1)
_REMAT = flags.DEFINE_bool("remat", None, "Compute blocks again in training; default: config.")
_REPEATS = flags.DEFINE_integer("repeats", 10, "Timed calls of each program.")
_PEERS = flags.DEFINE_multi_enum("peers", [], ["fla"], "Other libraries to time too.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file to write; must not exist.")


def main(argv: list[str]) -> None:
    """Measures, prints and stores."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    logging.set_verbosity(logging.WARNING)
    for mixer in _MIXERS.value or [""]:
        if not set(mixer.split("+")) <= set(common.MIXERS):
            raise ValueError(f"--mixers: found {mixer!r}, wanted of {', '.join(common.MIXERS)}")
    options = ModelOptions(
        tuple(_MODES.value), tuple(_CONTEXTS.value), tuple(_BATCHES.value), _REPEATS.value
    )
    output = Path(_OUTPUT.value) if _OUTPUT.value else None
    if output is not None:  # what cannot be written is known before anything is timed
        if output.exists():
            raise FileExistsError(f"--output: {output} exists already and is left as it is")
        output.parent.mkdir(parents=True, exist_ok=True)
    if _PEERS.value:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        require()
    configs = [_config(mixer) for mixer in _MIXERS.value]
    # Peers first: XLA gives no memory back that it once had.
    timed = (*(bench_peer for _ in _PEERS.value), bench_model)
    found = {"size": _SIZE.value, **provenance(), "rows": []}
    for row in (row for bench in timed for config in configs for row in bench(config, options)):
        found["rows"].append(row)
        values = (f"{v:.4g}" if isinstance(v, float) else v for v in row.values())
        print(" ".join(f"{k}={v}" for k, v in zip(row, values, strict=True)), file=sys.stderr)
        if output is not None:
            output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["rows"], indent=1))


def _config(mixer: str) -> ConfigDict:
    """The configuration of a model, with the rows and the length that flags give."""
    config = pretrain.get_config(f"{_SIZE.value},{mixer}").unlock()
    given = {"data.seq_len": _SEQ_LEN.value, "model.remat": _REMAT.value}
    if _BATCH_SIZE.value:
        given |= {"train.batch_size": _BATCH_SIZE.value, "train.grad_accumulation": 1}
    config.update_from_flattened_dict({k: v for k, v in given.items() if v is not None})
    return config


if __name__ == "__main__":
    with short_errors():
        app.run(main)
