import pytest

from bayesmem.evaluate.sweep_summary import Stat, best_rate, stat, summarise
from tests import sweep_files as files
from tests.tolerances import tolerance


def close(value):
    return pytest.approx(value, rel=tolerance("float64")["rtol"])


def test_a_stat_is_of_finite_values():
    assert stat([1.0, 3.0]) == Stat(2.0, close(2**0.5), 2, 0)
    assert stat([1.0, None]) == Stat(1.0, None, 1, 1)
    assert stat([None]) == Stat(None, None, 0, 1)


def test_the_rate_is_that_of_the_best_training_not_of_the_best_test():
    config = files.config_of("mqar")
    runs = [
        files.run_of(config, 0.9, rate=1e-4, seed=0, last=0.5),
        files.run_of(config, 0.9, rate=1e-4, seed=1, last=0.6),
        files.run_of(config, 0.2, rate=1e-3, seed=0, last=0.4),
        files.run_of(config, 0.2, rate=1e-3, seed=1, last=0.8),
        files.run_of(config, 0.9, rate=1e-2, seed=0, last=1.0),
        files.run_of(config, 0.9, rate=1e-2, seed=1, last=1.0),
    ]
    runs[-1]["curve"]["accuracy"][-1] = None  # counts as 0
    assert best_rate(runs) == 1e-3
    assert best_rate(runs[:1] + runs[2:3]) == 1e-4
    pilot = files.run_of(config, 0.9, rate=1e-2, last=1.0)  # one seed is no match for two
    assert best_rate([*runs[:4], pilot]) == 1e-3
    equal = [files.run_of(config, 0.5, rate=rate) for rate in (1e-2, 1e-3)]
    assert best_rate(equal) == 1e-3
    (cell,) = summarise(files.sweep_of(config, files.result_of(config, "gla", runs))).cells
    assert (cell.learning_rate, cell.seeds, cell.missing) == (1e-3, (0, 1), (2,))
    assert cell.trained == Stat(close(0.6), close(0.08**0.5), 2, 0)
    assert cell.tests["test"]["accuracy"].mean == close(0.2)


def test_runs_of_one_cell_may_be_of_several_results():
    config = files.config_of("collision")
    results = [files.result_of(config, "gla", [files.run_of(config, 0.5, seed=s)]) for s in (2, 0)]
    (cell,) = summarise(files.sweep_of(config, *results)).cells
    assert cell.seeds == (0, 2) and cell.missing == (1,)
    assert cell.steps == (50, 100) and [x.finite for x in cell.curve] == [2, 2]


def test_tests_are_in_the_order_of_their_numbers_and_axes_of_their_values():
    sweep = summarise(files.collision_sweep())
    floods = ["flood_16", "flood_32", "flood_64", "flood_256"]
    names = ["test", *floods, "overlap_high", "overlap_high_flood_256"]
    assert list(sweep.cells[0].tests) == names
    first, second = sweep.axes
    assert [place.test for place in first.places] == names[:5]
    assert [place.at for place in first.places[1:]] == [16, 32, 64, 256]
    assert first.places[0].at == close(8**0.5) and first.trained == (1, 8)
    assert [place.test for place in second.places] == ["test", *names[-2:]]
    assert second.places[1].label == "0.85-0.95"
    losses = {"bayesian": (1, 2, 3, 4), "gla": (2, 3, 4, 5)}
    (axis,) = summarise(files.random_keys_sweep(losses)).axes
    assert [place.label for place in axis.places] == ["1-4", "6", "8", "12", "16"]


def test_the_state_is_that_of_the_models_memories():
    accuracies = {(mixer, 64): 0.5 for mixer in ("bayesian", "deltanet", "attention")}
    cells = summarise(files.mqar_of("base,64x4", accuracies)).cells
    memory = 2 * 2 * 32 * 32  # layers, heads, D, M
    assert [cell.state for cell in cells] == [2 * memory, memory, 2 * 64 * 2 * 64]
    assert summarise(files.collision_sweep()).cells[0].state is None


def test_a_task_without_a_page_is_named():
    found = files.collision_sweep()
    found["config"]["data"]["task"] = "text"
    with pytest.raises(ValueError, match="task: found 'text'"):
        summarise(found)
