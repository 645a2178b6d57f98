"""Tokenizers: text comes back, nothing in a text is a mark, every error says what was wanted."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, processors

from bayesmem.data.tokenizers import load_tokenizer, to_bytes
from tests.data import tiny_tokenizers as tiny

TEXTS = ["", "the key", "  two  spaces\n\nand lines\n", "é ß 漢 \U0001f600", "a\x00b\x0c"]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    return {
        "bytes": "bytes",
        "json": str(tiny.save_json(folder / "tokenizer.json")),
        "model": str(tiny.save_model(folder / "tokenizer.model")),
    }


@pytest.fixture(params=["bytes", "json", "model"])
def tokenizer(request, paths):
    return load_tokenizer(paths[request.param])


@given(st.text())
def test_bytes_come_back_whatever_the_string(string):
    tokenizer = load_tokenizer("bytes")
    ids = tokenizer.encode(string)
    if string.encode("utf-8", "ignore").decode() == string:
        assert tokenizer.decode(ids) == string
    np.testing.assert_array_equal(ids, list(to_bytes(string)))
    assert ids.dtype == np.int32


def test_bytes_are_the_ids_they_always_were():
    tokenizer = load_tokenizer("")
    assert (tokenizer.name, tokenizer.vocab_size, tokenizer.document_end) == ("bytes", 257, 256)
    np.testing.assert_array_equal(tokenizer.encode(b"\xff\x00a"), [255, 0, 97])
    assert tokenizer.decode([97, 256, 255]) == "a\ufffd"


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_and_ids_are_in_the_vocabulary(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and ids.ndim == 1
    assert ((ids >= 0) & (ids < tokenizer.vocab_size)).all()
    assert tokenizer.decode(ids) == text
    np.testing.assert_array_equal(tokenizer.encode(text.encode()), ids)


def test_marks_are_left_out_and_never_made(tokenizer):
    end = tokenizer.document_end
    assert 0 <= end < tokenizer.vocab_size
    for spelled in ("<|endoftext|>", "</s>", "<s>"):
        text = f"the {spelled} key"
        ids = tokenizer.encode(text)
        assert end not in ids
        assert tokenizer.decode([end, *ids, end]) == text


def test_bytes_that_are_no_text_are_replaced_where_a_library_reads_strings(paths):
    for kind in ("json", "model"):
        tokenizer = load_tokenizer(paths[kind])
        assert tokenizer.decode(tokenizer.encode(b"the \xff key")) == "the \ufffd key"
        assert tokenizer.decode(tokenizer.encode("the \ud800 key")).startswith("the \ufffd")


def test_ids_outside_of_the_vocabulary_are_named(tokenizer):
    """C13: a model of more ids than the tokenizer has may not pass them on."""
    for bad in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=f"tokens: found {bad}, wanted ids in"):
            tokenizer.decode([1, bad])


def test_marks_lengths_and_fillings_of_a_file_are_not_heeded(tmp_path):
    saved = tiny.byte_level()
    plain = load_tokenizer(str(tiny.save_json(tmp_path / "plain.json")))
    saved.enable_truncation(max_length=3)
    saved.enable_padding(length=100)
    end = "<|endoftext|>"
    saved.post_processor = processors.TemplateProcessing(
        single=f"{end} $A {end}", special_tokens=[(end, 0)]
    )
    saved.save(str(tmp_path / "other.json"))
    other = load_tokenizer(str(tmp_path / "other.json"))
    text = " ".join(tiny.WORDS)
    np.testing.assert_array_equal(other.encode(text), plain.encode(text))
    assert 3 < len(plain.encode(text)) < 100


def test_the_vocabulary_reaches_to_the_largest_id(tmp_path):
    words = {"<eos>": 0, "key": 7, "value": 3}
    tokenizers.Tokenizer(models.WordLevel(words, unk_token="<eos>")).save(str(tmp_path / "t.json"))
    tokenizer = load_tokenizer(str(tmp_path / "t.json"))
    assert (tokenizer.vocab_size, tokenizer.document_end) == (8, 0)


def test_the_document_end_is_the_one_that_is_stated(tmp_path):
    saved = tiny.byte_level()
    saved.add_special_tokens(["<stop>"])
    path = tmp_path / "tokenizer.json"
    saved.save(str(path))
    config = tmp_path / "tokenizer_config.json"
    first = load_tokenizer(str(path))
    for stated in ("<stop>", {"content": "<stop>"}):
        config.write_text(json.dumps({"eos_token": stated}))
        other = load_tokenizer(str(tmp_path))
        assert other.document_end == saved.token_to_id("<stop>") != first.document_end == 0
        assert other.fingerprint != first.fingerprint
    config.write_text('{"eos_token": "<gone>"}')
    with pytest.raises(ValueError, match="found none of .*<gone>"):
        load_tokenizer(str(path))
    config.write_text("[]")
    with pytest.raises(ValueError, match=r"cannot read .*tokenizer_config\.json"):
        load_tokenizer(str(path))


def test_the_fingerprint_is_of_the_content_not_of_the_path(tmp_path, paths):
    moved = tmp_path / "moved.model"
    moved.write_bytes(Path(paths["model"]).read_bytes())
    names = {kind: load_tokenizer(spec).fingerprint for kind, spec in paths.items()}
    assert load_tokenizer(str(moved)).fingerprint == names["model"]
    assert len(set(names.values())) == 3
    other = load_tokenizer(str(tiny.save_json(tmp_path / "other.json", vocab_size=290)))
    assert other.fingerprint != names["json"]


def test_specs_that_are_no_tokenizer(tmp_path):
    for spec, found in (("gpt2", "nothing"), (str(tmp_path), "a folder")):
        with pytest.raises(ValueError, match=f"tokenizer: found {found} at .*tokenizer.json"):
            load_tokenizer(spec)
    for name, content in (("x.json", b"{}"), ("x.model", b"no model"), ("x.model", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"tokenizer: .*{name}"):
            load_tokenizer(str(tmp_path / name))
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="an unknown kind of file"):
        load_tokenizer(str(tmp_path / "x.bin"))
    tiny.save_json(tmp_path / "endless.json", end="<none>")
    with pytest.raises(ValueError, match="wanted a token that ends a document"):
        load_tokenizer(str(tmp_path / "endless.json"))
    tiny.save_model(tmp_path / "endless.model", eos_id=-1)
    with pytest.raises(ValueError, match="no eos"):
        load_tokenizer(str(tmp_path / "endless.model"))
