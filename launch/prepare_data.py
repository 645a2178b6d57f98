"""Tokenizes text once, for training: `python -m launch.prepare_data --path=TEXT --output=DIR`.

TEXT is a file, a folder or hf:NAME (bayesmem/data/documents.py); its splits are those of training
on it. DIR then is the `--config.data.path` of runs, with `--config.data.tokenizer` as `--tokenizer`
was here. The same command continues after an interruption and makes only what is missing.
"""

import json
import os
import sys
from pathlib import Path

from absl import app, flags
from tqdm import tqdm

from bayesmem.data.preparation import SHARD_BYTES, Source, prepare
from launch.errors import short_errors

_PATH = flags.DEFINE_string("path", None, "File, folder or hf:NAME.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "Folder of the shards.", required=True)
_TOKENIZER = flags.DEFINE_string("tokenizer", "bytes", "bytes, tokenizer.json or .model.")
_TEXT_KEY = flags.DEFINE_string("text_key", "text", "Key of the text in .jsonl and tables.")
_PROCESSES = flags.DEFINE_integer("processes", os.cpu_count() or 1, "Processes that tokenize.")
_SHARD_MB = flags.DEFINE_float("shard_mb", SHARD_BYTES / 1e6, "Text a shard at least, in MB.")


def main(argv: list[str]) -> None:
    """Prepares and prints the counts of each split."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    shard_bytes = max(1, round(_SHARD_MB.value * 1e6))
    source = Source(_PATH.value, _TOKENIZER.value, _TEXT_KEY.value, shard_bytes)
    made = 0
    with tqdm(unit="B", unit_scale=True, desc="reading") as bar:

        def progress(done: int, total: int, tokens: int) -> None:
            nonlocal made
            made += tokens
            if total and bar.total is None:
                bar.set_description("tokenizing", refresh=False)
                bar.reset(total)
            if total:
                bar.set_postfix_str(f"{made:,} tokens", refresh=False)
            bar.update(done - bar.n)

        manifest = prepare(source, Path(_OUTPUT.value), _PROCESSES.value, progress)
    counts = ("documents", "tokens", "bytes")
    splits = {
        split: {**{name: entry[name] for name in counts}, "shards": len(entry["shards"])}
        for split, entry in manifest["splits"].items()
    }
    print(json.dumps({"output": _OUTPUT.value, **splits}, indent=1))


if __name__ == "__main__":
    try:
        with short_errors():
            app.run(main)
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command continues")
