"""`launch.convert` as a user runs it, with the commands that take what it makes."""

import json

import pytest

from bayesmem.interop import save_fla
from tests.data import tiny_tokenizers as tiny
from tests.interop.test_new_models import make
from tests.launch.test_train import finish, start


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A checkpoint of fla's with a tokenizer."""
    folder = tmp_path_factory.mktemp("source") / "model"
    options = {"num_heads": 2, "state_dim": 4, "conv_bias": True, "output_norm": "gated_groups"}
    config, params = make("mamba2", options, {"vocab_size": 300, "mlp_width": 0})
    save_fla(folder, config, params, dtype="bfloat16")
    tiny.save_json(folder / "tokenizer.json")
    return folder


def test_in_evaluated_generated_and_out_again(source, tmp_path):
    run = tmp_path / "run"
    out, _ = finish(start("convert", f"--source={source}", f"--workdir={run}"))
    assert f"Written: {run}, 2 layers of mamba2" in out
    generate = [f"--workdir={run}", "--prompt=the memory", "--max_new_tokens=8", "--temperature=0"]
    _, err = finish(start("generate", *generate))
    assert "step 0: " in err
    items = [{"context": "the key and its", "target": "value"}] * 3
    (tmp_path / "last.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    tasks = f"--tasks=lambada:{tmp_path}/last.jsonl"
    out, _ = finish(start("evaluate", f"--workdir={run}", tasks, "--chunk=32"))
    assert "3 items, step 0" in out
    out, _ = finish(start("convert", f"--workdir={run}", f"--output={tmp_path}/out"))
    assert f"Written: {tmp_path}/out, step 0" in out
    for path in source.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--source={source}", "--output=x"], "--source, --output: found both or none"),
        ([], "--source, --output: found both or none"),
        (["--source={source}", "--dtype=bfloat16"], "--dtype: found with --source"),
        (["--output=x", "--tokenizer=bytes"], "--tokenizer: found with --output"),
        (["--source=nowhere"], "source: found no folder nowhere"),
        (["--source={source}/.."], "found no config.json"),
        (["--output=x"], "workdir: found no config.json"),
    ],
)
def test_errors_a_user_can_act_on(source, tmp_path, flags, words):
    flags = [flag.format(source=source) for flag in flags]
    _, err = finish(start("convert", f"--workdir={tmp_path}/run", *flags), status=1)
    assert f"error: {words}" in err or words in err
    assert "Traceback" not in err and not list(tmp_path.iterdir())
