import pytest

from bayesmem.evaluate.sweep_summary import summarise
from bayesmem.plots.sweeps import plot_curves, plot_recall, plot_tests
from configs.sweeps.collision import MATCHED
from configs.sweeps.mqar import OPTIONS
from tests import sweep_files as files

LOSSES = {"bayesian": (1.0, 1.2, None, 1.6), "gla": (1.5, 1.7, 1.9, None)}


def draw(folder):
    """Every figure; returns the paths."""
    collision = summarise(files.collision_sweep())
    keys = summarise(files.random_keys_sweep(LOSSES))
    single = summarise(files.mqar_of("update,64x4", {("gla/new", 64): 0.5, ("bayesian", 64): 0.8}))
    wide = {(mixer, width): width / 300 for mixer in OPTIONS for width in (64, 128)}
    several = summarise(files.mqar_of("base,128x8", wide))
    paths = plot_tests(collision, folder, "collision") + plot_tests(keys, folder, "keys")
    paths += plot_curves(several, folder, "curves") + plot_curves(collision, folder, "one")
    return paths + plot_recall([single, several], folder)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    return draw(folder)


def test_figures_are_the_same_for_the_same_results(drawn, tmp_path):
    names = ("collision", "keys", "curves", "one", "mqar_width", "mqar_state")
    assert [path.name for path in drawn] == [
        f"{n}.{kind}" for n in names for kind in ("png", "svg")
    ]
    for one, two in zip(drawn, draw(tmp_path), strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name
        start = b"\x89PNG" if one.suffix == ".png" else b"<?xml"
        assert one.read_bytes().startswith(start)


def text_of(drawn, name):
    (path,) = [path for path in drawn if path.name == f"{name}.svg"]
    return path.read_text()


def test_figures_name_their_mixers_and_axes(drawn):
    """Texts are comments of the SVG, whose letters are shapes."""
    text = text_of(drawn, "collision")
    for label in ("Bayesian", "covariance-reset", "accuracy", "margin p(B) - p(A)", "256"):
        assert f"<!-- {label} -->" in text
    assert len(MATCHED) == 5
    text = text_of(drawn, "keys")
    assert "cross-entropy (nats)" in text and "<!-- 16 -->" in text
    text = text_of(drawn, "mqar_width")
    assert "update, 64 tokens, 4 pairs" in text and "base, 128 tokens, 8 pairs" in text
    assert "<!-- gla/new -->" in text and "<!-- RAM-Net -->" in text
    assert "<!-- W = 128 -->" in text_of(drawn, "curves")


def test_other_numbers_are_another_figure(drawn, tmp_path):
    other = summarise(files.collision_sweep(bayesian=(0.99, 0.98, 0.5)))
    _, svg = plot_tests(other, tmp_path, "collision")
    assert svg.read_text() != text_of(drawn, "collision")
