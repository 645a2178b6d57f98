"""Speed of models: what is run and counted, not how fast it is."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.evaluate import model_peers
from bayesmem.evaluate.model_speed import (
    DECODED,
    ModelOptions,
    Program,
    bench_model,
    measured,
)
from bayesmem.models import LanguageModel, ModelConfig
from bayesmem.models.context import state_at
from configs import pretrain


def small(mixer, **changes):
    config = pretrain.get_config(f"tiny,{mixer}").unlock()
    config.model.update({"width": 16, "num_layers": 2, "mlp_width": 0, "vocab_size": 32} | changes)
    for own in config.model.mixer_options.values():
        own["num_heads"] = 1
    config.train.batch_size, config.data.seq_len, config.train.loss_tokens = 2, 8, 3
    return config


@pytest.mark.parametrize("scan", [False, True])
def test_every_program_has_a_row(scan):
    options = ModelOptions(contexts=(9,), batches=(1, 3), repeats=1)
    rows = list(bench_model(small("bayesian+attention", scan_layers=scan), options))
    found = [(row["mode"], row["batch"], row["tokens"]) for row in rows]
    assert found == [("train", 2, 8), ("prefill", 1, 9), ("decode", 1, 9), ("decode", 3, 9)]
    for row in rows:
        per_call = {"train": 16, "prefill": 9, "decode": row["batch"] * DECODED}[row["mode"]]
        assert row["tokens_per_s"] == pytest.approx(1e3 * per_call / row["ms"])
        assert row["peak_mb"] > 0 and row["model"] == "bayesian+attention"


def test_a_state_at_a_context_counts_it_and_keeps_memories_of_the_prompt():
    model = LanguageModel(ModelConfig.from_dict(small("gated_deltanet+attention").model))
    tokens = jnp.ones((2, 4), jnp.int32)
    params = model.init(jax.random.key(0), tokens)
    state = state_at(model, params, tokens, 700)
    wanted = model.apply(params, tokens)[1]
    jax.tree.map(np.testing.assert_array_equal, state.layers[0], wanted.layers[0])
    cache = state.layers[1]
    assert (np.asarray(state.position) == 700).all() and (np.asarray(cache.length) == 700).all()
    assert (np.asarray(cache.document[:, :700]) == 0).all()
    assert (np.asarray(cache.document[:, 700:]) == -1).all()
    assert np.asarray(cache.key, np.float32).std() > 0.5


def test_too_small_a_memory_is_a_row_and_another_error_is_raised():
    def fail(text):
        raise RuntimeError(text)

    options = ModelOptions(repeats=1)
    assert measured(lambda: fail("RESOURCE_EXHAUSTED: 9"), options) == {"error": "out of memory"}
    program = Program(lambda: fail("CUDA out of memory."), 1, 1.0)
    assert measured(lambda: program, options) == {"error": "out of memory"}
    with pytest.raises(RuntimeError, match="shape"):
        measured(lambda: fail("shape"), options)


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="modes: found 'fly'"):
        ModelOptions(modes=("fly",))
    with pytest.raises(ValueError, match="contexts"):
        ModelOptions(contexts=(0,))
    with pytest.raises(ValueError, match="batches"):
        ModelOptions(batches=())
    with pytest.raises(ValueError, match="repeats"):
        ModelOptions(repeats=0)


def test_a_peer_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="torch cannot be imported.*peers"):
        next(model_peers.bench_peer(small("gla"), ModelOptions()))
    with pytest.raises(ImportError, match="torch cannot be imported"):
        model_peers.require()
    assert list(model_peers.bench_peer(small("ramnet"), ModelOptions())) == []


def test_what_a_peer_raises_is_a_row_and_its_doubts_a_note(monkeypatch):
    class Model:
        def parameters(self):
            return []

        def zero_grad(self, set_to_none):
            pass

    def training(*_):
        raise RuntimeError("no such kernel\nand more")

    program = Program(lambda: None, 1, 1.0)
    monkeypatch.setattr(model_peers, "_training", training)
    monkeypatch.setattr(model_peers, "_decoding", lambda *_: program)
    monkeypatch.setattr(model_peers, "lift_guard", lambda: "may be wrong")
    options = ModelOptions(("train", "decode"), (8,), (1,), 1)

    def rows():
        return list(model_peers._rows(Model(), "gated_deltanet", small("gla"), options))

    train, decode = rows()
    assert train["error"] == "RuntimeError: no such kernel" and "note" not in train
    assert decode["tokens_per_s"] > 0 and "note" not in decode
    monkeypatch.setattr(model_peers, "_training", lambda *_: program)
    assert rows()[0]["note"] == "may be wrong"


def test_the_command_leaves_a_file_that_is_there(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text("mine")
    line = [sys.executable, "-m", "launch.bench_model", f"--output={path}"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 1 and "exists already" in done.stderr
    assert path.read_text() == "mine" and "Traceback" not in done.stderr
