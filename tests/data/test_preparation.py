"""Prepared folders: the tokens of reading directly, whatever interrupts, and no manifest lies."""

import json
import lzma

import numpy as np
import pytest

from bayesmem.data import preparation, shards, text
from bayesmem.data.examples import load_examples, vocab_size
from bayesmem.data.loader import make_loader
from bayesmem.data.preparation import Source, prepare
from bayesmem.data.splits import read_split, stream_splits, survey_splits
from bayesmem.data.tokenizers import load_tokenizer
from tests.data import tiny_tokenizers as tiny

SPLITS = ("train", "valid", "test")


@pytest.fixture
def corpus(tmp_path):
    """Splits that are stated: 12, 3 and 2 documents of 1 to 400 bytes."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split, count in zip(SPLITS, (12, 3, 2), strict=True):
        lines = tiny.sentences(60, seed=count)
        documents = ["\n".join(lines[: rng.integers(1, 9)]) + "\n" for _ in range(count)]
        documents[0] = "x\n"
        content = "\f\n".join(documents).encode()
        (folder / f"{split}.txt.xz").write_bytes(lzma.compress(content))
    return str(folder)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(shards, "BLOCK", 16)


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    return {
        "bytes": "bytes",
        "json": str(tiny.save_json(folder / "tokenizer.json")),
        "model": str(tiny.save_model(folder / "tokenizer.model")),
    }


def data(path, tokenizer="bytes", seq_len=8):
    return {
        "task": "text",
        "path": str(path),
        "text_key": "text",
        "tokenizer": tokenizer,
        "seq_len": seq_len,
    }


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["bytes", "json", "model"])
@pytest.mark.parametrize("shard_bytes", [1, 500, 10**6])
def test_windows_are_those_of_reading_directly(
    corpus, tmp_path, small_blocks, specs, kind, shard_bytes
):
    out = tmp_path / "out"
    manifest = prepare(Source(corpus, specs[kind], shard_bytes=shard_bytes), out)
    assert (len(manifest["splits"]["train"]["shards"]) == 12) == (shard_bytes == 1)
    for split in SPLITS:
        for seq_len in (1, 7, 64, 5000):
            direct, prepared = (
                load_examples(data(path, specs[kind], seq_len), split) for path in (corpus, out)
            )
            assert len(direct) == len(prepared)
            indices = np.random.default_rng(1).integers(-1, len(direct), 9)
            for name, wanted in direct.take(indices).items():
                np.testing.assert_array_equal(prepared.take(indices)[name], wanted)
        contents = [document.content for document in read_split(corpus, split)]
        entry = manifest["splits"][split]
        assert entry["documents"] == len(contents) and entry["bytes"] == sum(map(len, contents))
        assert entry["tokens"] == len(direct.packed.tokens) - 1
    assert vocab_size(data(out, specs[kind])) == manifest["tokenizer"]["vocab_size"]
    assert manifest["dtype"] == "uint16"


def test_ids_of_a_large_vocabulary_are_kept(tmp_path, small_blocks):
    assert text.token_dtype(1 << 16) == np.uint16 and text.token_dtype((1 << 16) + 1) == np.uint32
    tokens = np.arange(70_000, 70_050).astype(np.uint32)
    counts = shards.write_shard(tmp_path / "a.tokens.array_record", tokens, np.array([0, 20]), 9)
    manifest = {
        "made_from": {"block": 16},
        "dtype": "uint32",
        "tokenizer": {"document_end": 100_000},
    }
    stream = shards.ShardedTokens(tmp_path, [counts, counts], manifest)
    np.testing.assert_array_equal(stream[np.arange(101)], [*tokens, *tokens, 100_000])
    np.testing.assert_array_equal(stream.starts(), [0, 20, 50, 70])


def test_many_shards_with_few_open_files(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_OPEN_READERS", 2)
    prepare(Source(corpus, shard_bytes=1), tmp_path / "out")
    direct, prepared = (load_examples(data(path), "train") for path in (corpus, tmp_path / "out"))
    everything = np.arange(len(direct))
    for _ in range(2):
        for name, wanted in direct.take(everything).items():
            np.testing.assert_array_equal(prepared.take(everything)[name], wanted)


@pytest.mark.parametrize("done", [0, 1, 5])
def test_an_interrupted_preparation_is_continued(corpus, tmp_path, monkeypatch, done):
    whole, out = tmp_path / "whole", tmp_path / "out"
    source = Source(corpus, shard_bytes=1)
    prepare(source, whole)
    out.mkdir()
    (out / "preparation.json.tmp").write_text("{")

    def stop(position, total, tokens):
        if total and len(list(out.glob("*.array_record"))) >= done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(source, out, progress=stop)
    with pytest.raises(ValueError, match="unfinished preparation in .*run again"):
        load_examples(data(out), "train")
    (out / "train-00007.tokens.array_record.123.tmp").write_bytes(b"torn by a kill")
    with pytest.raises(ValueError, match="holds another preparation"):
        prepare(source._replace(shard_bytes=2), out)

    written = []
    write = shards.write_shard
    monkeypatch.setattr(shards, "write_shard", lambda p, *a: written.append(p.name) or write(p, *a))
    prepare(source, out)
    assert len(written) == 17 - done
    assert files(out) == files(whole)
    assert prepare(source, out) == json.loads((whole / "manifest.json").read_text())
    assert len(written) == 17 - done


def test_what_is_missing_is_made_anew(corpus, tmp_path):
    source, out = Source(corpus, shard_bytes=500), tmp_path / "out"
    prepare(source, out)
    whole = files(out)
    (out / "train-00001.tokens.array_record").unlink()
    torn = out / "valid-00000.tokens.array_record"
    torn.write_bytes(torn.read_bytes()[:-100])
    for split, name in (("train", "train-00001"), ("valid", "valid-00000")):
        with pytest.raises(ValueError, match=f"found 1 of . shards of '{split}' missing.*{name}"):
            load_examples(data(out), split)
    prepare(source, out)
    assert files(out) == whole


def test_bytes_that_a_disk_has_changed_are_noticed(corpus, tmp_path):
    out = tmp_path / "out"
    prepare(Source(corpus), out)
    path = out / "train-00000.tokens.array_record"
    content = bytearray(path.read_bytes())
    written = np.flatnonzero(np.frombuffer(bytes(content), np.uint8))  # the rest is padding
    content[written[len(written) // 2]] ^= 255
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"shard: cannot read .*train-00000"):
        examples = load_examples(data(out), "train")
        examples.take(np.arange(len(examples)))


def test_processes_make_the_same_files(corpus, tmp_path, specs):
    source = Source(corpus, specs["json"], shard_bytes=500)
    reports = []
    prepare(source, tmp_path / "one")
    prepare(source, tmp_path / "two", 2, lambda *report: reports.append(report))
    assert files(tmp_path / "two") == files(tmp_path / "one")
    read = [report[0] for report in reports if not report[1]]
    done, totals, tokens = zip(*reports[len(read) :], strict=True)
    assert len(read) == 17 and read == sorted(read) and read[-1] == totals[0]
    manifest = shards.read_manifest(tmp_path / "two")
    assert list(done) == sorted(done) and done[0] == 0 and done[-1] == totals[-1]
    assert sum(tokens) == sum(entry["tokens"] for entry in manifest["splits"].values())


def test_folders_of_something_else_are_left_alone(corpus, tmp_path, specs):
    out = tmp_path / "out"
    prepare(Source(corpus), out)
    whole = files(out)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"(?s)another preparation, of .*fingerprint: 'bytes'"):
        prepare(Source(corpus, specs["json"]), out)
    with pytest.raises(ValueError, match=r"another preparation.*\n  digest: "):
        prepare(Source(corpus + "/valid.txt.xz"), out)
    with pytest.raises(ValueError, match=r"found \['notes.txt'\]"):
        prepare(Source(corpus), tmp_path / "other")
    with pytest.raises(ValueError, match="found a file"):
        prepare(Source(corpus), tmp_path / "file")
    assert files(out) == whole and (tmp_path / "other" / "notes.txt").read_text() == "mine"


def test_a_source_or_tokenizer_that_changes_meanwhile(corpus, tmp_path, monkeypatch, specs):
    survey = survey_splits(corpus)
    monkeypatch.setattr(preparation, "survey_splits", lambda *_, **__: survey)
    (tmp_path / "corpus" / "test.txt.xz").write_bytes(lzma.compress(b"something else"))
    with pytest.raises(ValueError, match="found other text in .*wanted it unchanged"):
        prepare(Source(corpus), tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()

    monkeypatch.undo()
    path = tiny.save_json(tmp_path / "tokenizer.json")
    load, seen = load_tokenizer, []

    def change_it_behind(spec):
        seen.append(load(spec))
        tiny.save_json(path, vocab_size=290)
        return seen[-1]

    monkeypatch.setattr(preparation, "load_tokenizer", change_it_behind)
    with pytest.raises(ValueError, match="tokenizer: found another file at .*tokenizer.json"):
        prepare(Source(corpus, str(path)), tmp_path / "out2")


def test_another_tokenizer_or_split_than_prepared(corpus, tmp_path, specs):
    out = tmp_path / "out"
    prepare(Source(corpus + "/train.txt.xz", specs["json"]), out)
    for other in ("bytes", "model"):
        with pytest.raises(ValueError, match=r"data\.tokenizer: found .*wanted that of .*300 ids"):
            load_examples(data(out, specs[other]), "train")
    manifest = json.loads((out / "manifest.json").read_text())
    del manifest["splits"]["test"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"split: found \['train', 'valid'\] .*wanted 'test'"):
        load_examples(data(out, specs["json"]), "test")
    for content, words in (("{", "no manifest"), ('{"format": "x"}', "found the format 'x'")):
        (out / "manifest.json").write_text(content)
        with pytest.raises(ValueError, match=words):
            load_examples(data(out, specs["json"]), "train")


def test_empty_sources(tmp_path, specs, monkeypatch):
    folder = tmp_path / "empty"
    folder.mkdir()
    for content in (None, b"", b"\f\n\f\n"):
        if content is not None:
            (folder / "a.txt").write_bytes(content)
        with pytest.raises(ValueError, match="no document in . files"):
            prepare(Source(str(folder)), tmp_path / "out")
    with pytest.raises(ValueError, match="found nothing at"):
        prepare(Source(str(tmp_path / "gone")), tmp_path / "out")
    with pytest.raises(ValueError, match="tokenizer: found nothing at"):
        prepare(Source(str(folder), "gone.json"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_documents_without_a_token(tmp_path):
    """A tokenizer may leave nothing of a text: then it is no document."""

    class Silent:
        name, vocab_size, document_end, fingerprint = "silent", 3, 0, "silent"

        def encode(self, content):
            return np.array([1, 2] if content == b"loud" else [], np.int32)

    packed = text.pack([b"x", b"loud", b"y", b"loud"], Silent())
    np.testing.assert_array_equal(packed.tokens, [0, 1, 2, 0, 1, 2, 0])
    np.testing.assert_array_equal(packed.starts, [0, 3])
    with pytest.raises(ValueError, match="found no document with a token"):
        text.pack([b"x"], Silent())
    Silent.vocab_size = 2
    with pytest.raises(ValueError, match=r"silent: found ids from 0 to 2, wanted them in \[0, 2\)"):
        text.pack([b"loud"], Silent())


def test_streamed_splits_are_those_read_at_once(tmp_path):
    """Many documents by their names' hashes, few by their place."""
    many, few = tmp_path / "many.jsonl", tmp_path / "few"
    many.write_text("".join(json.dumps({"text": str(n)}) + "\n" for n in range(300)))
    few.mkdir()
    (few / "a.txt").write_bytes(bytes(range(93)).replace(b"\f", b"."))
    (few / "b.txt").write_bytes(bytes(range(93, 100)))
    for path, cut in ((many, False), (few, True)):
        survey = survey_splits(path)
        assert survey.cut == cut
        streamed = list(stream_splits(path, survey))
        for split in SPLITS:
            assert sorted(d for s, d in streamed if s == split) == sorted(read_split(path, split))


def test_a_stored_place_means_nothing_in_another_preparation(corpus, tmp_path, specs):
    prepare(Source(corpus, specs["json"]), tmp_path / "json")
    prepare(Source(corpus, specs["json"], shard_bytes=1), tmp_path / "again")
    prepare(Source(corpus, specs["model"]), tmp_path / "model")

    def loader(name, kind):
        return make_loader(data(tmp_path / name, specs[kind]), batch_size=2, seed=0)

    first = loader("json", "json")
    wanted = [next(first) for _ in range(3)]
    again = loader("json", "json")
    next(again)
    stored = json.loads(json.dumps(again.get_state()))
    resumed = loader("json", "json")
    resumed.set_state(stored)
    for batch in wanted[1:]:
        found = next(resumed)
        assert all((found[name] == batch[name]).all() for name in batch)
    with pytest.raises(ValueError, match="state: stored with"):
        loader("model", "model").set_state(stored)

    # As many tokens, but others.
    states = []
    for name, content in (("a", b"ab" * 100), ("b", b"ba" * 100)):
        (tmp_path / "corpus/train.txt.xz").write_bytes(lzma.compress(content))
        prepare(Source(corpus), tmp_path / name)
        states.append(loader(name, "bytes").get_state())
    assert states[0]["examples"] == states[1]["examples"]
    assert states[0]["checksum"] != states[1]["checksum"]
