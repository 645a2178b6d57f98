"""`launch.evaluate --tasks` as a user runs it: killed, started again, and wrong."""

import json
import time

import numpy as np
import pytest

from bayesmem.train.loop import train
from tests.evaluate.test_workdir import text_config
from tests.launch.test_train import finish, start

ITEMS = 4000


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run on text, and a file of many items."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "text.txt").write_text("memory filter state gain " * 300)
    train(text_config(folder / "text.txt"), folder / "run")
    rng = np.random.default_rng(0)
    say = lambda: "".join(rng.choice(list("abcd "), 40)) + "x"  # noqa: E731
    records = [{"context": say(), "target": say()} for _ in range(ITEMS)]
    (folder / "last.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def test_killed_evaluation_goes_on_where_it_was(run):
    flags = [
        f"--workdir={run}/run",
        f"--tasks=test,lambada:{run}/last.jsonl",
        "--batch_size=4",
        "--chunk=64",
    ]
    results = run / "run" / "evaluations"
    process = start("evaluate", *flags)
    partial, deadline = None, time.monotonic() + 200
    while partial is None or len(partial.read_text().splitlines()) < 100:
        assert process.poll() is None and time.monotonic() < deadline
        partial = next(iter(results.glob("lambada_*.partial.jsonl")), None)
        time.sleep(0.02)
    process.kill()
    process.communicate()
    before = partial.read_text().splitlines()[1:-1]
    assert 90 < len(before) < ITEMS and not list(results.glob("*.json"))
    out, err = finish(start("evaluate", *flags))
    (path,) = results.iterdir()
    found = json.loads(path.read_text())
    assert path.stem == found["task"] and path.stem.startswith("lambada_")
    assert found["count"] == ITEMS and f"{ITEMS}/{ITEMS}" in err
    items = {item["index"]: item for item in found["items"]}
    for item in map(json.loads, before):
        assert items[item["index"]] == item
    assert f"Written: {path}" in out and (run / "run" / "evaluation.json").is_file()


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ("swag", "error: tasks: found 'swag'"),
        ("hellaswag", "error: data_dir: found none, wanted a folder with zeroshot/hellaswag_val"),
        ("", "error: --tasks: found none"),
    ],
)
def test_errors_a_user_can_act_on(run, tasks, words):
    _, err = finish(start("evaluate", f"--workdir={run}/run", f"--tasks={tasks}"), status=1)
    assert words in err and "Traceback" not in err
