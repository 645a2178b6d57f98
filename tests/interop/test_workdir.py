"""Workdirs made of checkpoints, and checkpoints made of workdirs."""

import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bayesmem.interop import load_fla, save_fla
from bayesmem.interop import workdir as workdir_module
from bayesmem.interop.workdir import export_workdir, import_workdir
from bayesmem.models import LanguageModel
from bayesmem.train.checkpoint import restore_params, save_checkpoint
from bayesmem.train.loop import train
from bayesmem.train.parts import build_model
from bayesmem.train.settings import MeshSettings, Settings
from bayesmem.train.sharding import make_mesh
from bayesmem.train.step import TrainState, abstract_params
from configs import lm
from tests.data import tiny_tokenizers as tiny
from tests.evaluate.test_workdir import text_config
from tests.interop.fixture_models import FOLDER, read_tensors
from tests.interop.test_new_models import make
from tests.tolerances import assert_close

MODEL = "model.safetensors"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A checkpoint of fla's with 300 tokens and a tokenizer."""
    folder = tmp_path_factory.mktemp("source") / "model"
    config, params = make("gated_deltanet", {"num_heads": 2}, {"vocab_size": 300})
    save_fla(folder, config, params, dtype="bfloat16")
    tiny.save_json(folder / "tokenizer.json", end="<end>")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    return folder


def restored(workdir):
    config = json.loads((workdir / "config.json").read_text())
    model = build_model(config)
    target = abstract_params(model, make_mesh(MeshSettings()))
    return config, restore_params(workdir / "checkpoints", target)


def assert_same_params(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_a_workdir_holds_the_parameters_and_a_whole_config(source, tmp_path):
    import_workdir(str(source), tmp_path / "run")
    config, (step, params) = restored(tmp_path / "run")
    assert step == 0
    assert_same_params(params, load_fla(source).params)
    base = lm.get_config().to_dict()
    assert set(config) == set(base)
    for section in ("data", "optimizer", "train", "mesh"):
        assert set(config[section]) == set(base[section])
    assert set(config["model"]) >= set(base["model"])
    Settings.from_config(config)
    assert config["data"]["tokenizer"] == str(tmp_path / "run" / "tokenizer.json")
    assert (tmp_path / "run" / "tokenizer_config.json").is_file()


def test_a_workdir_goes_out_as_it_came_in_and_with_new_numbers(source, tmp_path):
    import_workdir(str(source), tmp_path / "run")
    assert export_workdir(tmp_path / "run", tmp_path / "out") == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {p.name for p in source.iterdir()}
    for path in source.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    _, (_, params) = restored(tmp_path / "run")
    doubled = jax.tree.map(lambda x: jnp.asarray(2 * x), params)
    counts = jnp.int32(7), jnp.int32(0)
    state = TrainState(counts[0], doubled, optax.EmptyState(), jax.random.key(0), counts[1])
    save_checkpoint(tmp_path / "run" / "checkpoints", state, {})
    assert export_workdir(tmp_path / "run", tmp_path / "later") == 7
    assert_same_params(load_fla(tmp_path / "later").params, doubled)
    found, before = (read_tensors(folder / MODEL) for folder in (tmp_path / "later", source))
    assert {n: t[:2] for n, t in found.items()} == {n: t[:2] for n, t in before.items()}


def test_a_run_trained_here_goes_out(tmp_path):
    (tmp_path / "text.txt").write_text("memory filter state gain " * 100)
    config = text_config(tmp_path / "text.txt", steps=2).copy_and_resolve_references().unlock()
    config.model.mixers, config.model.mixer_options = ("gla",), {"gla": {"num_heads": 2}}
    train(config.lock(), tmp_path / "run")
    assert export_workdir(tmp_path / "run", tmp_path / "out", "float32") == 2
    again = load_fla(tmp_path / "out")
    config, (_, params) = restored(tmp_path / "run")
    tokens = jnp.arange(40)[None]
    wanted, _ = build_model(config).apply({"params": params}, tokens)
    found, _ = LanguageModel(again.config).apply({"params": again.params}, tokens)
    assert_close(found, wanted, "float32")
    config["model"] |= {"mixers": ["retnet"], "mixer_options": {"retnet": {"num_heads": 2}}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="does not fit"):
        export_workdir(tmp_path / "run", tmp_path / "other")


def test_a_tokenizer_is_chosen(source, tmp_path, caplog):
    other = tiny.save_json(tmp_path / "own.json", vocab_size=290)
    import_workdir(str(source), tmp_path / "own", str(other))
    assert (tmp_path / "own" / "tokenizer.json").read_bytes() == other.read_bytes()
    import_workdir(str(source), tmp_path / "bytes", "bytes")
    config, _ = restored(tmp_path / "bytes")
    assert config["data"]["tokenizer"] == "bytes"
    assert not (tmp_path / "bytes" / "tokenizer.json").exists()
    model = tiny.save_model(tmp_path / "own.model")
    with pytest.raises(
        ValueError, match=r"tokenizer: found the 330 ids of .*own\.model for a model of 300"
    ):
        import_workdir(str(source), tmp_path / "small", str(model))
    with pytest.raises(FileNotFoundError, match="tokenizer: found no file nowhere.json"):
        import_workdir(str(source), tmp_path / "small", "nowhere.json")
    with caplog.at_level(logging.WARNING, "bayesmem"):
        with pytest.raises(
            ValueError, match="found the 257 ids of bytes for a model of 48, .*--tokenizer"
        ):
            import_workdir(str(FOLDER / "gla"), tmp_path / "small")
    assert "no tokenizer: text is read as bytes" in caplog.text
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"own", "bytes", "own.json", "own.model"}


def test_what_is_there_stays_and_what_breaks_off_leaves_nothing(source, tmp_path, monkeypatch):
    import_workdir(str(source), tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    with pytest.raises(FileExistsError, match="workdir: found a folder that is not empty"):
        import_workdir(str(source), tmp_path / "run")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before

    def stopped(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(workdir_module, "save_checkpoint", stopped)
    with pytest.raises(KeyboardInterrupt):
        import_workdir(str(source), tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_origin_that_is_none_is_named(source, tmp_path):
    import_workdir(str(source), tmp_path / "run")
    path = tmp_path / "run" / "origin.json"
    content = json.loads(path.read_text())
    shards = ({MODEL: {"x": "int8"}}, {"../model.safetensors": {"x": "float32"}})
    wrong = ("{", "[]", "{}", *(json.dumps(content | {"shards": shard}) for shard in shards))
    for text in wrong:
        path.write_text(text)
        with pytest.raises(ValueError, match="origin.json: found no origin"):
            export_workdir(tmp_path / "run", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="config.json"):
        export_workdir(tmp_path / "empty", tmp_path / "out")
