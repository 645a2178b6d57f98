"""Text of a trained run: what is written, from a state too, and what is refused."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bayesmem.evaluate.generation import Request, write_text
from bayesmem.models.sampling import GREEDY, Sampling
from bayesmem.train.loop import train
from configs import lm

ROOT = Path(__file__).parents[2]
STEPS = 60
RANDOM = Sampling(temperature=1.2, top_k=200)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run of a hybrid on a text of two characters, one of them of two bytes."""
    folder, workdir = tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("run")
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("é\n" * 400, encoding="utf-8")
    config = lm.get_config("gated_deltanet+attention").unlock()
    config.data.path, config.data.seq_len = str(folder), 64
    config.model.width, config.model.mlp_width = 16, 16
    config.optimizer.warmup_steps = 1
    config.optimizer.learning_rate = 1e-2
    config.train.update(
        {"steps": STEPS, "batch_size": 4, "eval_batches": 1, "checkpoint_every": STEPS}
    )
    train(config.lock(), workdir)
    return workdir


def written(run, **values):
    """The text, and what was said of it."""
    parts = []
    done = write_text(run, Request(**{"max_new_tokens": 20} | values), parts.append)
    return "".join(parts), done


def test_a_trained_model_goes_on_as_it_was_taught(run):
    text, done = written(run, prompt="é\né\n".encode(), sampling=GREEDY)
    assert text == "é\n" * 6 + "é" and done[:2] == (STEPS, 20) and done.ended_by == "max_new_tokens"
    # The first byte of a character in the prompt, and its second one from the model.
    text, _ = written(run, prompt="é\né".encode()[:-1], sampling=GREEDY, max_new_tokens=2)
    assert text == "é\n"


def test_the_document_mark_alone_begins_a_text(run):
    for prompt in (None, b""):
        text, done = written(run, prompt=prompt, sampling=GREEDY, max_new_tokens=6)
        assert done.tokens == 6 and text == written(run, sampling=GREEDY, max_new_tokens=6)[0]


def test_seeds(run):
    texts = [written(run, sampling=RANDOM, seed=seed)[0] for seed in (0, None, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_a_stop_text_is_not_printed_and_the_state_is_behind_it(run, tmp_path):
    text, done = written(
        run, prompt="é\né".encode(), sampling=GREEDY, stops=("\né",), save_state=tmp_path / "state"
    )
    assert text == "" and done.ended_by == "stop text" and done.tokens == 3
    text, done = written(run, state=tmp_path / "state", sampling=GREEDY, stops=("\n",))
    assert text == "" and done.ended_by == "stop text"
    text, _ = written(run, state=tmp_path / "state", sampling=GREEDY, max_new_tokens=4)
    assert text == "\né\n"


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "drawn"])
@pytest.mark.parametrize("cut", [1, 2, 3, 8])
def test_parts_with_a_state_between_are_one_text(run, tmp_path, sampling, cut):
    """Also where the cut is in a character; the file can be used again."""
    common = {"sampling": sampling, "stops": ("\né" * 4,), "seed": 5}
    whole, _ = written(run, prompt=b"\xc3", **common)
    first, done = written(
        run, prompt=b"\xc3", max_new_tokens=cut, save_state=tmp_path / "state", **common
    )
    assert done.ended_by == "max_new_tokens"
    del common["seed"]
    for _ in range(2):
        second, _ = written(run, state=tmp_path / "state", max_new_tokens=20 - cut, **common)
        assert first + second == whole


def test_further_prompts_with_a_state_are_prompts_of_one_text(run, tmp_path):
    state = tmp_path / "state"
    first, _ = written(run, prompt=b"ab", sampling=RANDOM, max_new_tokens=4, save_state=state)
    with np.load(state) as stored:
        context = json.loads(str(stored["record"]))["notes"]["context"]
    assert context[:3] == [256, *b"ab"] and len(context) == 7
    wanted, _ = written(run, prompt=bytes([*context[1:], *b"cd"]), sampling=GREEDY)
    found, _ = written(run, prompt=b"cd", state=state, sampling=GREEDY)
    # What was held back of `first` comes before.
    assert first + found == bytes(context[3:]).decode("utf-8", "replace") + wanted


def test_behind_the_end_of_a_document_only_a_prompt_goes_on(run, tmp_path):
    state = tmp_path / "state"
    written(run, prompt=b"a", save_state=state, sampling=RANDOM, max_new_tokens=3)
    with np.load(state) as stored:
        arrays = dict(stored)
    arrays["token"][:] = 256
    np.savez(tmp_path / "ended.npz", **arrays)
    with pytest.raises(ValueError, match="state: the document of .* has ended, wanted a prompt"):
        written(run, state=tmp_path / "ended.npz")
    common = {"prompt": "é".encode(), "sampling": GREEDY}
    found, _ = written(run, state=tmp_path / "ended.npz", save_state=tmp_path / "new", **common)
    assert written(run, save_state=tmp_path / "fresh", **common)[0] == found
    with np.load(tmp_path / "new") as later, np.load(tmp_path / "fresh") as fresh:
        assert later["drawn"] == [3 + 20] and fresh["drawn"] == [20]  # of the same keys


def test_a_state_of_other_parameters_is_refused(run, tmp_path):
    written(run, save_state=tmp_path / "state")
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    shutil.move(copy / "checkpoints" / "step_00000060", copy / "checkpoints" / "step_00000070")
    config = json.loads((copy / "config.json").read_text())
    config["model"]["norm_eps"] = 1e-3
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="model.norm_eps: found 1e-05, wanted 0.001"):
        written(copy, state=tmp_path / "state")


def test_capacity_of_caches(run):
    with pytest.raises(ValueError, match="max_length: the cache of layer 1 holds 64 .* wanted 70"):
        written(run, max_new_tokens=70)
    assert written(run, max_new_tokens=70, max_length=70, sampling=GREEDY)[1].tokens == 70


def test_what_is_refused(run, tmp_path):
    (tmp_path / "there").write_text("mine")
    with pytest.raises(FileExistsError, match="save_state: .*there exists already"):
        written(run, save_state=tmp_path / "there")
    assert (tmp_path / "there").read_text() == "mine"
    with pytest.raises(FileNotFoundError):
        written(run, state=tmp_path / "nothing")
    with pytest.raises(ValueError, match="max_new_tokens: found 0"):
        written(run, max_new_tokens=0)
    with pytest.raises(ValueError, match="stop: found an empty text"):
        written(run, stops=("",))
    other = tmp_path / "other"
    other.mkdir()
    config = json.loads((run / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"data": {"task": "mqar"}}))
    with pytest.raises(ValueError, match="workdir: found a run with data.task = 'mqar'"):
        written(other)


def launch(*flags):
    return subprocess.run(
        [sys.executable, "-m", "launch.generate", *flags],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=300,
    )


def test_the_command(run, tmp_path):
    (tmp_path / "prompt").write_text("é\né", encoding="utf-8")
    done = launch(
        f"--workdir={run}", f"--prompt_file={tmp_path / 'prompt'}", "--temperature=0",
        "--max_new_tokens=6", "--stop=never",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == "\né\né"
    assert b"step 60: 6 tokens in" in done.stderr and b"max_new_tokens" in done.stderr


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--temperature=-1", "error: temperature: found -1.0"),
        ("--top_p=0", "error: top_p: found 0"),
        ("--top_k=0", "error: top_k: found 0"),
        ("--prompt_file=x", "error: --prompt, --prompt_file: found both"),
    ],
)
def test_errors_of_the_command(tmp_path, flag, words):
    done = launch(f"--workdir={tmp_path}", "--prompt=a", flag)
    assert done.returncode == 1 and words in done.stderr.decode()
    assert b"Traceback" not in done.stderr and not done.stdout
