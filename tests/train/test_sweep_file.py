import json

import pytest

from bayesmem.train.sweep_file import CURVE_POINTS, DIGITS, read_sweep, write_sweep
from tests.sweep_files import config_of, result_of, run_of, sweep_of, write


def long_run(config, points):
    run = run_of(config, 0.123456789)
    run["curve"] = {
        "step": list(range(10, 10 * points + 1, 10)),
        "loss": [1 / 3] * (points - 1) + [None],
        "accuracy": [step / 7 for step in range(points)],
    }
    return run


@pytest.mark.parametrize("points", (1, CURVE_POINTS, CURVE_POINTS + 1, 10 * CURVE_POINTS + 3))
def test_curves_are_thinned_and_keep_their_end(tmp_path, points):
    config = config_of("mqar")
    run = long_run(config, points)
    write_sweep(tmp_path / "sweep.json", config, [result_of(config, "gla", [run])])
    (found,) = read_sweep(tmp_path / "sweep.json")["results"]
    curve = found["runs"][0]["curve"]
    assert min(points, CURVE_POINTS // 2) <= len(curve["step"]) <= CURVE_POINTS
    assert len({len(values) for values in curve.values()}) == 1
    assert curve["step"][-1] == 10 * points and curve["loss"][-1] is None
    assert len(set(map(float.__sub__, *(list(map(float, x)) for x in _pairs(curve))))) <= 1
    whole = run["curve"]
    for step, accuracy in zip(curve["step"], curve["accuracy"], strict=True):
        assert accuracy == float(f"{whole['accuracy'][step // 10 - 1]:.{DIGITS}g}")
    assert found["runs"][0]["tests"]["test"]["accuracy"] == 0.123457


def _pairs(curve):
    return curve["step"][1:], curve["step"][:-1]


def test_all_but_curves_and_digits_is_kept(tmp_path):
    config = config_of("collision")
    result = result_of(config, "gla", [run_of(config, 0.5, seed=seed) for seed in (0, 1)])
    write_sweep(tmp_path / "sweep.json", config, [result, result_of(config, "bayesian", [])])
    text = (tmp_path / "sweep.json").read_text()
    assert json.loads(text)["config"] == config
    assert json.loads(text)["results"][0] == result
    assert len(text.splitlines()) == 5  # a result a line


def test_nan_is_refused(tmp_path):
    config = config_of("collision")
    result = result_of(config, "gla", [run_of(config, float("nan"))])
    with pytest.raises(ValueError):
        write_sweep(tmp_path / "sweep.json", config, [result])
    assert not (tmp_path / "sweep.json").exists()


@pytest.mark.parametrize("text", ('{"co', "[]", "{}", "null", '{"config": {}, "results": []}'))
def test_an_unreadable_file_is_named(tmp_path, text):
    path = tmp_path / "sweep_bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"sweep_bad\.json: found no"):
        read_sweep(path)


def test_a_run_that_is_there_twice_is_named(tmp_path):
    config = config_of("collision")
    result = result_of(config, "gla", [run_of(config, 0.5)])
    path = write(tmp_path / "sweep.json", sweep_of(config, result, result))
    with pytest.raises(ValueError, match=r"sweep\.json: found Run\(mixer='gla'.*twice"):
        read_sweep(path)


def test_a_number_that_json_does_not_have_is_refused(tmp_path):
    path = tmp_path / "sweep.json"
    path.write_text('{"config": {}, "results": [NaN]}')
    with pytest.raises(ValueError, match=r"sweep\.json: .*found NaN, wanted a number or null"):
        read_sweep(path)
