"""Folders of safetensors files: one, or several with an index that says which holds what."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import safetensors
from safetensors.numpy import save_file

from bayesmem.interop.origin import DTYPES, Origin

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"


class Header(NamedTuple):
    """What a file says of a tensor."""

    dtype: str
    shape: tuple[int, ...]


class TensorFiles(NamedTuple):
    """The headers of a folder's files.

    Attributes:
      folder: where they are.
      headers: for each file, those of its tensors.
      metadata: for each file, the strings kept beside the tensors, or None.
      index_text: the text of the index, or None for a single file.
    """

    folder: Path
    headers: dict[str, dict[str, Header]]
    metadata: dict[str, dict[str, str] | None]
    index_text: str | None

    def origin(self, config: str) -> Origin:
        """Returns the record of these files with the text of config.json."""
        dtypes = {
            file: {name: DTYPES[header.dtype] for name, header in tensors.items()}
            for file, tensors in self.headers.items()
        }
        return Origin(config, self.index_text, dtypes, self.metadata)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of every tensor."""
        own = [item for tensors in self.headers.values() for item in tensors.items()]
        return {name: header.shape for name, header in own}

    def tensors(self, names: Collection[str] | None = None) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the name and the array of every tensor, or of those named, one by one."""
        for file, own in self.headers.items():
            with safetensors.safe_open(self.folder / file, "np") as opened:
                for name in own if names is None else [n for n in own if n in names]:
                    yield name, opened.get_tensor(name)


def read_text(path: Path) -> str:
    """Returns the text of a JSON file of a checkpoint.

    Raises:
      FileNotFoundError: it is not there.
      ValueError: it is no JSON object.
    """
    if not path.is_file():
        raise FileNotFoundError(f"source: found no {path.name} in {path.parent}, wanted one")
    try:
        text = path.read_bytes().decode("utf-8")  # line ends as they are
        if isinstance(json.loads(text), dict):
            return text
        reason = "it begins as a list, text or number"
    except ValueError as error:
        reason = f"no JSON: {error}"
    raise ValueError(f"{path}: found no JSON object ({reason}), wanted one")


def read_headers(folder: Path) -> TensorFiles:
    """Reads what the files of a folder hold, without the numbers.

    Raises:
      FileNotFoundError: there is neither `model.safetensors` nor an index, or a file that the index
        names is missing.
      ValueError: a file is torn, the index and its files do not agree, or a dtype cannot be read;
        names files and tensors.
    """
    if (folder / SINGLE).is_file():
        headers, metadata = _read_file(folder / SINGLE)
        files = TensorFiles(folder, {SINGLE: headers}, {SINGLE: metadata}, None)
    elif (folder / INDEX).is_file():
        files = _read_indexed(folder, read_text(folder / INDEX))
    else:
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else "no folder"
        raise FileNotFoundError(f"source: found {found} in {folder}, wanted {SINGLE} or {INDEX}")
    wrong = [
        f"{name} in {file}: found {header.dtype}"
        for file, tensors in files.headers.items()
        for name, header in tensors.items()
        if header.dtype not in DTYPES
    ]
    if wrong:
        wanted = ", ".join(DTYPES)
        raise ValueError("\n  ".join([f"{folder}: dtypes other than {wanted}:", *wrong]))
    return files


def write_files(folder: Path, origin: Origin, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes config.json, the files with the tensors and the index into a folder.

    Args:
      folder: where to; it exists.
      origin: which files, and the dtypes.
      tensors: float32, in the order of the origin's shards.
    """
    (folder / CONFIG).write_bytes(origin.config.encode("utf-8"))
    coming, total = iter(tensors), 0
    for file, dtypes in origin.shards.items():
        own: dict[str, np.ndarray] = {}
        for name, dtype in dtypes.items():
            found, array = next(coming)
            if found != name:
                raise ValueError(f"tensors: found {found}, wanted {name} here")
            own[name] = _cast(name, array, dtype)
        total += sum(array.nbytes for array in own.values())
        path = folder / file
        path.touch()
        mode = path.stat().st_mode  # safetensors writes files that others cannot read
        save_file(own, path, metadata=origin.metadata.get(file))
        path.chmod(mode)
    if origin.index_text is not None:
        (folder / INDEX).write_bytes(_sized(origin.index_text, total).encode("utf-8"))


def _cast(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """The array in another dtype; ValueError where float16 is too small for its numbers."""
    if dtype == "float16" and (largest := np.abs(array).max(initial=0.0)) > np.finfo(dtype).max:
        raise ValueError(f"dtype: found float16 for {name} with {largest:g}, wanted a wider one")
    return array.astype(jnp.dtype(dtype))


def _sized(index: str, total: int) -> str:
    """The index with the size that its files have now: as it was, where that is the same."""
    content = json.loads(index)
    metadata = content.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("total_size") in (None, total):
        return index
    return json.dumps(content | {"metadata": metadata | {"total_size": total}}, indent=2) + "\n"


def _read_indexed(folder: Path, index: str) -> TensorFiles:
    weight_map = json.loads(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{folder / INDEX}: found no weight_map, wanted the file of each tensor")
    names = sorted({str(file) for file in weight_map.values()})
    bad = [name for name in names if Path(name).name != name]
    if bad:
        raise ValueError(f"{folder / INDEX}: found files {bad}, wanted names without a folder")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder}: found no {', '.join(missing)}, which {INDEX} names")
    headers: dict[str, dict[str, Header]] = {}
    metadata: dict[str, dict[str, str] | None] = {}
    for name in names:
        headers[name], metadata[name] = _read_file(folder / name)
    _require_agreement(folder, weight_map, headers)
    return TensorFiles(folder, headers, metadata, index)


def _require_agreement(
    folder: Path, weight_map: Mapping[str, Any], headers: Mapping[str, Mapping[str, Header]]
) -> None:
    lacking = [
        f"{tensor}: the index says {file}, which lacks it"
        for tensor, file in sorted(weight_map.items())
        if tensor not in headers[file]
    ]
    unlisted = [
        f"{tensor}: in {file}, where the index has it in {weight_map.get(tensor, 'no file')}"
        for file, tensors in headers.items()
        for tensor in tensors
        if weight_map.get(tensor) != file
    ]
    if lacking or unlisted:
        listed = "\n  ".join([*lacking, *unlisted])
        raise ValueError(f"{folder / INDEX}: found other tensors than its files have:\n  {listed}")


def _read_file(path: Path) -> tuple[dict[str, Header], dict[str, str] | None]:
    try:
        with safetensors.safe_open(path, "np") as opened:
            parts = {name: opened.get_slice(name) for name in opened.keys()}
            headers = {
                name: Header(part.get_dtype(), tuple(part.get_shape()))
                for name, part in parts.items()
            }
            return headers, opened.metadata()
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path}: found a torn or damaged file ({error}), wanted safetensors"
        ) from error
