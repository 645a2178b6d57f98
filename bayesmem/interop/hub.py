"""The folder of a source: a local one, or a model of the Hugging Face hub."""

import importlib
import re
from pathlib import Path

PREFIX = "hf:"
FILES = ("config.json", "*.safetensors", "model.safetensors.index.json")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


def local_folder(source: str) -> Path:
    """Returns the folder with a checkpoint's files, fetched first where it is one of the hub.

    Args:
      source: a folder, or "hf:ORG/NAME", with "@REVISION" behind it for another than the newest.

    Raises:
      FileNotFoundError: there is no such folder.
      ValueError: the spec has another form, or the hub cannot be reached or has no such model.
      ImportError: `huggingface_hub` is not installed.
    """
    if not source.startswith(PREFIX):
        folder = Path(source)
        if not folder.is_dir():
            raise FileNotFoundError(f"source: found no folder {source}, wanted one or hf:ORG/NAME")
        return folder
    match = re.fullmatch(r"hf:([^/@:]+/[^/@:]+)(?:@([^@]+))?", source)
    if match is None:
        raise ValueError(f"source: found {source!r}, wanted hf:ORG/NAME or hf:ORG/NAME@REVISION")
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ImportError(
            f"source: {source}: found no package 'huggingface_hub' ({error}), wanted it installed: "
            f"pip install huggingface_hub; or the folder of a copy"
        ) from error
    try:
        found = hub.snapshot_download(
            match[1], revision=match[2], allow_patterns=[*FILES, *TOKENIZERS]
        )
    except Exception as error:  # of the network, the hub or the cache
        raise ValueError(
            f"source: cannot load {source} from the Hugging Face hub: "
            f"{type(error).__name__}: {error}"
        ) from error
    return Path(found)
