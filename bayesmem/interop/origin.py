"""Where imported parameters come from: all that is needed to write the same files again."""

import json
from pathlib import Path
from typing import Any, NamedTuple

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Dtypes of tensors that float32 holds exactly: safetensors' names and ours."""


class Origin(NamedTuple):
    """The files of a checkpoint, but for the numbers.

    Attributes:
      config: the text of config.json.
      index_text: the text of model.safetensors.index.json, or None for a single file.
      shards: for each file, its tensors' dtypes: "float32", "bfloat16" or "float16".
      metadata: for each file, the strings that safetensors keeps beside the tensors, or None.
    """

    config: str
    index_text: str | None
    shards: dict[str, dict[str, str]]
    metadata: dict[str, dict[str, str] | None]

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values, for `from_json`."""
        return self._asdict()

    @classmethod
    def from_json(cls, value: Any) -> "Origin":
        """Reads what `to_json` returned.

        Raises:
          ValueError: it is something else.
        """
        wanted = set(cls._fields)
        if not isinstance(value, dict) or set(value) != wanted:
            found = sorted(value) if isinstance(value, dict) else type(value).__name__
            raise ValueError(f"origin: found {found}, wanted the keys {sorted(wanted)}")
        origin = cls(**value)
        if any(Path(file).name != file for file in origin.shards):
            raise ValueError(f"origin shards: found {sorted(origin.shards)}, wanted names of files")
        if {d for shard in origin.shards.values() for d in shard.values()} - set(DTYPES.values()):
            raise ValueError(f"origin shards: found a dtype that is none of {[*DTYPES.values()]}")
        return origin

    def with_dtype(self, dtype: str, kept: tuple[str, ...]) -> "Origin":
        """Returns the origin of the same tensors in another dtype.

        Args:
          dtype: of all tensors but those whose names end in one of `kept`, which are float32.
          kept: the ends of names.
        """
        config = json.loads(self.config)
        key = "dtype" if "dtype" in config else "torch_dtype"
        shards = {
            file: {name: "float32" if name.endswith(kept) else dtype for name in tensors}
            for file, tensors in self.shards.items()
        }
        text = json.dumps(config | {key: dtype}, indent=2) + "\n"
        return self._replace(config=text, shards=shards)
