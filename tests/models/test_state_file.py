"""A generation in a file: going on from it is going on (C10), and what is refused."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.models import LanguageModel
from bayesmem.models.generate import decode, start
from bayesmem.models.sampling import Sampling, row_keys
from bayesmem.models.state_file import describe_model, load_generation, save_generation
from tests.models.cases import MODELS, QUICK_BUILD, VOCAB, close, config, parameters

STEPS = 130
SPLITS = (1, 2, 3, 63, 64, 65, 129)
TOKENS = np.random.default_rng(2).integers(0, VOCAB, (1, STEPS)).astype(np.int32)
MADE_BY = {"model": {"width": 16, "mixers": ["a", "b"]}, "step": 3}


def model(name, **changes):
    return LanguageModel(config(name, **{"max_length": STEPS + 2} | changes))


@functools.cache
def call(name):
    return jax.jit(model(name).apply, compiler_options=QUICK_BUILD)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", MODELS)
def test_the_second_part_from_a_file_is_that_of_one_pass(name, split, tmp_path):
    """At once and token by token, from one file that is read twice; the state after it too.

    A generation has not read its last token, so its state is that before `split - 1`.
    """
    whole, last = call(name)(parameters(name), TOKENS)
    path = tmp_path / "state.npz"
    first = start(model(name), parameters(name)["params"], TOKENS[:, :split], row_keys(0, 1))
    save_generation(path, first, MADE_BY, {})
    stored = path.read_bytes()
    at_once, _ = load_generation(path, model(name), MADE_BY)
    later = np.concatenate([at_once.token[:, None], TOKENS[:, split:]], axis=1)
    logits, state = call(name)(parameters(name), later, at_once.state)
    close(logits, whole[:, split - 1 :])
    jax.tree.map(close, state, last)
    stepwise, _ = load_generation(path, model(name), MADE_BY)
    parts, state = [], stepwise.state
    for step in range(later.shape[1]):
        part, state = call(name)(parameters(name), later[:, step : step + 1], state)
        parts.append(part)
    close(np.concatenate(parts, axis=1), whole[:, split - 1 :])
    jax.tree.map(close, state, last)
    assert path.read_bytes() == stored


def words(generation):
    return generation._replace(keys=jax.random.key_data(generation.keys))


@pytest.mark.parametrize("name", ["hybrid", "ramnet"])
def test_tokens_drawn_from_a_file_are_those_of_one_run_each_time(name, tmp_path):
    net, params, sampling = model(name), parameters(name)["params"], Sampling(temperature=2.0)
    prompts = [TOKENS[0, :9], TOKENS[0, 20:22]]
    go_on = functools.partial(decode, net, params, sampling=sampling)
    first = start(net, params, prompts, row_keys(3, 2), max_new_tokens=20)
    whole, _ = go_on(first, max_new_tokens=12)
    parts, middle = go_on(first, max_new_tokens=5)
    save_generation(tmp_path / "folder" / "state", middle, MADE_BY, {"text": "\ufffd\n"})
    for _ in range(2):
        loaded, notes = load_generation(tmp_path / "folder" / "state", net, MADE_BY)
        assert notes == {"text": "\ufffd\n"}
        jax.tree.map(np.testing.assert_array_equal, words(loaded), words(middle))
        rest, _ = go_on(loaded, max_new_tokens=7)
        for row in range(2):
            assert [*parts[row], *rest[row]] == whole[row].tolist()
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["state"]


def test_bfloat16_caches_come_back_bit_for_bit(tmp_path):
    net = model("hybrid", dtype="bfloat16")
    first = start(net, parameters("hybrid")["params"], [TOKENS[0, :9]], row_keys(0, 1))
    assert first.state.layers[1].key.dtype == jnp.bfloat16
    save_generation(tmp_path / "state", first, MADE_BY, {})
    loaded, _ = load_generation(tmp_path / "state", net, MADE_BY)
    jax.tree.map(np.testing.assert_array_equal, words(loaded), words(first))
    assert loaded.state.layers[1].key.dtype == jnp.bfloat16


@pytest.fixture
def saved(tmp_path):
    net = model("hybrid")
    first = start(net, parameters("hybrid")["params"], [TOKENS[0, :9]], row_keys(0, 1))
    save_generation(tmp_path / "state", first, MADE_BY, {})
    return tmp_path / "state"


def test_a_state_of_another_model_is_refused(saved):
    other = {"model": {"width": 24, "mixers": ["a", "b"]}, "step": 4}
    with pytest.raises(ValueError, match="of another model") as error:
        load_generation(saved, model("hybrid"), other)
    assert "model.width: found 16, wanted 24" in str(error.value)
    assert "step: found 3, wanted 4" in str(error.value)
    assert "mixers" not in str(error.value)
    with pytest.raises(ValueError, match=r"do not both have .*state/layers/1/"):
        load_generation(saved, model("bayesian"), MADE_BY)
    with pytest.raises(ValueError, match=r"layers/1/key as float32\[1, 132, 1, 8\], wanted.*140"):
        load_generation(saved, model("hybrid", max_length=140), MADE_BY)


@pytest.mark.parametrize("damage", ["cut", "text", "record", "object"])
def test_a_damaged_file_is_said_to_be_one(saved, damage):
    if damage == "cut":
        saved.write_bytes(saved.read_bytes()[:-200])
    elif damage == "text":
        saved.write_text("no state")
    else:
        record = json.dumps({"format": 1}) if damage == "record" else {"format": 1}
        with saved.open("wb") as stream:
            np.savez(stream, record=np.array(record))
    with pytest.raises(ValueError, match="is damaged, or no state of generation"):
        load_generation(saved, model("hybrid"), MADE_BY)
    with pytest.raises(FileNotFoundError):
        load_generation(saved.with_name("nothing"), model("hybrid"), MADE_BY)


def test_a_file_that_cannot_be_written_leaves_the_one_there(saved, monkeypatch):
    stored = saved.read_bytes()

    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full)
    loaded, _ = load_generation(saved, model("hybrid"), MADE_BY)
    with pytest.raises(OSError, match="No space"):
        save_generation(saved, loaded, MADE_BY, {})
    assert saved.read_bytes() == stored


def test_models_are_told_apart_by_config_and_parameters():
    params = parameters("hybrid")["params"]
    one = describe_model(model("hybrid"), params)
    assert json.loads(json.dumps(one)) == one
    assert describe_model(model("hybrid", remat=True, repeatable=True), params) == one
    for changes in ({"max_length": 140}, {"norm_eps": 1e-6}, {"mlp_width": 32}):
        assert describe_model(model("hybrid", **changes), params) != one
    other = jax.tree.map(lambda leaf: leaf, params)
    other["head"] = {"table": params["head"]["table"] + 1e-3}
    assert describe_model(model("hybrid"), other)["parameters"] != one["parameters"]
    # A recurrent model has no caches, so their capacity does not tell it from itself.
    values = parameters("ramnet")["params"]
    short, long = (describe_model(model("ramnet", max_length=n), values) for n in (140, 150))
    assert short == long
