"""The first parameters of a student: what is the teacher's, and how near its rule the filter is."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bayesmem.distill.initial import keep_init, make_init
from bayesmem.distill.replacement import NEW, SCALE, make_pair
from bayesmem.distill.settings import StudentSettings
from bayesmem.distill.streams import match_layers
from bayesmem.models import LanguageModel, ModelConfig
from bayesmem.ops import OBS_VAR_FLOOR
from tests.distill.cases import (
    QUICK_BUILD,
    WIDTH,
    batch,
    case,
    flat,
    parameters,
    teacher_config,
)
from tests.tolerances import assert_close

NOISES = ("observation_noise", "process_noise")


@pytest.mark.parametrize(
    ("name", "initial"),
    [("plain", "close"), ("plain", "scratch"), ("wide", "close"), ("deltanet", "close")],
)
def test_what_is_not_new_is_the_teachers(name, initial):
    own = case(name, initial=initial)
    found, wanted = flat(own.student), flat(own.wanted)
    shapes = jax.eval_shape(
        LanguageModel(own.pair.student).init, jax.random.key(0), np.ones((1, 2)).astype(int)
    )
    shapes = flat(nn.meta.unbox(shapes["params"]))
    assert {n: x.shape for n, x in found.items()} == {n: x.shape for n, x in shapes.items()}
    for leaf, value in found.items():
        new = any(noise in leaf for noise in NOISES)
        if not own.pair.trains(leaf) or (initial == "close" and not new):
            np.testing.assert_array_equal(value, wanted[leaf], err_msg=leaf)
    assert any(NOISES[0] in leaf for leaf in found)


def test_scratch_is_a_new_layer():
    own = case(initial="scratch")
    model = LanguageModel(own.pair.student)
    init = jax.jit(model.init, compiler_options=QUICK_BUILD)
    fresh = nn.meta.unbox(init(jax.random.key(1), jnp.zeros((1, 2), jnp.int32)))["params"]
    replaced = [leaf for leaf in flat(own.student) if own.pair.trains(leaf)]
    for leaf in replaced:
        assert_close(flat(own.student)[leaf], flat(fresh)[leaf], "float32")
    kernels = [leaf for leaf in replaced if leaf.endswith("kernel")]
    assert all((flat(own.student)[n] != flat(own.wanted).get(n, 0.0)).any() for n in kernels)
    assert own.pair.student.build_mixer(1, parent=None).prior_var == 1.0


@pytest.mark.parametrize(("name", "groups"), [("plain", 1), ("wide", 3), ("deltanet", 2)])
def test_noises_make_the_gain_the_teachers_strength(name, groups):
    """c / (r^2 + c) is sigmoid(x W) within a factor of 1 +- (z + 0.002), z = c exp(-x W) < 1.

    r^2 = log(1 + z) + 1e-6 is not z: it is less by at most z^2 / 2, and its floor more.
    """
    own = case(name, num_groups=groups, process_ratio=0.7)
    place = f"block_{own.pair.places[0]}"
    x = np.random.default_rng(3).standard_normal((18, WIDTH))
    for turn in range(own.pair.student.num_layers // own.pair.period):
        tree = own.student["layers"][place]["mixer"]
        gate = tree["observation_noise"]["gate"]
        observed = x @ np.float64(gate["kernel"][turn]) + np.float64(gate["bias"][turn])
        observed = np.logaddexp(0, observed)
        kernel = np.float64(own.given[place]["beta"]["gate"]["kernel"][turn])
        odds = np.exp(-x @ kernel)[..., None]
        wanted = 1 / (1 + odds)
        found = SCALE / (SCALE + observed.reshape(18, -1, groups) + OBS_VAR_FLOOR)
        assert wanted.min() < 0.3 and wanted.max() > 0.7 and SCALE * odds.max() < 1
        assert (np.abs(found - wanted) <= wanted * (SCALE * odds + 2e-3)).all()


@pytest.mark.parametrize("name", ["plain", "wide", "deltanet"])
def test_process_noise_keeps_the_covariance_level(name):
    own = case(name, process_ratio=0.7)
    layer = own.pair.student.build_mixer(own.pair.places[0], parent=None)
    place = f"block_{own.pair.places[0]}"
    gate = own.student["layers"][place]["mixer"]["process_noise"]["gate"]
    theirs = own.given[place]
    found = np.logaddexp(0, np.float64(gate["bias"]))  # at x = 0
    wanted, follows = 0.5 / layer.layout.key_dim, 0.0
    if name != "deltanet":
        step = np.logaddexp(0, np.float64(theirs["decay"]["dt_bias"]))
        decay = np.exp(-np.exp(np.float64(theirs["decay"]["A_log"])) * step)
        wanted, follows = 1 - decay**2 + wanted, theirs["decay"]["step"]["kernel"] / 2
    assert_close(found / SCALE, np.broadcast_to(0.7 * wanted, found.shape), "float32", length=100)
    assert_close(gate["kernel"], np.broadcast_to(follows, gate["kernel"].shape), "float32")


def test_prior_of_a_close_start_is_the_variance_that_r2_is_chosen_for():
    pair = make_pair(teacher_config(), StudentSettings((1,)))
    assert pair.student.mixer_options[NEW]["prior_var"] == SCALE


def errors(own, rows):
    match = jax.jit(partial(match_layers, own.pair), compiler_options=QUICK_BUILD)
    sums = match(own.student, own.given, rows)
    return np.asarray(sums.error / sums.square)


@pytest.mark.parametrize("name", ["wide", "deltanet"])
def test_close_start_is_near_the_teacher(name):
    close, scratch = (
        errors(case(name, initial=initial), batch()) for initial in ("close", "scratch")
    )
    assert close.shape == (2,) and (close < 0.5).all() and (close < 0.5 * scratch).all()


def test_the_first_write_is_the_delta_rules():
    """Of the first token the filter's prediction is c I, but for process noise that is added."""
    own = case("deltanet", process_ratio=1e-3)
    first = {"inputs": batch()["inputs"][:, :1]}
    assert (errors(own, first) < 1e-4).all()


def test_a_fixed_strength_has_no_close_start():
    options = {"deltanet": {"num_heads": 2, "head_dim": 4, "beta": 0.5}}
    teacher = ModelConfig(13, 16, 2, ("deltanet",), options)
    settings = StudentSettings((1,))
    with pytest.raises(
        ValueError, match=r"student\.initial: found 'close'.*fixed.*wanted 'scratch'"
    ):
        pair = make_pair(teacher, settings)
        make_init(pair, settings)(jax.random.key(0), parameters(pair.teacher))


def test_kept_parameters_have_their_axes():
    own = case()
    init = jax.jit(keep_init(LanguageModel(own.pair.student)), compiler_options=QUICK_BUILD)
    boxed = init(jax.random.key(5), own.student)
    jax.tree.map(np.testing.assert_array_equal, nn.meta.unbox(boxed), own.student)
    leaf = boxed["layers"]["block_1"]["mixer"]["heads"]["query"]["kernel"]
    assert leaf.names == (None, "embed", "heads")
