"""Reading and splitting documents: every source, every error, no document in two splits."""

import json
import lzma
import sys

import pytest

from bayesmem.data.documents import Document, read_documents
from bayesmem.data.mqar import SPLITS
from bayesmem.data.splits import read_split, split_documents
from bayesmem.data.tokenizers import to_bytes


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def lines(*records):
    return "\n".join(json.dumps(record) for record in records).encode() + b"\n"


def test_form_feed_lines_separate_documents(tmp_path):
    file = write(tmp_path / "books.txt", b"\f\none\n\f\r\ntw\fo\n a\f\n\f\nthree\n\f")
    found = read_documents(file)
    assert [document.content for document in found] == [b"one\n", b"tw\fo\n a\f\n", b"three\n"]
    assert len({document.name for document in found}) == 3


def test_a_folder_is_its_known_files_at_any_depth(tmp_path):
    write(tmp_path / "b.txt", b"b")
    write(tmp_path / "a" / "c.txt.xz", lzma.compress(b"c"))
    write(
        tmp_path / "a" / "d.jsonl",
        lines({"text": "d1"}, {"text": ""}) + b"\n" + lines({"text": "d2"}),
    )
    write(tmp_path / "empty.txt", b"")
    write(tmp_path / "readme.md", b"left alone")
    assert read_documents(tmp_path) == [
        Document("a/c.txt.xz", b"c"),
        Document("a/d.jsonl#1", b"d1"),
        Document("a/d.jsonl#4", b"d2"),
        Document("b.txt", b"b"),
    ]


def test_jsonl_key_and_bytes_that_are_no_utf8(tmp_path):
    file = write(tmp_path / "x.jsonl", b'{"body": "\xe9"}\n{"body": "\\ud800"}\n')
    contents = [document.content for document in read_documents(file, text_key="body")]
    assert contents == [b"\xe9", b"\xed\xa0\x80"]
    assert to_bytes("\u00e9") == b"\xc3\xa9"


def test_text_that_is_no_utf8_is_kept(tmp_path):
    assert read_documents(write(tmp_path / "x.txt", b"\xff\xfe"))[0].content == b"\xff\xfe"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"{", ["x.jsonl:2", "JSON"]),
        (b"[" * 100_000, ["x.jsonl:2", "JSON"]),
        (b"1" * 6_000, ["x.jsonl:2", "JSON"]),
        (b"[1]", ["x.jsonl:2", "list", "'text'"]),
        (b'{"txt": "a"}', ["x.jsonl:2", "txt", "'text'"]),
        (b'{"text": 3}', ["x.jsonl:2", "'text'"]),
    ],
)
def test_a_bad_line_is_named(tmp_path, bad, words):
    file = write(tmp_path / "x.jsonl", lines({"text": "a"}) + bad)
    with pytest.raises(ValueError) as error:
        read_documents(file)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_paths_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"path: found nothing at .*gone"):
        read_documents(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"x\.csv.*\.jsonl"):
        read_documents(write(tmp_path / "x.csv", b"a"))
    with pytest.raises(ValueError, match="no document in 0 files"):
        read_documents(tmp_path)
    with pytest.raises(ValueError, match="no document in 1 files"):
        read_documents(write(tmp_path / "empty.txt", b""))
    with pytest.raises(ValueError, match=r"cannot read .*bad\.txt\.xz"):
        read_documents(write(tmp_path / "bad.txt.xz", b"no archive"))
    links = write(tmp_path / "links" / "a.txt", b"a").parent
    (links / "dangling.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"cannot read .*dangling\.txt"):
        read_documents(links)


def test_many_documents_split_by_name_alone():
    documents = [Document(f"{i}.txt", b"x") for i in range(1000)]
    splits = split_documents(documents)
    assert sorted(sum(splits.values(), [])) == sorted(documents)
    assert 870 < len(splits["train"]) < 930
    assert min(len(splits["valid"]), len(splits["test"])) > 25
    # Other content, another order and other neighbours leave a document where it is.
    changed = split_documents([Document(name, b"other") for name, _ in documents[:499:-1]])
    for split in SPLITS:
        names = [name for name, _ in splits[split]]
        assert [name for name, _ in changed[split]] == [n for n in names if int(n[:-4]) >= 500]


def test_the_hash_is_the_same_everywhere():
    """Pinned: a change would move documents from train to test."""
    splits = split_documents([Document(f"{i}.txt", b"x") for i in range(100)])
    assert {split: splits[split][0].name for split in SPLITS} == {
        "train": "71.txt",
        "valid": "4.txt",
        "test": "70.txt",
    }


def test_few_documents_are_cut_by_position(tmp_path):
    content = bytes(range(100))
    write(tmp_path / "a.txt", content[:93])
    write(tmp_path / "b.txt", content[93:])
    parts = {split: read_split(tmp_path, split) for split in SPLITS}
    assert parts["train"] == [Document("a.txt", content[:90])]
    assert parts["valid"] == [Document("a.txt", content[90:93]), Document("b.txt", content[93:95])]
    assert parts["test"] == [Document("b.txt", content[95:])]
    with pytest.raises(ValueError, match="found 3 bytes"):
        read_split(write(tmp_path / "tiny" / "c.txt", b"abc"), "valid")


def test_stated_splits(tmp_path):
    write(tmp_path / "train.txt.xz", lzma.compress(b"train"))
    write(tmp_path / "valid" / "a.txt", b"valid")
    write(tmp_path / "books.tsv", b"left alone")
    assert read_split(tmp_path, "train")[0].content == b"train"
    assert read_split(tmp_path, "valid")[0].content == b"valid"
    with pytest.raises(ValueError, match=r"train\.txt\.xz.*one entry for 'test'"):
        read_split(tmp_path, "test")
    write(tmp_path / "train.jsonl", lines({"text": "again"}))
    with pytest.raises(ValueError, match=r"train\.jsonl.*one entry for 'train'"):
        read_split(tmp_path, "train")
    with pytest.raises(ValueError, match="split: found 'dev'"):
        read_split(tmp_path, "dev")


def test_the_default_corpus_is_the_standard_library():
    splits = {split: read_split("", split) for split in SPLITS}
    names = [name for documents in splits.values() for name, _ in documents]
    assert len(names) == len(set(names)) > 200
    assert {"ast.py", "json/decoder.py"} <= set(names)
    assert all(name.endswith(".py") for name in names)
    folders = {part for name in names for part in name.split("/")[:-1]}
    assert not folders & {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
    assert not any(name.startswith("_sysconfigdata") for name in names)
    assert all(len(documents) > 5 for documents in splits.values()), sys.version
    again = read_split("", "valid")
    assert again == splits["valid"]
