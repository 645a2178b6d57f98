"""Results by item: what a killed evaluation keeps, and what another one may not touch."""

import json

import pytest

from bayesmem.evaluate.item_store import evaluate_items

IDENTITY = {"task": "sums", "step": 3, "options": {"length": None}}


class Killed(Exception):
    """A run that ends in the middle."""


class Runner:
    """Squares of indices, in falling order; remembers what was asked, dies after some items."""

    def __init__(self, die_after=None):
        self.asked, self.die_after = [], die_after

    def __call__(self, indices):
        self.asked.append(list(indices))
        for number, index in enumerate(sorted(indices, reverse=True)):
            if number == self.die_after:
                raise Killed
            yield index, {"square": index**2}


def evaluate(folder, count, runner=None, **changes):
    total = lambda items: {"sum": sum(item["square"] for item in items)}  # noqa: E731
    return evaluate_items(folder, IDENTITY | changes, count, runner or Runner(), total)


def test_whole_evaluation(tmp_path):
    found = evaluate(tmp_path / "new", 4)
    assert found["result"] == {"sum": 14} and found["count"] == 4 and found["step"] == 3
    assert found["items"] == [{"index": i, "square": i**2} for i in range(4)]
    assert {"device", "versions", "commit"} == set(found["provenance"])
    (path,) = (tmp_path / "new").iterdir()
    assert path.name == "sums.json" and json.loads(path.read_text()) == found


@pytest.mark.parametrize("torn", ["", '{"index": 3, "squ', "\n\n", '{"index": 3}x'])
def test_killed_evaluation_goes_on(tmp_path, torn):
    with pytest.raises(Killed):
        evaluate(tmp_path, 5, Runner(die_after=2))
    assert [path.name for path in tmp_path.iterdir()] == ["sums.partial.jsonl"]
    with (tmp_path / "sums.partial.jsonl").open("a") as stream:
        stream.write(torn)
    runner = Runner(die_after=1)
    with pytest.raises(Killed):
        evaluate(tmp_path, 5, runner)
    assert runner.asked == [[0, 1, 2]]
    runner = Runner()
    found = evaluate(tmp_path, 5, runner)
    assert runner.asked == [[0, 1]]
    whole = evaluate(tmp_path / "whole", 5)
    assert found == whole
    assert [path.name for path in tmp_path.glob("sums*")] == ["sums.json"]


def test_finished_items_are_kept_for_more_and_for_fewer(tmp_path):
    evaluate(tmp_path, 2)
    runner = Runner()
    assert evaluate(tmp_path, 4, runner)["result"] == {"sum": 14} and runner.asked == [[2, 3]]
    runner = Runner()
    assert evaluate(tmp_path, 1, runner)["count"] == 4 and runner.asked == []


def test_another_evaluation_is_moved_aside(tmp_path):
    evaluate(tmp_path, 2)
    with pytest.raises(Killed):
        evaluate(tmp_path, 3, Runner(die_after=1), step=4)
    found = evaluate(tmp_path, 3, options={"length": 7})
    assert found["count"] == 3 and found["options"] == {"length": 7}
    evaluate(tmp_path, 1, step=9)
    evaluate(tmp_path, 1)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(kept) == {
        "sums.json", "sums_step_00000003.json", "sums_step_00000003_0.json",
        "sums_step_00000009.json", "sums.partial-0.jsonl",
    }  # fmt: skip
    assert json.loads(kept["sums_step_00000003.json"])["count"] == 2
    assert json.loads(kept["sums_step_00000003_0.json"])["count"] == 3
    assert '"index": 2' in kept["sums.partial-0.jsonl"]


def test_file_of_something_else_is_kept(tmp_path):
    (tmp_path / "sums.json").write_text("mine")
    assert evaluate(tmp_path, 1)["count"] == 1
    assert (tmp_path / "sums_unreadable.json").read_text() == "mine"


def test_scores_that_are_not_finite_are_named(tmp_path):
    run = lambda indices: iter([(1, {"log_prob": float("nan")})])  # noqa: E731
    with pytest.raises(ValueError, match="sums: found a score that is not finite at item 1"):
        evaluate_items(tmp_path, IDENTITY, 2, run, len)
    with pytest.raises(ValueError, match="sums: found no item"):
        evaluate(tmp_path, 0)
