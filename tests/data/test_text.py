"""Windows give back every token of every document once."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesmem.data import text
from bayesmem.data.tokenizers import ByteTokenizer

BYTES = ByteTokenizer()


def test_a_small_corpus_in_windows():
    packed = text.pack([b"abc", b"d"], BYTES)
    np.testing.assert_array_equal(packed.tokens, [256, 97, 98, 99, 256, 100, 256])
    assert text.num_windows(packed, 5) == 2
    batch = text.windows(packed, 5, np.array([1, 0, -1]))
    np.testing.assert_array_equal(
        batch["inputs"], [[100, 0, 0, 0, 0], [256, 97, 98, 99, 256], [0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        batch["targets"], [[256] + [-100] * 4, [97, 98, 99, 256, 100], [-100] * 5]
    )
    np.testing.assert_array_equal(
        batch["segment_ids"], [[0, -1, -1, -1, -1], [0, 0, 0, 0, 1], [-1] * 5]
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=6), st.integers(1, 40))
def test_windows_hold_every_target_of_every_document_once(contents, seq_len):
    packed = text.pack(contents, BYTES)
    count = text.num_windows(packed, seq_len)
    batch = text.windows(packed, seq_len, np.arange(count))
    assert all(a.shape == (count, seq_len) and a.dtype == np.int32 for a in batch.values())
    real = batch["segment_ids"] >= 0
    np.testing.assert_array_equal(real, batch["targets"] != text.IGNORED_TARGET)
    assert real.any(axis=1).all()
    wanted_inputs = [token for content in contents for token in [256, *content]]
    wanted_targets = [token for content in contents for token in [*content, 256]]
    assert batch["inputs"][real].tolist() == wanted_inputs
    assert batch["targets"][real].tolist() == wanted_targets
    # A segment starts at the start of a window and at every 256, nowhere else.
    for inputs, segments in zip(batch["inputs"], batch["segment_ids"], strict=True):
        steps = np.diff(segments[segments >= 0])
        assert segments[0] == 0
        np.testing.assert_array_equal(steps, inputs[1 : len(steps) + 1] == text.DOCUMENT_END)
