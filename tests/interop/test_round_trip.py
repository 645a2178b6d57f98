"""Load, export, load: the same bytes; and what is said of files that are not whole (C22)."""

import json
import shutil
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bayesmem.interop import load_fla, save_fla
from bayesmem.interop import tensor_files as files_module
from tests.interop.fixture_models import FOLDER, NAMES, imported, read_tensors

MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"


def copied(name, folder):
    """A copy of a fixture's checkpoint, and its tensors."""
    shutil.copytree(FOLDER / name, folder, ignore=shutil.ignore_patterns("*.npz"))
    return folder, load_file(folder / MODEL)


def sharded(name, folder):
    """A fixture in two files with an index."""
    folder, tensors = copied(name, folder)
    (folder / MODEL).unlink()
    names = list(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2]}
    halves["model-00002-of-00002.safetensors"] = names[1::2]
    for file, own in halves.items():
        save_file({key: tensors[key] for key in own}, folder / file, {"format": "pt", "by": file})
    weight_map = {key: file for file, own in halves.items() for key in own}
    size = sum(array.nbytes for array in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=4))
    return folder, list(halves)


def assert_same_files(found, wanted):
    assert {p.name for p in found.iterdir()} == {p.name for p in wanted.iterdir()}
    for path in wanted.iterdir():
        if path.suffix == ".safetensors":
            assert read_tensors(found / path.name) == read_tensors(path)
            with files_module.safetensors.safe_open(path, "np") as one:
                with files_module.safetensors.safe_open(found / path.name, "np") as two:
                    assert one.metadata() == two.metadata()
        else:
            assert (found / path.name).read_bytes() == path.read_bytes()


def assert_same_params(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_export_gives_the_same_files_and_parameters(name, tmp_path):
    source, _ = copied(name, tmp_path / "source")
    text = (source / "config.json").read_bytes()
    (source / "config.json").write_bytes(text.replace(b"\n", b"\r\n"))
    config, params, origin = load_fla(source)
    save_fla(tmp_path / "out", config, params, origin)
    assert_same_files(tmp_path / "out", source)
    again = load_fla(tmp_path / "out")
    assert again.config == config and again.origin == origin
    assert_same_params(again.params, params)


def test_decays_are_float32_beside_bfloat16():
    shard = imported("gated_deltanet_bfloat16").origin.shards[MODEL]
    assert {shard[key] for key in shard if key.endswith("A_log")} == {"float32"}
    assert {shard[key] for key in shard if not key.endswith("A_log")} == {"bfloat16"}


def test_a_tied_head_that_is_stored_is_stored_again(tmp_path):
    source, tensors = copied("gated_deltanet_tied", tmp_path / "source")
    assert "lm_head.weight" not in tensors
    table = tensors["model.embeddings.weight"]
    save_file(tensors | {"lm_head.weight": table}, source / MODEL, {"format": "pt"})
    config, params, origin = load_fla(source)
    assert "head" not in params
    save_fla(tmp_path / "out", config, params, origin)
    assert_same_files(tmp_path / "out", source)
    save_file(tensors | {"lm_head.weight": table + 1}, source / MODEL, {"format": "pt"})
    with pytest.raises(ValueError, match="lm_head.weight: found other numbers"):
        load_fla(source)


def test_shards_are_read_and_written_again(tmp_path):
    source, _ = sharded("gated_deltanet_tied", tmp_path / "source")
    config, params, origin = load_fla(source)
    assert_same_params(params, imported("gated_deltanet_tied").params)
    save_fla(tmp_path / "out", config, params, origin)
    assert_same_files(tmp_path / "out", source)


def test_missing_extra_and_misshapen_tensors_are_all_named_at_once(tmp_path):
    source, tensors = copied("gated_deltanet", tmp_path / "source")
    missing = "model.layers.1.attn.k_conv1d.weight"
    del tensors[missing]
    tensors["model.layers.0.attn.q_conv1d.bias"] = np.zeros(16, np.float32)
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((41, 24), np.float32)
    save_file(tensors, source / MODEL)
    with pytest.raises(ValueError) as error:
        load_fla(source)
    assert str(error.value).splitlines()[1:] == [
        f"  missing: {missing} [16, 1, 4]",
        "  extra: model.layers.0.attn.q_conv1d.bias [16]",
        "  of another shape: model.layers.0.mlp.up_proj.weight: found [41, 24], wanted [40, 24]",
    ]


def rewrite_config(folder, **changes):
    """Changes keys of a copy's config.json; None takes one out."""
    content = json.loads((folder / "config.json").read_text()) | changes
    kept = {key: value for key, value in content.items() if key not in changes or value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def test_more_layers_than_tensors_are_no_work(tmp_path):
    source, tensors = copied("gated_deltanet", tmp_path / "source")
    rewrite_config(source, num_hidden_layers=2**31 - 1)
    with pytest.raises(ValueError, match=rf"config.json num_hidden_layers: .*most {len(tensors)}:"):
        load_fla(source)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("num_heads", "multiple of the 6 key heads\n  not in config.json, so .*: num_heads 6$"),
        (
            "head_dim",
            r"of another shape: .*\n  not in config.json, so fla's defaults: head_dim 256$",
        ),
        ("num_hidden_layers", r"missing: .*\n  not in config.json, .*: num_hidden_layers 21$"),
    ],
)
def test_a_default_that_was_taken_is_named(key, words, tmp_path):
    source, _ = copied("gated_deltanet", tmp_path / "source")
    rewrite_config(source, **{key: None})
    with pytest.raises(ValueError, match=f"(?s){words}"):
        load_fla(source)


def test_faults_of_shards_are_named(tmp_path):
    source, (first, second) = sharded("gla", tmp_path / "source")
    index, content = (source / INDEX).read_text(), load_file(source / second)
    dropped = next(iter(content))
    save_file({key: content[key] for key in content if key != dropped}, source / second)
    with pytest.raises(ValueError, match=f"{dropped}: the index says {second}, which lacks it"):
        load_fla(source)
    save_file(content, source / second)
    (source / INDEX).write_text(index.replace(f'"{dropped}": "{second}"', f'"x": "{first}"'))
    with pytest.raises(ValueError) as error:
        load_fla(source)
    for words in (f"x: the index says {first}", f"{dropped}: in {second}", "no file"):
        assert words in str(error.value)
    for text, words in (("{}", "weight_map"), ("[1]", "no JSON object"), ("{", "no JSON")):
        (source / INDEX).write_text(text)
        with pytest.raises(ValueError, match=words):
            load_fla(source)
    (source / INDEX).write_text(index.replace(first, f"../{first}"))
    with pytest.raises(ValueError, match="without a folder"):
        load_fla(source)
    (source / INDEX).write_text(index)
    (source / second).unlink()
    with pytest.raises(FileNotFoundError, match=second):
        load_fla(source)


def test_damaged_files_and_other_dtypes_are_named(tmp_path):
    source, tensors = copied("gla", tmp_path / "source")
    whole = (source / MODEL).read_bytes()
    for content in (whole[:-4], whole[:100], b"", b"PK\x03\x04" + whole):
        (source / MODEL).write_bytes(content)
        with pytest.raises(ValueError, match=f"{MODEL}: found a torn or damaged file"):
            load_fla(source)
    for dtype, word in ((np.int32, "I32"), (np.float64, "F64")):
        tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(dtype)
        save_file(tensors, source / MODEL)
        with pytest.raises(ValueError, match=rf"model.norm.weight in {MODEL}: found {word}"):
            load_fla(source)
    (source / MODEL).unlink()
    with pytest.raises(FileNotFoundError, match=MODEL):
        load_fla(source)
    (source / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json: found no JSON object"):
        load_fla(source)
    with pytest.raises(FileNotFoundError, match="no folder"):
        load_fla(tmp_path / "nowhere")


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path, monkeypatch):
    config, params, origin = imported("gla")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(FileExistsError, match="output: found a folder that is not empty"):
        save_fla(tmp_path / "out", config, params, origin)
    with pytest.raises(FileExistsError, match="output: found a file"):
        save_fla(tmp_path / "out" / "mine", config, params, origin)
    (tmp_path / "out" / "mine").unlink()

    def full(*args, **kwargs):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(files_module, "save_file", full)
        with pytest.raises(OSError, match="no space left"):
            save_fla(tmp_path / "new", config, params, origin)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    save_fla(tmp_path / "out", config, params, origin)  # an empty folder is filled
    assert read_tensors(tmp_path / "out" / MODEL) == read_tensors(FOLDER / "gla" / MODEL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing_behind(number, tmp_path):
    program = (
        "import sys, time, pathlib\n"
        "from bayesmem.interop.new_folder import new_folder\n"
        "with new_folder('output', pathlib.Path(sys.argv[1])) as partial:\n"
        "    (partial / 'begun').touch()\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    line = [sys.executable, "-c", program, str(tmp_path / "new")]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == b"ready\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(number)
    assert process.returncode != 0 and not list(tmp_path.iterdir())


def test_another_dtype_is_what_the_files_say(tmp_path):
    source, _ = sharded("gated_deltanet", tmp_path / "source")
    config, params, origin = load_fla(source)
    save_fla(tmp_path / "out", config, params, origin, dtype="bfloat16")
    again = load_fla(tmp_path / "out")
    assert json.loads(again.origin.config)["dtype"] == "bfloat16"
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(np.float32), params)
    for layer in ("blocks_0", "blocks_1"):  # decays are not rounded
        for name in ("A_log", "dt_bias"):
            rounded[layer]["mixer"]["decay"][name] = params[layer]["mixer"]["decay"][name]
    assert_same_params(again.params, rounded)
    stored = [load_file(path) for path in (tmp_path / "out").glob("*.safetensors")]
    size = sum(array.nbytes for tensors in stored for array in tensors.values())
    assert json.loads(again.origin.index_text)["metadata"]["total_size"] == size
    with pytest.raises(ValueError, match="dtype: found 'int8'"):
        save_fla(tmp_path / "other", config, params, origin, dtype="int8")
    params = jax.tree.map(lambda x: x * 1e6, params)
    with pytest.raises(ValueError, match="float16 for "):
        save_fla(tmp_path / "other", config, params, origin, dtype="float16")


def test_parameters_and_configuration_have_to_be_the_origins(tmp_path):
    config, params, origin = imported("gated_deltanet")
    other = imported("gated_deltanet_bfloat16")
    with pytest.raises(ValueError) as error:
        save_fla(tmp_path / "out", other.config, other.params, origin)
    assert "output_gate of layer 0: found 'none', wanted 'silu'" in str(error.value)
    short = {name: part for name, part in params.items() if name != "final_norm"}
    with pytest.raises(ValueError, match=r"missing: final_norm/scale \[24\]"):
        save_fla(tmp_path / "out", config, short, origin)
    file = {MODEL: {k: v for k, v in origin.shards[MODEL].items() if k != "model.norm.weight"}}
    with pytest.raises(ValueError, match="missing: model.norm.weight"):
        save_fla(tmp_path / "out", config, params, origin._replace(shards=file))
    assert not list(tmp_path.iterdir())
