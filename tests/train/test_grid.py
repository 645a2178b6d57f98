"""Which runs a sweep has, and which are left."""

import json

import pytest

from bayesmem.train.grid import (
    Run,
    SweepSettings,
    begun_groups,
    done_runs,
    groups_left,
    mark_begun,
    read_results,
    within,
)

GRID = {
    "mixers": ("gla", "gla/wide"),
    "widths": (8, 16),
    "learning_rates": (1e-3, 1e-2),
    "seeds": (0, 1, 2),
    "together": 4,
}


def test_runs_that_differ_in_rate_and_seed_are_trained_together():
    groups = groups_left(SweepSettings.from_config(GRID), [])
    assert [len(group.runs) for group in groups] == [4, 2] * 4  # 6 runs each, at most 4 at once
    assert len({group.name for group in groups}) == len(groups)
    for group in groups:
        assert {(run.mixer, run.width) for run in group.runs} == {(group.mixer, group.width)}
        assert "/" not in group.name
    assert sum((list(group.runs) for group in groups), []) == SweepSettings.from_config(GRID).runs()


def test_what_is_done_is_left_out_and_names_depend_on_the_runs_only():
    settings = SweepSettings.from_config(GRID)
    first = groups_left(settings, [])[0]
    rest = groups_left(settings, first.runs)
    assert not set(first.runs) & {run for group in rest for run in group.runs}
    assert sum(len(group.runs) for group in rest) == 24 - 4
    larger = SweepSettings.from_config(GRID | {"widths": (8, 16, 32)})
    assert groups_left(larger, [])[0].name == first.name
    assert groups_left(settings, settings.runs()) == []


def test_a_group_that_was_begun_goes_on_as_it_is(tmp_path):
    small, large = (
        SweepSettings.from_config(GRID | {"seeds": seeds}) for seeds in ((0, 1), (0, 1, 2))
    )
    begun = groups_left(small, [])[1]
    mark_begun(tmp_path / begun.name, begun)
    assert begun_groups(tmp_path) == []  # nothing is saved
    (tmp_path / begun.name / "step_00000002").mkdir()
    assert begun_groups(tmp_path) == [begun]
    left = groups_left(large, [], [begun])
    assert left[0] == begun
    runs = [run for group in left for run in group.runs]
    assert len(runs) == len(set(runs)) == 24
    # Neither where it is done, nor where fewer runs are to be trained at once.
    assert begun not in groups_left(large, begun.runs, [begun])
    fewer = SweepSettings.from_config(GRID | {"together": 2})
    assert begun not in groups_left(fewer, [], [begun])


def test_lists_and_whole_numbers_are_taken():
    found = SweepSettings.from_config(GRID | {"seeds": [3], "learning_rates": [1]})
    assert found.seeds == (3,) and found.learning_rates == (1.0,)
    assert isinstance(found.learning_rates[0], float)


@pytest.mark.parametrize(
    "change,message",
    (
        ({"mixers": ()}, "sweep.mixers: found"),
        ({"mixers": "gla"}, "sweep.mixers: found 'gla'; wanted a tuple"),
        ({"widths": (8, 8)}, "sweep.widths: found (8, 8)"),
        ({"widths": (0,)}, "sweep.widths: found (0,); wanted >= 1"),
        ({"seeds": (-1,)}, "sweep.seeds: found (-1,); wanted >= 0"),
        ({"seeds": (True,)}, "sweep.seeds: found (True,)"),
        ({"learning_rates": (0.0,)}, "sweep.learning_rates: found (0.0,); wanted > 0"),
        ({"learning_rates": (float("nan"),)}, "sweep.learning_rates: found (nan,)"),
        ({"together": 0}, "sweep.together: found 0"),
        ({"together": 2.5}, "sweep.together: found 2.5"),
        ({"steps": 3}, "unknown keys ['steps']"),
    ),
)
def test_bad_values_are_named(change, message):
    with pytest.raises(ValueError) as caught:
        SweepSettings.from_config(GRID | change)
    assert message in str(caught.value)


def test_results_are_read_back(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    parts = {"tests": {}, "curve": {}}
    result = {"mixer": "gla", "width": 8, "runs": [{"learning_rate": 1e-3, "seed": 2} | parts]}
    (folder / "a.json").write_text(json.dumps(result))
    assert done_runs(read_results(tmp_path)) == [Run("gla", 8, 1e-3, 2)]
    more = {"learning_rate": 1e-2, "seed": 0}
    both = [result | {"runs": [*result["runs"], more]}]
    assert within(both, [Run("gla", 8, 1e-3, 2)]) == [result]
    assert within(both, [Run("gla", 16, 1e-3, 2)]) == []
    (folder / "b.json").write_text("{}")
    with pytest.raises(ValueError, match=r"b\.json: found no result of a sweep"):
        read_results(tmp_path)


def test_a_damaged_list_of_begun_runs_is_named(tmp_path):
    folder = tmp_path / "checkpoints" / "gla-w8-0"
    (folder / "step_00000001").mkdir(parents=True)
    for text in ("", "[]", "{}", "[[1]]"):
        (folder / "runs.json").write_text(text)
        with pytest.raises(ValueError, match=r"runs\.json: found no list of runs"):
            begun_groups(tmp_path / "checkpoints")


@pytest.mark.parametrize(
    "runs",
    [
        '[{"seed": 0, "learning_rate": 1}]',
        '[{"learning_rate": [1], "seed": 0, "tests": {}, "curve": {}}]',
    ],
)
def test_a_result_without_its_parts_is_named(tmp_path, runs):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "x.json").write_text(f'{{"mixer": "gla", "width": 8, "runs": {runs}}}')
    with pytest.raises(ValueError, match=r"x\.json: found no result of a sweep"):
        read_results(tmp_path)
