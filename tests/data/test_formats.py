"""Kinds of files and the hub: the same documents from all, errors of each, missing packages."""

import gzip
import json
import lzma
import sys
import types

import numpy as np
import pytest
from array_record.python import array_record_module

from bayesmem.data.documents import read_documents
from bayesmem.data.formats import EXTENSIONS, TOKEN_SHARD
from bayesmem.data.hub import parse_hub
from bayesmem.data.splits import read_split, stream_splits, survey_splits

TEXTS = ["one\nline", "twö", "", "three\n"]


def jsonl(texts, key="text"):
    return b"".join(json.dumps({key: text, "n": 1}).encode() + b"\n" for text in texts)


def zst(content):
    zstandard = pytest.importorskip("zstandard")
    half = len(content) // 2  # two frames, as of two files that were joined
    return b"".join(
        zstandard.ZstdCompressor().compress(c) for c in (content[:half], content[half:])
    )


PACKERS = {".xz": lzma.compress, ".gz": gzip.compress, ".zst": zst}


def write_records(path, records):
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def write_parquet(path, columns):
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table(columns), path)
    return path


def contents(path, **options):
    return [document.content.decode() for document in read_documents(path, **options)]


@pytest.mark.parametrize("packed", ["", *PACKERS])
def test_compressed_text_and_lines(tmp_path, packed):
    pack = PACKERS.get(packed, bytes)
    (tmp_path / f"a.jsonl{packed}").write_bytes(pack(jsonl(TEXTS)))
    (tmp_path / f"b.txt{packed}").write_bytes(pack(b"\f\n".join(t.encode() for t in ("x\n", "y"))))
    found = read_documents(tmp_path)
    assert [document.content.decode() for document in found] == [t for t in TEXTS if t] + [
        "x\n",
        "y",
    ]
    names = [document.name for document in found]
    assert names == [f"a.jsonl{packed}#{n}" for n in (1, 2, 4)] + [
        f"b.txt{packed}#{n}" for n in (1, 2)
    ]


@pytest.mark.parametrize("packed", PACKERS)
def test_a_torn_file_is_an_error_and_not_a_shorter_one(tmp_path, packed):
    rng = np.random.default_rng(0)
    lines = jsonl([rng.bytes(40).hex() for _ in range(3000)])
    whole = PACKERS[packed](lines)
    path = tmp_path / f"a.jsonl{packed}"
    for content in (whole[: len(whole) // 4], whole[: len(whole) * 3 // 4], whole[:-3], b"no"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"cannot read .*a\.jsonl\{packed}"):
            read_documents(path)
    path.write_bytes(whole)
    assert len(read_documents(path)) == 3000


def test_lines_longer_than_what_is_read_at_once(tmp_path):
    texts = ["a" * 3_000_000, "b", "c" * 1_048_576]
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts))
    assert contents(tmp_path) == texts


def test_tables_and_records(tmp_path):
    write_parquet(tmp_path / "t.parquet", {"text": TEXTS, "n": [1, 2, 3, 4]})
    assert contents(tmp_path / "t.parquet") == [text for text in TEXTS if text]
    many = [str(n) for n in range(600)]
    write_parquet(tmp_path / "t.parquet", {"body": many})
    assert contents(tmp_path / "t.parquet", text_key="body") == many
    with pytest.raises(ValueError, match=r"t\.parquet found the columns \['body'\], wanted 'text'"):
        contents(tmp_path / "t.parquet")
    write_parquet(tmp_path / "t.parquet", {"text": ["a", None]})
    with pytest.raises(ValueError, match=r"t\.parquet#2 found NoneType"):
        contents(tmp_path / "t.parquet")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(ValueError, match=r"cannot read .*t\.parquet"):
        contents(tmp_path / "t.parquet")

    path = write_records(tmp_path / "r.array_record", [t.encode() for t in many])
    assert contents(path) == many
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"found no record in .*r\.array_record"):
        contents(path)


def test_shards_of_tokens_are_no_documents(tmp_path):
    path = write_records(tmp_path / f"train-00000{TOKEN_SHARD}", [b"x"])
    with pytest.raises(ValueError, match="no document in 0 files"):
        read_documents(tmp_path)
    with pytest.raises(ValueError, match="wanted a folder or one of"):
        read_documents(path)


@pytest.mark.parametrize(
    ("name", "package"), [("a.jsonl.zst", "zstandard"), ("a.parquet", "pyarrow")]
)
def test_a_missing_package_is_named(tmp_path, monkeypatch, name, package):
    assert name.endswith(EXTENSIONS)
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{name}.*{package}.*bayesmem\[data\]"):
        read_documents(tmp_path)


class Rows(list):
    """The part of a data set of the hub that is read."""

    def __init__(self, texts, column="text"):
        super().__init__({column: text} for text in texts)
        self.column_names = [column]

    def select_columns(self, names):
        assert set(names) <= set(self.column_names)
        return self


def fake_hub(monkeypatch, splits, calls=None):
    def load_dataset(name, config, *, split):
        if calls is not None:
            calls.append((name, config, split))
        if name != "owner/name":
            raise ConnectionError("no route to the hub")
        return Rows(splits[split])

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    module.get_dataset_split_names = lambda name, config: list(splits)
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_hub_with_splits(monkeypatch):
    calls = []
    fake_hub(monkeypatch, {"train": ["a", "b"], "validation": ["c"], "extra": ["d"]}, calls)
    assert [d.content for d in read_split("hf:owner/name:conf", "valid")] == [b"c"]
    assert calls == [("owner/name", "conf", "validation")]
    survey = survey_splits("hf:owner/name")
    streamed = [(s, d.content) for s, d in stream_splits("hf:owner/name", survey)]
    assert streamed == [("train", b"a"), ("train", b"b"), ("valid", b"c")]
    assert contents("hf:owner/name@extra") == ["d"]
    with pytest.raises(ValueError, match="wanted one entry for 'test'"):
        read_split("hf:owner/name", "test")
    with pytest.raises(ValueError, match=r"found the columns \['text'\], wanted 'body'"):
        contents("hf:owner/name", text_key="body")


def test_hub_without_splits_is_split_by_document(monkeypatch):
    fake_hub(monkeypatch, {"train": [str(n) for n in range(200)]})
    parts = [read_split("hf:owner/name", split) for split in ("train", "valid", "test")]
    assert len(parts[0]) > 150 and sum(map(len, parts)) == 200 and all(parts)


def test_hub_errors(monkeypatch):
    fake_hub(monkeypatch, {"train": ["a"]})
    with pytest.raises(ValueError, match="cannot load hf:owner/gone .*ConnectionError: no route"):
        contents("hf:owner/gone")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"hf:owner/name.*'datasets'.*bayesmem\[data\]"):
        read_split("hf:owner/name", "train")
    for bad in ("hf:", "hf:a:b:c", "hf:a@b@c"):
        with pytest.raises(ValueError, match="wanted hf:NAME"):
            parse_hub(bad)
