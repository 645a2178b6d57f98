"""Access traces of a trained RAM-Net: what is recorded, stored and drawn."""

import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.evaluate.access import save_traces, trace_workdir
from bayesmem.plots.access import plot_accesses
from bayesmem.train.loop import train
from configs import lm

SLOTS, HEADS, TOP_K = 8, 4, 2


def trained(folder, mixer, options):
    """A run of two steps on one text."""
    (folder / "train.txt").write_text("memory filter state gain " * 40)
    (folder / "valid.txt").write_text("memory filter state gain " * 10)
    (folder / "test.txt").write_text("memory filter state gain " * 10)
    config = lm.get_config(mixer).unlock()
    config.data.path, config.data.seq_len = str(folder), 32
    config.model.width, config.model.num_layers, config.model.mlp_width = 16, 2, 16
    config.model.mixer_options[mixer] = {"num_heads": HEADS} | options
    config.optimizer.warmup_steps = 1
    config.train.update({"steps": 2, "batch_size": 2, "eval_batches": 1})
    train(config.lock(), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ramnet")
    return trained(folder, "ramnet", {"digits": 3, "base": 2, "top_k": TOP_K})


def test_every_layer_head_and_token_is_recorded_stored_and_drawn(run, tmp_path):
    traces = trace_workdir(run, "memory " * 5)
    assert [trace.layer for trace in traces] == [0, 1]
    for trace in traces:
        for kind in ("write", "read"):
            ids, weights = getattr(trace, f"{kind}_ids"), getattr(trace, f"{kind}_weights")
            assert ids.shape == weights.shape == (1 + 35, HEADS, TOP_K)  # the mark of a document
            assert ids.min() >= 0 and ids.max() < SLOTS
            assert np.all((weights > 0) & (weights <= 1))
    save_traces(traces, tmp_path / "accesses.npz")
    stored = np.load(tmp_path / "accesses.npz")
    np.testing.assert_array_equal(stored["layer_1/read_ids"], traces[1].read_ids)
    assert stored["layer_0/num_slots"] == SLOTS
    figures = plot_accesses(tmp_path / "accesses.npz", tmp_path)
    assert len(figures) == 4
    for path in figures:
        assert path.stat().st_size > 1000


def test_a_repeated_token_is_a_diagonal_in_a_cape_head_and_a_band_in_the_others(run):
    first, _ = trace_workdir(run, "a" * 20)
    for ids in (first.write_ids, first.read_ids):
        later = ids[1:]  # the first layer sees the same token at each of these times
        moved = (later + jnp.arange(1, 21)[:, None, None]) % SLOTS
        cape, still = slice(0, first.cape_heads), slice(first.cape_heads, HEADS)
        assert first.cape_heads == HEADS // 2
        assert np.all(moved[:, cape] == moved[:1, cape])
        assert np.any(later[:, cape] != later[:1, cape])
        assert np.all(later[:, still] == later[:1, still])


def test_what_cannot_be_traced(run, tmp_path):
    with pytest.raises(ValueError, match="text: found an empty"):
        trace_workdir(run, "")
    with pytest.raises(FileNotFoundError, match="config.json"):
        trace_workdir(tmp_path, "a")
    other = trained(tmp_path, "linear_attention", {})
    with pytest.raises(ValueError, match="linear_attention.*'ramnet'"):
        trace_workdir(other, "a")
