"""Text as tokens come: whole characters, stop texts, going on from a context."""

import numpy as np
import pytest

from bayesmem.data.text_stream import LONGEST, TextStream
from bayesmem.data.tokenizers import load_tokenizer

BYTES = load_tokenizer("bytes")
TEXT = "aé€😀\n\nzß ok"


def pieces(text, sizes, **options):
    """Text given out for the bytes of a text, cut to these sizes in turn."""
    stream, ids, given = TextStream(BYTES, **options), BYTES.encode(text), []
    while len(ids):
        size = sizes[len(given) % len(sizes)]
        given.append(stream.push(ids[:size]))
        ids = ids[size:]
    return given, stream


@pytest.mark.parametrize("sizes", [(1,), (2, 3), (100,)])
def test_only_whole_characters_are_given_out(sizes):
    given, stream = pieces(TEXT, sizes)
    assert "\ufffd" not in "".join(given)
    assert "".join(given) + stream.finish() == TEXT
    assert stream.finish() == ""


def test_a_character_comes_with_its_last_byte():
    given, _ = pieces("😀x", (1,))
    assert given == ["", "", "", "😀", "x"]


def test_bytes_that_are_no_text_do_not_hold_up_the_rest():
    given, stream = pieces(b"\xff" * 9 + b"a\xe2\x82", (1,))
    assert "".join(given) == "\ufffd" * 9 + "a" and given[5] == "\ufffd"
    assert stream.finish() == "\ufffd"


@pytest.mark.parametrize("sizes", [(1,), (3,), (100,)])
@pytest.mark.parametrize(
    ("stops", "wanted"),
    [
        (("\n\n",), "aé€😀"),
        (("zß", "\n\nz"), "aé€😀"),
        (("\n\n\n", "é😀"), TEXT),
        (("€", "€😀"), "aé"),
    ],
)
def test_a_stop_text_ends_the_stream_and_no_part_of_it_is_given_out(sizes, stops, wanted):
    given, stream = pieces(TEXT, sizes, stops=stops)
    assert stream.stopped == (wanted != TEXT)
    assert "".join(given) + stream.finish() == wanted


def test_stop_texts_of_the_context_are_none():
    given, stream = pieces("b\nc", (1,), context=BYTES.encode("a\n"), stops=("\n", "a"))
    assert "".join(given) == "b" and stream.stopped


@pytest.mark.parametrize("cut", range(1, 18))
@pytest.mark.parametrize("stops", [(), ("\n\nz",), ("ok",), ("\n\n!",)])
def test_two_streams_give_what_one_gives(cut, stops):
    whole, one = pieces(TEXT, (1,), stops=stops)
    ids = BYTES.encode(TEXT)
    first = TextStream(BYTES, stops=stops)
    text = first.push(ids[:cut])
    if not first.stopped:
        second = TextStream(BYTES, first.context, first.printed, stops)
        text += second.push(ids[cut:]) + second.finish()
    assert text == "".join(whole) + one.finish()


def test_document_marks_are_no_text():
    stream = TextStream(BYTES, [256, *b"a"])
    assert stream.push([*b"b", 256]) == "b" and stream.finish() == ""


def test_long_texts_are_not_decoded_again_and_again():
    text = "".join(chr(0x20 + code % 0x3000) for code in range(3000))
    stream, most, given = TextStream(BYTES, stops=("never",)), 0, ""
    for token in BYTES.encode(text):
        given += stream.push(np.array([token]))
        most = max(most, len(stream.context))
    assert given + stream.finish() == text
    assert most <= LONGEST + 1


def test_an_empty_stop_text():
    with pytest.raises(ValueError, match="stop: found an empty text"):
        TextStream(BYTES, stops=("a", ""))
