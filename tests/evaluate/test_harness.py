"""lm-evaluation-harness and our own measures on the same items."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bayesmem.data.tokenizers import load_tokenizer
from bayesmem.evaluate.choice_tasks import choice_task, last_word_task
from bayesmem.evaluate.scorer import Scorer
from bayesmem.evaluate.subject import Prompt, Subject, write_answers
from bayesmem.evaluate.text_tasks import text_task
from bayesmem.models import LanguageModel
from bayesmem.train.settings import MeshSettings
from bayesmem.train.sharding import make_mesh
from tests.evaluate.byte_model import byte_model
from tests.tolerances import SCORE_LIMIT

ROOT = Path(__file__).parents[2]


def test_without_the_harness_the_error_names_the_extra():
    program = (
        "import sys; sys.modules['lm_eval'] = None\n"
        "import bayesmem.evaluate.language\n"
        "import bayesmem.evaluate.harness"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "pip install -e '.[harness]'" in done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def harness():
    """The package with our model of it."""
    lm_eval = pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
    from bayesmem.evaluate.harness import HarnessModel

    return lm_eval, HarnessModel


@pytest.fixture(scope="module")
def subject():
    config, params = byte_model()
    scorer = Scorer(LanguageModel(config), params, make_mesh(MeshSettings()), 4, 64)
    return Subject(scorer, load_tokenizer("bytes"))


@pytest.fixture(scope="module")
def items(tmp_path_factory):
    """Files of items: choices, last words, and a text."""
    folder = tmp_path_factory.mktemp("items")
    words = "river stone lamp seven window quiet harbour".split()
    rng = np.random.default_rng(0)
    say = lambda n: " ".join(rng.choice(words, n))  # noqa: E731
    choices = [
        {"context": say(6), "choices": [say(n) for n in (1, 2, 3)], "label": i % 3}
        for i in range(7)
    ]
    last = [{"context": say(int(rng.integers(2, 20))), "target": say(1)} for _ in range(7)]
    for name, records in (("choices", choices), ("last", last)):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines)
    (folder / "text.txt").write_text(say(60))
    return folder


def task(items, name, **fields):
    """A task of the harness on one of the files."""
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(items / f"{name}.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{context}}",
        **fields,
    }


@pytest.mark.filterwarnings("default")  # of packages that the harness imports
def test_harness_agrees_with_our_measures(harness, subject, items, tmp_path, monkeypatch):
    lm_eval, harness_model = harness
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    measures = [{"metric": "acc"}, {"metric": "acc_norm"}]
    tasks = [
        task(items, "choices", output_type="multiple_choice", doc_to_choice="choices",
             doc_to_target="label", metric_list=measures),
        task(items, "last", output_type="loglikelihood", doc_to_target="{{' ' + target}}",
             metric_list=[{"metric": "acc"}, {"metric": "perplexity"}]),
    ]  # fmt: skip
    found = lm_eval.simple_evaluate(harness_model(subject), tasks=tasks, bootstrap_iters=0)
    theirs = found["results"]
    for name, make, names in (
        ("choices", choice_task, {"acc": "accuracy", "acc_norm": "accuracy_by_length"}),
        ("last", last_word_task, {"acc": "accuracy", "perplexity": "perplexity"}),
    ):
        own = make(subject, items / f"{name}.jsonl")
        results = [result for _, result in sorted(own.run(range(own.size)))]
        measured = own.summarise(results)
        for key, ours in names.items():
            value = theirs[name][f"{key},none"]
            assert abs(value - measured[ours]) <= SCORE_LIMIT * measured[ours]
        samples = sorted(found["samples"][name], key=lambda sample: sample["doc_id"])
        for sample, result in zip(samples, results, strict=True):
            there = [float(response[0][0]) for response in sample["resps"]]
            here = result.get("log_probs", [result.get("log_prob")])
            np.testing.assert_allclose(there, here, rtol=0, atol=SCORE_LIMIT)


class Request:
    def __init__(self, *args):
        self.args = args


def test_rolling_likelihoods_and_generations_agree(harness, subject, items):
    _, harness_model = harness
    text = (items / "text.txt").read_text()
    model = harness_model(subject)
    found = model.loglikelihood_rolling([Request(text), Request(""), Request(text[:40])])
    own = text_task(subject, items / "text.txt", length=None)
    ((_, result),) = own.run([0])
    assert abs(found[0] + result["nats"]) < SCORE_LIMIT
    assert found[1] == 0 and found[0] < found[2] < 0
    (windowed,) = harness_model(subject, window=50).loglikelihood_rolling([Request(text)])
    assert abs(windowed - found[0]) > SCORE_LIMIT
    options = {"until": ["\n", "q"], "max_gen_toks": 12, "do_sample": False}
    written = model.generate_until([Request(text[:20], options), Request(text, options)])
    prompts = [Prompt(text[:20], 12, ("\n", "q")), Prompt(text, 12, ("\n", "q"))]
    assert written == [answer for _, answer in sorted(write_answers(subject, prompts))]
    with pytest.raises(NotImplementedError, match="wanted greedy generation"):
        model.generate_until([Request("a", {"do_sample": True, "temperature": 0.7})])
