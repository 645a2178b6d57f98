"""Preparation: text is tokenized once, in parallel, to the shards of a prepared folder (`shards`).

A first pass over the source counts it and takes its digest, a second one cuts it into jobs: each is
some consecutive documents of one split, of at least `shard_bytes` together, and becomes one shard.
Which documents a job has depends on the source alone, so a job that is done need not be done again.

While a folder is not finished it holds `preparation.json`, which says of what, and one `.json` for
each shard that is done. The manifest is written when all are; then these files go. A folder that
holds anything else, or another preparation, is left as it is.
"""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bayesmem.data import shards, text
from bayesmem.data.checks import check_count
from bayesmem.data.mqar import SPLITS
from bayesmem.data.shard_jobs import NOTE, Place, cut_jobs, run_jobs
from bayesmem.data.splits import Survey, stream_splits, survey_splits
from bayesmem.data.tokenizers import Tokenizer, load_tokenizer
from bayesmem.files import write_json

logger = logging.getLogger(__name__)

SHARD_BYTES = 16_000_000
# What makes two preparations the same; the rest of a request only tells where it came from.
_DECIDES = ("format", "digest", "fingerprint", "shard_bytes", "block")


class Source(NamedTuple):
    """What is prepared.

    Attributes:
        path: A path as `documents` says.
        tokenizer: A spec of `load_tokenizer`.
        text_key: The key of the text in `.jsonl` lines and of its column in tables.
        shard_bytes: Bytes of text a shard, at least.
    """

    path: str
    tokenizer: str = "bytes"
    text_key: str = "text"
    shard_bytes: int = SHARD_BYTES


def prepare(
    source: Source,
    folder: Path,
    processes: int = 1,
    progress: Callable[[int, int, int], None] | None = None,
) -> dict[str, Any]:
    """Tokenizes a source into a folder; finishes what an earlier call began.

    Args:
        source: What is prepared.
        folder: A new or empty folder, or one of the same preparation, finished or not.
        processes: How many tokenize at once; 1: this one.
        progress: Called with (bytes read, 0, 0) after every document of the first pass, then with
            (bytes done, bytes of all, tokens of the shard) after every shard.

    Returns:
        The manifest.

    Raises:
        ValueError: A bad source or tokenizer, a source that changes meanwhile, or a folder that
            holds something else.
        OSError: The folder cannot be written.
    """
    check_count("processes", processes, minimum=1)
    check_count("shard_bytes", source.shard_bytes, minimum=1)
    tokenizer = load_tokenizer(source.tokenizer)
    report = progress or (lambda done, total, tokens: None)
    survey = survey_splits(
        source.path, text_key=source.text_key, progress=lambda size: report(size, 0, 0)
    )
    request = _request(source, tokenizer, survey)
    _claim(folder, request)
    earlier = _finished(folder)
    if manifest := shards.read_manifest(folder, finished=False):
        of_splits = manifest["splits"].values()
        if len(earlier) == sum(len(entry["shards"]) for entry in of_splits):
            _clean(folder)
            return manifest
    report(0, survey.size, 0)
    done = 0
    counts: dict[str, list[shards.ShardCounts]] = {split: [] for split in SPLITS}
    stream = stream_splits(source.path, survey, text_key=source.text_key)
    place = Place(folder, tokenizer.name, tokenizer.fingerprint)
    jobs = cut_jobs(stream, source.shard_bytes)
    for job, shard in run_jobs(jobs, earlier, processes, place):
        done += job.size
        counts[job.split].append(shard)
        report(done, survey.size, shard.tokens)
    manifest = _manifest(request, tokenizer, counts)
    write_json(folder / shards.MANIFEST, manifest)
    _clean(folder)
    return manifest


def _request(source: Source, tokenizer: Tokenizer, survey: Survey) -> dict[str, Any]:
    """What decides the shards, and where it came from."""
    return {
        "format": shards.FORMAT,
        "path": source.path,
        "text_key": source.text_key,
        "documents": survey.documents,
        "bytes": survey.size,
        "digest": survey.digest,
        "tokenizer": tokenizer.name,
        "fingerprint": tokenizer.fingerprint,
        "shard_bytes": source.shard_bytes,
        "block": shards.BLOCK,
    }


def _claim(folder: Path, request: dict[str, Any]) -> None:
    """Makes the folder this preparation's, or raises ValueError if it is something else's."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output: found a file at {folder}, wanted a folder")
    folder.mkdir(parents=True, exist_ok=True)
    earlier = _earlier_request(folder)
    if earlier is None:
        torn = f"{shards.REQUEST}.tmp"  # of a kill right at the start
        if found := sorted(entry.name for entry in folder.iterdir() if entry.name != torn):
            raise ValueError(
                f"output: found {found[:3]} in {folder}, wanted a new or an empty folder, or one "
                f"of the same preparation"
            )
        write_json(folder / shards.REQUEST, request)
        return
    names = [name for name in _DECIDES if earlier.get(name) != request[name]]
    if names:
        differing = [f"{n}: {earlier.get(n)!r} there, {request[n]!r} asked" for n in names]
        where = f"{earlier.get('path')!r} with the tokenizer {earlier.get('tokenizer')!r}"
        raise ValueError(
            "\n  ".join([f"output: {folder} holds another preparation, of {where}:", *differing])
            + "\nuse another folder"
        )
    for left in folder.glob("*.tmp"):
        left.unlink()


def _earlier_request(folder: Path) -> dict[str, Any] | None:
    """What a folder was prepared from, finished or not; None if it was not."""
    path = folder / shards.REQUEST
    if manifest := shards.read_manifest(folder, finished=False):
        return manifest["made_from"]
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"output: found no request of a preparation in {path}") from error


def _finished(folder: Path) -> dict[str, shards.ShardCounts]:
    """The shards that are whole, by their notes or an earlier manifest."""
    if manifest := shards.read_manifest(folder, finished=False):
        noted = [shard for entry in manifest["splits"].values() for shard in entry["shards"]]
    else:
        noted = [
            json.loads(path.read_text()) for path in folder.glob(f"*{shards.TOKEN_SHARD}{NOTE}")
        ]
    found = [shards.ShardCounts(**shard) for shard in noted]
    missing = set(shards.missing_shards(folder, found))
    return {shard.file: shard for shard in found if shard.file not in missing}


def _manifest(
    request: dict[str, Any], tokenizer: Tokenizer, counts: dict[str, list[shards.ShardCounts]]
) -> dict[str, Any]:
    entries = {}
    for split, of_split in counts.items():
        # A shard of documents without a token has nothing to read.
        kept = sorted(shard for shard in of_split if shard.tokens)
        sums = {n: sum(getattr(s, n) for s in kept) for n in ("documents", "tokens", "bytes")}
        if of_split and not kept:
            raise ValueError(f"path: found no document with a token in {split!r}, wanted text")
        if kept:
            entries[split] = {**sums, "shards": [shard._asdict() for shard in kept]}
    made_with = ("name", "fingerprint", "vocab_size", "document_end")
    return {
        "format": shards.FORMAT,
        "made_from": request,
        "tokenizer": {name: getattr(tokenizer, name) for name in made_with},
        "dtype": text.token_dtype(tokenizer.vocab_size).name,
        "splits": entries,
    }


def _clean(folder: Path) -> None:
    """Removes what only an unfinished folder needs."""
    for path in (*folder.glob(f"*{shards.TOKEN_SHARD}{NOTE}"), folder / shards.REQUEST):
        path.unlink(missing_ok=True)
