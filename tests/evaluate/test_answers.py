"""Agreement of answers, by hand."""

import pytest

from bayesmem.evaluate.answers import agreement, normalise, share_found
from bayesmem.evaluate.subject import cut


@pytest.mark.parametrize(
    ("written", "accepted", "contains", "exact", "f1"),
    [
        (" The Cat!", ["cat"], 1, 1, 1),
        ("it was the cat", ["cat", "dog"], 1, 0, 2 * 1 / (3 + 1)),
        ("concatenate", ["cat"], 0, 0, 0),
        ("14 December", ["December 1972", "14 December 1972"], 0, 0, 2 * 2 / (2 + 3)),
        ("big big cat", ["big cat"], 1, 0, 2 * 2 / (3 + 2)),
        ("", ["cat"], 0, 0, 0),
        ("cat", ["the"], 0, 0, 0),
        ("A", ["the"], 1, 1, 1),
    ],
)
def test_agreement(written, accepted, contains, exact, f1):
    assert agreement(written, accepted) == {"contains": contains, "exact": exact, "f1": f1}


def test_normalisation_keeps_words_that_begin_like_articles():
    assert normalise("An anthem, a  theory; THE end.") == "anthem theory end"


def test_share_of_strings_found():
    assert share_found("It is 12, and AB-c", ["12", "ab-C", "13", "14"]) == 0.5


def test_text_is_cut_at_the_first_end():
    assert cut("one\ntwo. three", [".", "\n"]) == "one"
    assert cut("one two", [".", ""]) == "one two"
    assert cut("one", []) == "one"
