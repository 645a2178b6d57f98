"""Files that a reader finds whole: the old content or the new, never a part."""

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file so that a reader finds the old content or the new, never a part.

    Args:
      path: the file; its directory must exist.
      value: JSON values; NaN and infinities are refused, as other readers refuse them.

    Raises:
      OSError: the disk is full or not writable.
      ValueError: the value holds NaN or an infinity.
    """
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text file by way of a temporary file, flushed to disk and then renamed."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
