import pytest

from bayesmem.evaluate.sweep_claims import CLAIMS, number, percent, verdicts
from bayesmem.evaluate.sweep_summary import Stat, summarise
from tests import sweep_files as files

LOSSES = {"bayesian": (1.0, 1.2, 1.4, 1.6), "gla": (1.5, 1.7, 1.9, 2.1)}
OTHERS = ("gated_deltanet", "mamba2")


def holds(found):
    return [finding.holds for _, finding in verdicts(summarise(found))]


@pytest.mark.parametrize(
    ("bayesian", "others", "wanted"),
    (
        ((0.99, 0.98, 0.97), 0.6, [True, True, True, True]),
        ((0.99, 0.90, 0.97), 0.6, [False, True, True, True]),
        ((0.99, 0.98, 0.90), 0.6, [True, False, True, True]),
        ((0.99, 0.98, 0.97), 0.8, [True, True, False, False]),
        ((0.06, 0.06, 0.06), 0.06, [False, False, False, False]),  # chance is nothing to keep
    ),
)
def test_learned_collision(bayesian, others, wanted):
    assert holds(files.collision_sweep(bayesian, others)) == wanted


@pytest.mark.parametrize(
    ("changes", "wanted"),
    (
        ({}, [True, True]),
        ({"gla": (1.5, 1.1, 1.9, 2.1)}, [True, False]),  # ahead at one n / D
        ({"gla": (2.5, 2.4, 2.3, 2.2)}, [False, True]),
        ({"gla": (1.5, 1.7, 1.9, None)}, [False, False]),
        ({"bayesian": (1.0, 1.2, None, 1.6)}, [True, False]),
    ),
)
def test_random_keys(changes, wanted):
    assert holds(files.random_keys_sweep(LOSSES | changes)) == wanted


def test_what_was_not_run_has_no_verdict():
    alone = {"gla": LOSSES["gla"]}  # of all mixers a claim about every one needs all
    assert holds(files.random_keys_sweep(alone)) == [True, None]
    assert holds(files.random_keys_sweep(alone, ("gla", "bayesian"))) == [None, None]
    assert holds(files.mqar_of("base,64x4", {("gla", 64): 1.0})) == [None, None]
    assert holds(files.mqar_of("update,64x4", {("gla", 64): 1.0})) == [None] * 6


@pytest.mark.parametrize("form", ("base", "block"))
def test_near_perfect_is_at_every_width_but_the_smallest(form):
    def found(*accuracies):
        widths = (64, 128, 256)
        given = {("bayesian", w): x for w, x in zip(widths, accuracies, strict=False)}
        return holds(files.mqar_of(f"{form},64x4", given))[0]

    assert found(0.5, 0.99, 1.0) is True
    assert found(1.0, 0.98, 1.0) is False
    assert found(1.0, 1.0, 0.98) is False
    assert found(0.99) is True and found(0.98) is False  # a single width


@pytest.mark.parametrize(
    ("bayesian", "others", "wanted"),
    (
        (0.86, 0.62, (True, True, True)),
        (0.95, 0.62, (False, True, True)),  # better than printed is not "about"
        (0.86, 0.80, (True, False, False)),
        (0.60, 0.60, (False, True, False)),
    ),
)
def test_update_is_judged_at_the_largest_width(bayesian, others, wanted):
    accuracies = {(mixer, width): 0.1 for mixer in ("bayesian", *OTHERS) for width in (64, 128)}
    accuracies |= {("bayesian", 128): bayesian} | {(mixer, 128): others for mixer in OTHERS}
    about, about_conv, *of_others, gap, gap_conv = holds(files.mqar_of("update,64x4", accuracies))
    assert about_conv is gap_conv is None
    assert (about, of_others[0], gap) == wanted and of_others[1] is of_others[0]


def test_a_value_that_failed_is_shown():
    assert percent(Stat(0.5, 0.01, 3, 0)) == "50.0 ± 1.0"
    assert number(Stat(0.5, None, 1, 0)) == "0.500"
    assert number(Stat(0.5, None, 1, 2)) == "0.500 (2 of 3 failed)"
    assert number(Stat(None, None, 0, 3)) == "failed (3 of 3)"
    assert number(Stat(None, None, 0, 1)) == "failed"


def test_every_claim_has_a_rule_and_a_figure():
    assert all(c.rule and c.printed and c.figure.startswith("Fig. ") for c in CLAIMS)
    assert len({(c.task, c.variant, c.text, c.figure) for c in CLAIMS}) == len(CLAIMS)
