"""Figures of several language models from their files."""

import json

import pytest

from bayesmem.plots import language
from tests.plots.test_training import text_of


def run(folder, losses=(3.0, None, 2.0), rate=100.0):
    """A run of 4 x 5 tokens a step, evaluated every 10 steps."""
    folder.mkdir()
    config = {"train": {"batch_size": 4}, "data": {"seq_len": 5}}
    (folder / "config.json").write_text(json.dumps(config))
    rows = []
    for number, loss in enumerate(losses, start=1):
        rows.append({"step": 10 * number, "split": "train", "loss": 4.0, "tokens_per_second": rate})
        rows.append({"step": 10 * number, "split": "valid", "loss": loss})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def needles(folder, length, scores):
    (folder / "evaluations").mkdir(exist_ok=True)
    result = {"by_depth": [[depth, score] for depth, score in scores.items()]}
    path = folder / "evaluations" / f"niah_single_1@{length}.json"
    path.write_text(json.dumps({"options": {"length": length, "seed": 0}, "result": result}))


def test_tokens_and_seconds_of_a_curve(tmp_path):
    tokens, seconds, losses = language._curve(run(tmp_path / "a", rate=50.0))
    assert tokens == [200, 400, 600] and seconds == [4.0, 8.0, 12.0]
    assert losses[0] == 3.0 and losses[1] != losses[1] and losses[2] == 2.0


def test_a_first_step_without_a_speed_counts_like_the_next(tmp_path):
    path = run(tmp_path / "a") / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["tokens_per_second"] = rows[4]["tokens_per_second"] = 0.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert language._curve(tmp_path / "a")[1] == [2.0, 4.0, 4.0]


def test_all_runs_are_in_one_figure(tmp_path):
    runs = {name: run(tmp_path / name) for name in ("gla", "ramnet")}
    paths = language.plot_losses(runs, tmp_path / "out")
    assert [path.name for path in paths] == ["losses.png", "losses.svg"]
    words = text_of(paths[1])
    assert {"gla", "ramnet", "tokens trained on", "seconds of training"} <= set(words)
    before = paths[1].read_text()
    assert language.plot_losses(runs, tmp_path / "out")[1].read_text() == before


def test_needles_by_length_and_depth(tmp_path):
    folder = run(tmp_path / "a")
    needles(folder, 4096, {0.0: 0.2, 1.0: 0.4})
    needles(folder, 512, {0.0: 1.0, 0.5: 0.5, 1.0: 0.0})
    found = language._by_length(folder, "niah_single_1")
    assert list(found) == [512, 4096]
    words = text_of(language.plot_needles({"a": folder}, "niah_single_1", tmp_path / "out")[1])
    assert {"512", "4,096", "50", "share found"} <= set(words)


def test_what_is_missing_is_named(tmp_path):
    folder = run(tmp_path / "a", losses=())
    with pytest.raises(ValueError, match="no row of the validation split"):
        language.plot_losses({"a": folder}, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"niah_single_1@LENGTH\.json"):
        language.plot_needles({"a": folder}, "niah_single_1", tmp_path)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        language.plot_losses({"a": folder}, tmp_path)
