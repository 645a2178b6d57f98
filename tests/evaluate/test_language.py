"""Evaluation of a run by tasks: files, resumption, and errors before anything is run."""

import json
import shutil

import numpy as np
import pytest

from bayesmem.evaluate.language import LanguageOptions, evaluate_language
from bayesmem.evaluate.task_names import parse_tasks
from bayesmem.train.loop import train
from tests.evaluate.test_workdir import text_config

NEVER_ENDING = " ".join(["memory filter state gain"] * 80)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of all data, each file small."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("lm/wikitext2", "recall", "zeroshot", "haystack"):
        (folder / name).mkdir(parents=True)
    (folder / "lm/wikitext2/test.txt").write_text(NEVER_ENDING[:300])
    (folder / "haystack/federalist.txt").write_text("State and gain. " * 40)
    item = {"context": "memory", "choices": ["filter", "gain"], "label": 0}
    lines = "".join(json.dumps(item | {"label": i % 2}) + "\n" for i in range(6))
    (folder / "zeroshot/hellaswag_val.jsonl").write_text(lines)
    question = {"question": "who", "answers": ["gain"], "context": "state gain"}
    (folder / "recall/nq_open_oracle.jsonl").write_text(json.dumps(question) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run on text."""
    corpus = tmp_path_factory.mktemp("corpus") / "text.txt"
    corpus.write_text(NEVER_ENDING * 4)
    workdir = tmp_path_factory.mktemp("run")
    train(text_config(corpus), workdir)
    return workdir


def evaluate(workdir, data, tasks, **options):
    chosen = {"batch_size": 4, "chunk": 64} | options
    found = LanguageOptions(data_dir=str(data), **chosen)
    return dict(evaluate_language(workdir, parse_tasks(tasks), found))


def test_each_task_writes_its_file(run, data, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(run, workdir)
    tasks = ["ppl@32", "hellaswag", "nq", "niah_single_2@300"]
    found = evaluate(workdir, data, tasks, limit=3)
    names = ["ppl@32.json", "hellaswag.json", "nq.json", "niah_single_2@300.json"]
    assert [path.name for path in found] == names
    assert sorted(path.name for path in (workdir / "evaluations").iterdir()) == sorted(names)
    for path, content in found.items():
        assert json.loads(path.read_text()) == json.loads(json.dumps(content))
        assert content["step"] == 4 and content["task"] == path.stem
        assert content["count"] == len(content["items"]) == (1 if path.stem == "nq" else 3)
    assert found[workdir / "evaluations" / "ppl@32.json"]["result"]["tokens"] == 96
    # All of a task after the first items of it: these are not run again.
    path = workdir / "evaluations" / "hellaswag.json"
    marked = json.loads(path.read_text())
    marked["items"][1]["log_probs"] = [0.0, 1.0]
    path.write_text(json.dumps(marked))
    (whole,) = evaluate(workdir, data, ["hellaswag"]).values()
    assert whole["count"] == 6 and whole["items"][1]["log_probs"] == [0.0, 1.0]
    assert np.isfinite(whole["items"][5]["log_probs"]).all()


def test_another_file_is_another_evaluation(run, data, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(run, workdir)
    own = tmp_path / "hellaswag_val.jsonl"
    lines = (data / "zeroshot/hellaswag_val.jsonl").read_text().splitlines()
    own.write_text("\n".join(lines[:2]))
    evaluate(workdir, tmp_path, ["hellaswag"])
    (found,) = evaluate(workdir, data, ["hellaswag"]).values()
    assert found["count"] == 6
    names = {path.name for path in (workdir / "evaluations").iterdir()}
    assert names == {"hellaswag.json", "hellaswag_step_00000004.json"}


@pytest.mark.parametrize(
    ("tasks", "options", "words"),
    [
        (["hellaswag", "piqa"], {}, "data_dir: found neither .*zeroshot/piqa_val.jsonl"),
        (["niah_single_1"], {}, r"length: found 32, wanted at least \d+ for niah_single_1"),
        (["ppl:/nowhere/t.txt"], {}, "found nothing at /nowhere/t.txt"),
        (["hellaswag"], {"limit": 0}, "limit: found 0"),
        (["hellaswag"], {"batch_size": 0}, "batch_size: found 0"),
        (["hellaswag"], {"chunk": 100}, "chunk: found 100"),
    ],
)
def test_errors_come_before_the_first_task(run, data, tasks, options, words):
    with pytest.raises(ValueError, match=words):
        evaluate(run, data, tasks, **options)
    assert not (run / "evaluations").exists()


def test_run_on_something_else(run, data, tmp_path):
    config = json.loads((run / "config.json").read_text())
    config["data"]["task"] = "mqar"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="a run of data.task = 'mqar'; wanted one on text"):
        evaluate(tmp_path, data, ["hellaswag"])
