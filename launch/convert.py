"""Reads and writes checkpoints of flash-linear-attention in the format of Hugging Face.

In: `python -m launch.convert --source=FOLDER --workdir=DIR` makes a workdir on which
launch.evaluate, launch.generate and all else that takes a run work. FOLDER holds config.json and
safetensors files; `hf:ORG/NAME` or `hf:ORG/NAME@REVISION` is fetched from the Hugging Face hub, by
the package huggingface_hub. `--tokenizer=FILE` is a tokenizer.json, a SentencePiece .model or
"bytes", if it is not the source's own.

Out: `python -m launch.convert --workdir=DIR --output=FOLDER [--dtype=bfloat16]` writes the newest
usable checkpoint of a run. One that came in goes out with the files, names and dtypes it had.
"""

import logging
from pathlib import Path

from absl import app, flags
from absl import logging as absl_logging

from bayesmem.interop.workdir import export_workdir, import_workdir
from launch.errors import short_errors

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
_SOURCE = flags.DEFINE_string("source", None, "Folder or hf:ORG/NAME to read.")
_TOKENIZER = flags.DEFINE_string("tokenizer", "", "File of the tokenizer, if not the source's.")
_OUTPUT = flags.DEFINE_string("output", None, "Folder to write, not there yet.")
_DTYPE = flags.DEFINE_string(
    "dtype", None, "float32, bfloat16 or float16; as it came in, or float32, if not given."
)


def main(argv: list[str]) -> None:
    """Reads or writes, and says what."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    # Orbax reports every file it touches; its warnings and our own lines stay.
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("bayesmem").setLevel(logging.INFO)
    if (_SOURCE.value is None) == (_OUTPUT.value is None):
        raise ValueError("--source, --output: found both or none, wanted one of the two")
    workdir = Path(_WORKDIR.value)
    if _OUTPUT.value is not None:
        if _TOKENIZER.value:
            raise ValueError("--tokenizer: found with --output, wanted only with --source")
        step = export_workdir(workdir, Path(_OUTPUT.value), _DTYPE.value)
        print(f"Written: {_OUTPUT.value}, step {step}")
        return
    if _DTYPE.value is not None:
        raise ValueError("--dtype: found with --source, wanted only with --output")
    config = import_workdir(_SOURCE.value, workdir, _TOKENIZER.value)
    mixer = config.mixers[0]
    print(f"Written: {workdir}, {config.num_layers} layers of {mixer}, width {config.width}")


if __name__ == "__main__":
    with short_errors():
        app.run(main)
