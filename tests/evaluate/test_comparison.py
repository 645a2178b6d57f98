"""Runs side by side: what is collected, the section, the figure, and errors."""

import json

import numpy as np
import pytest

from bayesmem.evaluate.comparison import compare_runs, deciles
from bayesmem.evaluate.comparison_report import comparison_section, decile_table
from bayesmem.evaluate.results_page import read_files
from bayesmem.plots.comparison import differences, plot_depths

ORIGIN = {"device": "some device", "versions": {"jax": "1.2.3"}, "commit": "0123456789abcdef"}


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def needles(scores, depths, length=64, task="niah_single_1"):
    pairs = zip(depths, scores, strict=True)
    items = [{"index": i, "depth": d, "score": s} for i, (d, s) in enumerate(pairs)]
    return {
        "task": f"{task}@{length}", "step": 5, "count": len(items), "options": {"length": length},
        "result": {"score": float(np.mean(scores))}, "items": items, "provenance": ORIGIN,
    }  # fmt: skip


def make_run(folder, rows, tasks, mixers=("gated_deltanet",), layers=4):
    config = {
        "seed": 3,
        "model": {"mixers": list(mixers), "num_layers": layers},
        "data": {"seq_len": 128},
        "train": {"batch_size": 8},
        "optimizer": {"learning_rate": 1e-3},
    }
    write(folder / "config.json", config)
    if rows:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        write(folder / "train_result.json", {"parameters": 12345})
    for task in tasks:
        write(folder / "evaluations" / f"{task['task']}.json", task)
    return folder


@pytest.fixture
def runs(tmp_path):
    depths = [0.0, 0.1, 0.55, 1.0]
    ppl = {
        "task": "ppl@128", "step": 5, "count": 2, "options": {"length": 128},
        "items": [{"index": 0}],
        "result": {"loss": np.log(10.0), "perplexity": 10.0}, "provenance": ORIGIN,
    }  # fmt: skip
    better = ppl | {"result": {"loss": np.log(9.0), "perplexity": 9.0}}
    speed = [{"step": s, "split": "train", "loss": 1.0, "tokens_per_second": s} for s in (1, 2, 6)]
    errors = [
        {"step": step, "split": "valid", "loss": 0.3 / (step + 1), "cross_entropy": 2.0}
        | {"boundary_layer_11": 0.2, "boundary_layer_3": 0.1 / (step + 1)}
        for step in (0, 9)
    ]
    plain = [{"step": 9, "split": "valid", "loss": 1.0, "bits_per_token": 1.4}]
    turn = ("gated_deltanet", "gated_deltanet", "bayesian/student")
    return {
        "teacher": make_run(tmp_path / "t", [], [ppl, needles([0, 0, 1, 1], depths)]),
        "control": make_run(tmp_path / "c", speed + plain, [better]),
        "student": make_run(
            tmp_path / "s", errors, [ppl, needles([1, 0, 0.5, 1], depths)], turn, layers=6
        ),
    }


def test_deciles_have_their_ends_and_counts():
    items = [{"depth": d / 10, "score": d} for d in range(11)]
    found = deciles(items)
    assert [n for n, _ in found] == [1] * 9 + [2] and found[9][1] == 9.5 and found[3] == (1, 3.0)
    assert deciles(items[:1])[1:] == [(0, None)] * 9


def test_a_comparison_has_training_tasks_and_differences(runs):
    found = compare_runs(runs, "teacher")
    assert found["runs"]["control"]["tokens_per_second"] == 2.0
    text = comparison_section("results/x.json", "Some runs", found, ["f.svg"], "A note.")
    assert "On some device" not in text and "evaluated on some device; jax 1.2.3" in text
    assert "A note." in text and "![Some runs](f.svg)" in text
    row = "| control | gated_deltanet | 12,345 | 9,216 | 0.001 | 3 | 2 | ppl 2.718 |"
    assert row in text.splitlines()
    assert "(2 x gated_deltanet + bayesian/student) x 2" in text
    assert "ppl 7.389, descended 0.3 to ppl 7.389, descended 0.03" in text
    # Layers in the order of their numbers, with every value.
    third, eleventh = (text.index(f"| student | {layer} | boundary |") for layer in (3, 11))
    assert third < eleventh and "0.1 (0), 0.01 (9)" in text
    assert "| `ppl@128` | perplexity | 2 | 10.00 | 9.00 (-10.0%) | 10.00 (+0.0%) |" in text
    assert "| `niah_single_1@64` | score | 4 | 50.0 | - | 62.5 (+12.5) |" in text
    assert "| student | 100 (1) | 0 (1) | - | - | - | 50 (1) | - | - | - | 100 (1) |" in text


def test_other_items_have_no_difference_and_needles_never_found_no_table(runs):
    folder = runs["control"] / "evaluations"
    task = json.loads((folder / "ppl@128.json").read_text())
    write(folder / "ppl@128.json", task | {"count": 3})
    for run in runs.values():
        name = "niah_single_3"
        never = needles([0] * 3, [0.0, 0.5, 1.0], task=name)
        write(run / "evaluations" / f"{name}@64.json", never)
    text = comparison_section("x", "y", compare_runs(runs, "teacher"), [])
    assert "| `ppl@128` | perplexity | 2/3 | 10.00 | 9.00 | 10.00 (+0.0%) |" in text
    for other in ({"tokenizer": "another"}, {"file": "another"}, {"options": {"seed": 7}}):
        write(folder / "ppl@128.json", task | other)
        text = comparison_section("x", "y", compare_runs(runs, "teacher"), [])
        assert "| `ppl@128` | perplexity | 2 | 10.00 | 9.00 | 10.00 (+0.0%) |" in text
    assert (
        "`niah_single_3@64` by the depth of the needle: 0 everywhere, of 3 prompts a run." in text
    )
    assert "`niah_single_1@64` by the depth of the needle, score in % (prompts):" in text


def test_the_figure_averages_tasks_of_a_length(runs, tmp_path):
    folder = runs["teacher"].parent
    for name, score in (("t", 0), ("s", 1)):
        task = needles([score] * 4, [0.0, 0.1, 0.55, 1.0], task="niah_single_2")
        write(folder / name / "evaluations" / f"{task['task']}.json", task)
    found = compare_runs(runs, "teacher")
    (by_run,) = differences(found).values()
    (line,) = by_run.values()
    np.testing.assert_array_equal(line[[0, 1, 5, 9]], [100, 50, 25, 50])
    assert np.isnan(line[2])
    paths = plot_depths(found, tmp_path / "figures", "depths")
    assert [path.name for path in paths] == ["depths.png", "depths.svg"]
    assert all(path.stat().st_size for path in paths)
    assert plot_depths(compare_runs({"teacher": runs["teacher"]}, "teacher"), tmp_path, "x") == []


def test_results_of_another_step_are_left_out_and_damage_is_named(runs):
    teacher = runs["teacher"]
    aside = json.loads((teacher / "evaluations/ppl@128.json").read_text())
    write(teacher / "evaluations/ppl@128_step_1.json", aside)
    assert list(compare_runs({"a": teacher})["tasks"]) == ["niah_single_1@64", "ppl@128"]
    (teacher / "evaluations/bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"bad\.json: found no result of launch\.evaluate"):
        compare_runs({"a": teacher})
    with pytest.raises(ValueError, match="baseline: found 'b', wanted one of a"):
        compare_runs({"a": teacher}, "b")
    with pytest.raises(FileNotFoundError, match=r"found no config\.json"):
        compare_runs({"a": teacher / "gone"})


def test_a_failed_loss_is_said_and_a_distillation_is_no_run(runs, tmp_path):
    student = runs["student"]
    lines = (student / "metrics.jsonl").read_text().splitlines()
    row = json.loads(lines[1]) | {"loss": None, "cross_entropy": None, "boundary_layer_3": None}
    (student / "metrics.jsonl").write_text(f"{lines[0]}\n{json.dumps(row)}\n")
    text = comparison_section("x", "y", compare_runs(runs), [])
    assert "descended 0.3 to failed" in text and "0.1 (0), failed (9)" in text
    write(tmp_path / "root" / "config.json", {"phases": [], "data": {}, "seed": 0})
    with pytest.raises(ValueError, match="found no model, optimizer, train .*wanted a run of one"):
        compare_runs({"root": tmp_path / "root"})


def test_a_run_without_a_task_has_blanks(runs):
    found = compare_runs(runs)
    assert "| control | - | - |" in decile_table({"control": found["tasks"]["ppl@128"]["control"]})
    assert "| 50.0 | - | 62.5 |" in comparison_section("x", "y", found, [])


def test_it_is_a_section_of_the_page(runs, tmp_path):
    folder = tmp_path / "results"
    write(folder / "comparison_two_models.json", compare_runs(runs, "teacher"))
    (folder / "comparison_two_models.md").write_text("Said besides.")
    found = read_files(folder)
    assert list(found.comparisons) == ["comparison_two_models.json"]
    assert found.notes == {"comparison_two_models.json": "Said besides."}
    (folder / "comparison_other.json").write_text('{"runs": 3}')
    with pytest.raises(
        ValueError, match=r"comparison_other\.json: found no results of launch\.com"
    ):
        read_files(folder)
