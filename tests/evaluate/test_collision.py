"""The collision experiment against the digits printed in the paper and against closed forms."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.design_model import derive
from bayesmem.evaluate import collision
from bayesmem.evaluate.collision import CollisionConfig
from bayesmem.evaluate.collision_report import NOTES, Row, comparison, format_table
from bayesmem.evaluate.collision_results import run_collision, write_results
from bayesmem.plots.collision import plot_collision
from tests.tolerances import tolerance

RHOS = (0.30, 0.45, 0.60, 0.75, 0.85, 0.90, 0.92, 0.95, 0.98)
PRIORS = (0.01, 0.05, 0.1, 0.5, 1.0, 3.0)


@pytest.fixture(scope="module")
def results():
    """The experiment, run once, as it is read back from its file."""
    return json.loads(json.dumps(run_collision()))


def assert_digits(ours, printed):
    """`ours` rounds to `printed`, a text whose decimals are the precision asked for."""
    decimals = len(printed.partition(".")[2])
    assert f"{ours:.{decimals}f}" == printed


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("boost", "0.73106"),
        ("bayesian_flood", "0.72309"),
        ("reset_flood", "0.35138"),
        ("gain_floor", "0.61803"),
        ("onset_gain", "0.90708"),
        ("cross_growth", "0.00768"),
    ],
)
def test_limits(results, name, printed):
    assert_digits(results["limits"][name], printed)


def test_limits_equal_their_closed_forms(results):
    assert set(results["closed_forms"]) == set(results["limits"])
    for name, value in results["closed_forms"].items():
        np.testing.assert_allclose(
            results["limits"][name], value, **tolerance(jnp.float64, length=1000)
        )


@pytest.mark.parametrize(
    ("model", "printed"),
    [
        (
            "bayesian",
            "0.4621 0.4620 0.4618 0.4608 0.4576 0.4516 0.4462 0.4266 0.3350",
        ),
        (
            "reset",
            "0.3962 0.3213 0.1988 0.0091 -0.1607 -0.2571 -0.2972 -0.3586 -0.4207",
        ),
    ],
)
def test_overlap_sweep(results, model, printed):
    assert [case["rho"] for case in results["overlap_sweep"]] == list(RHOS)
    for case, text in zip(results["overlap_sweep"], printed.split(), strict=True):
        assert_digits(case[model], text)


def test_fixed_prior_sweep_is_the_printed_one_at_the_steep_overlap(results):
    cases = [case for case in results["fixed_prior_sweep"] if case["rho"] == 0.99]
    assert [case["c"] for case in cases] == list(PRIORS)
    gains = ("0.17", "0.50", "0.67", "0.91", "0.95", "0.98")
    margins = ("-0.448", "-0.441", "-0.437", "-0.430", "-0.428", "-0.427")
    for case, gain, margin in zip(cases, gains, margins, strict=True):
        assert_digits(case["gain"], gain)
        assert_digits(case["margin"], margin)
    assert [case["zero_crossing"] for case in cases] == [56, 54, 53, 53, 53, 53]


def test_fixed_prior_sweep_at_the_stated_overlap_is_another(results):
    cases = [case for case in results["fixed_prior_sweep"] if case["rho"] == 0.92]
    assert [case["c"] for case in cases] == list(PRIORS)
    assert all(case["margin"] > -0.35 for case in cases), "printed: -.45 to -.43"
    assert [case["zero_crossing"] for case in results["bayesian_zero_crossing"]] == [None, None]


def test_gains_phase_ends_and_control(results):
    norms = results["gain_norms"]
    for name, printed in (("seed", "0.984"), ("flood_onset", "1.9945"), ("flood_end", "0.618")):
        assert_digits(norms[name], printed)
    at_end = {case["rho"]: case for case in results["end_of_flood"]}
    assert_digits(at_end[0.99]["bayesian"], "0.198")
    assert_digits(at_end[0.99]["reset"], "-0.441")
    assert_digits(at_end[0.92]["bayesian"], "0.4462")
    for case in results["end_of_boost"]:
        assert_digits(case["bayesian"], "0.46")
        assert_digits(case["reset"], "0.46")
    assert_digits(results["low_overlap"]["bayesian"], "0.7310")
    assert_digits(results["low_overlap"]["reset"], "0.6606")


def test_the_table_tells_apart_what_agrees(results):
    """What differs is what the notes explain: the overlap of two tables, and one rounding."""
    rows = comparison(results)
    differ = {(row.group, row.rho) for row in rows if not row.matches}
    assert differ == {("fixed prior", 0.92), ("end of flood", 0.92), ("overlap sweep", 0.98)}
    swept = [row for row in rows if row.group == "overlap sweep" and not row.matches]
    assert [row.printed for row in swept] == [".34"]
    assert_digits(swept[0].ours, "0.33497")
    text = format_table(rows)
    assert text.count("agree") == sum(row.matches for row in rows)
    assert "0.72309" in text and "never" in text
    assert any("0.99" in note for note in NOTES)


def test_a_row_matches_only_at_the_printed_precision():
    assert Row("", "", 0.9, "0.618", 0.61849).matches
    assert not Row("", "", 0.9, "0.618", 0.61851).matches
    assert not Row("", "", 0.9, "never", 53).matches
    assert not Row("", "", 0.9, "53", None).matches


def test_curves_hold_what_the_figure_claims(results):
    curves = results["curves"]
    steps = len(curves["written"])
    assert steps == 112
    for panel in ("retrieval", "variance", "gain"):
        assert all(len(curve) == steps for curve in curves[panel].values())
    final = {name: curve[-1] for name, curve in curves["retrieval"].items()}
    assert final["bayesian"] > final["diagonal_covariance"] > 0.5 > final["reset"]
    assert final["linear_attention"] < 0.01 < final["gla"] < 0.5
    assert curves["gain"]["A"][52] == results["limits"]["onset_gain"]
    assert curves["gain"]["A_norm"][52] == results["gain_norms"]["flood_onset"]


@pytest.mark.parametrize("implementation", ["chunked", "associative"])
def test_other_forms_give_the_same_curve(implementation, x64):
    config = CollisionConfig()
    model = collision.bayesian_model(config)
    curve = collision.readout_gap(model, [0.92], config)
    other = collision.readout_gap(model, [0.92], config, implementation=implementation)
    np.testing.assert_allclose(other, curve, **tolerance(jnp.float64, length=curve.size))


def test_decoded_covariances_read_like_the_whole_sequence(x64):
    config = CollisionConfig()
    key = collision.identity_keys(0.92, config)[collision.B]
    covs = collision.covariances(0.92, config)
    np.testing.assert_allclose(
        np.einsum("tij,i,j->t", covs[1:], key, key),
        collision.read_variance(0.92, "B", config),
        **tolerance(jnp.float64, length=len(covs)),
    )


def test_reset_is_deltanet_with_a_constant_beta(x64):
    """For unit keys eta = lambda / (r^2 + lambda) at every step."""
    config = CollisionConfig()
    keys, values = collision.writes([0.92], config)
    arguments = derive(collision.reset_model(config)).arguments(keys, values)
    np.testing.assert_allclose(
        arguments["beta"], config.constant_gain, **tolerance(jnp.float64, length=config.key_dim)
    )


def test_impossible_settings_are_named():
    with pytest.raises(ValueError, match="identities: found 17"):
        CollisionConfig(identities=17)
    with pytest.raises(ValueError, match="overlap: found 1.5"):
        collision.identity_keys(1.5, CollisionConfig())


def test_x64_is_off_again(results):
    assert not jax.config.jax_enable_x64


def test_results_file_is_whole(results, tmp_path):
    path = tmp_path / "new" / "results.json"
    write_results(results, path)
    assert json.loads(path.read_text()) == results
    assert [found.name for found in path.parent.iterdir()] == ["results.json"]


def test_figure_is_the_same_for_the_same_results(results, tmp_path):
    paths = plot_collision(results, tmp_path)
    first = [path.read_bytes() for path in paths]
    assert [path.name for path in paths] == ["collision.png", "collision.svg"]
    assert first[0].startswith(b"\x89PNG") and b"<svg" in first[1]
    assert [path.read_bytes() for path in plot_collision(results, tmp_path)] == first
