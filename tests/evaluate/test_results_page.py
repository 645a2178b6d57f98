import json
import shlex

import pytest
from absl import flags
from ml_collections import config_flags

from bayesmem.evaluate.collision_report import markdown_section
from bayesmem.evaluate.collision_results import run_collision
from bayesmem.evaluate.results_page import read_files, read_rows, results_page
from bayesmem.evaluate.sweep_command import command, origin
from bayesmem.evaluate.sweep_report import counts, sweep_section
from bayesmem.evaluate.sweep_summary import summarise
from launch.report import shipped
from tests import sweep_files as files


def section(found, note=""):
    return sweep_section("results/x.json", summarise(found), ["figures/x.svg"], shipped, note)


def test_a_section_has_numbers_claims_command_and_origin():
    text = section(files.collision_sweep((0.99, 0.98, 0.90)))
    assert "### Learned collision" in text and "![Learned collision](figures/x.svg)" in text
    assert "On some device; jax 1.2.3; commit 0123456789 with changes:" in text
    assert "15 runs: 5 mixers" in text and "activations in float32" in text
    assert "2500 steps of 256 sequences" in text
    line = "python -m launch.sweep --config=configs/sweeps/collision.py --workdir=runs/collision"
    assert f"```bash\n{line}\n```" in text
    assert "| `bayesian` | 12,345 | 0.0003 | 3 | 99.0 ± 1.0 | 99.0 ± 1.0 | 99.0 ± 1.0 |" in text
    claim = "| Fig. 3 d | Bayesian Layer, overlap .85 to .95 | keeps its accuracy | 90.0 ± 1.0"
    (row,) = [row for row in text.splitlines() if row.startswith(claim)]
    assert row.endswith("| **no** |")
    assert "Margin p(B) - p(A)" in text and "-0.200 ± 0.000" in text
    assert "| flood_256 | floods 256 | 1,280 | bayesian, linear_attention, " in text
    assert counts(summarise(files.collision_sweep((0.99, 0.98, 0.90)))) == "3 of 4 claims"


def test_what_is_smaller_than_the_protocol_is_said():
    found = files.collision_sweep()
    assert "Smaller than the protocol" not in section(found)
    found["config"]["train"]["steps"], found["config"]["sweep"]["seeds"] = 50, [0]
    less = "**Smaller than the protocol:** steps 50 of 2,500, seeds 1 of 3."
    assert less in section(found)
    none = summarise(files.mqar_of("base,64x4", {("gla", 64): 1.0}))
    assert counts(none) == "0 of 2 claims, 2 not run"


def test_what_of_the_grid_has_no_result_is_said():
    cells = {("bayesian", 128): 0.9, ("bayesian", 256): 0.9, ("gla", 128): 0.5}
    found = files.mqar_of("update,64x4", cells)
    assert "Not finished" not in section(files.collision_sweep())
    found["config"]["sweep"] |= {"mixers": ["bayesian", "gla", "kda"], "widths": [128, 256]}
    assert "**Not finished:** no result yet of `gla` W=256, `kda`." in section(found)


def test_a_missing_seed_a_failed_value_and_a_single_width_are_said():
    found = files.mqar_of("update,64x4", {("bayesian", 128): 0.9, ("gla", 128): 0.5}, seeds=(0, 1))
    found["config"]["sweep"]["seeds"] = [0, 1, 2]
    found["results"][1]["runs"][0]["tests"]["length_x2"]["loss"] = None
    text = section(found, "Tried: nothing.\n")
    assert "Without all seeds of the grid: bayesian W=128, gla W=128." in text
    assert "| `gla` | 128 | 0.0001 | 2 | 0.100 ± 0.000 | 1.100 ± 0.000 | 2.100 (1 of 2" in text
    assert "Margin" not in text and text.endswith("Tried: nothing.\n")
    assert "| width | parameters | state |" in text and "highest mean training accuracy" in text
    assert "not run" in text and "None" not in text


def test_one_seed_has_no_deviation():
    text = section(files.mqar_of("base,64x4", {("bayesian", 64): 0.9}, seeds=(5,)))
    assert "| 1 | 90.0 | 90.0 |" in text


@pytest.mark.filterwarnings("ignore:the load_module")  # of ml_collections
@pytest.mark.parametrize("size", ("64x4", "512x64"))
def test_the_command_makes_the_config(size):
    config = files.config_of("mqar", f"update,{size}", seeds=[0], mixers=["gla", "deltanet"])
    config["train"]["steps"], config["optimizer"]["schedule"] = 2500, "linear"
    config["tests"]["length_x2"]["seq_len"] = 99
    line, left = command(config, shipped)
    assert left == []
    words = shlex.split(line)
    assert words[3:5] == [f"--config=configs/sweeps/mqar.py:update,{size}", words[4]]
    found = parse(words[3:4] + words[5:])
    assert json.loads(json.dumps(found)) == config


def parse(words):
    """The config that launch scripts make of these flags."""
    values = flags.FlagValues()
    argv = ["launch.sweep", *words]
    holder = config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
    values(argv)
    return holder.value.to_dict()


def test_what_no_flag_can_set_is_said():
    config = files.config_of("mqar")
    config["model"]["mixer_options"]["bayesian/conv"]["conv_size"] = 3
    config["data"]["new"] = 1
    line, left = command(config, shipped)
    assert left == ["data.new", "model.mixer_options.bayesian/conv.conv_size"]
    assert "new" not in line
    config = files.config_of("mqar")
    config["data"]["num_pairs"] = 3  # a size without a variant
    assert origin(config).variant == "update"
    assert "--config.data.num_pairs=3" in command(config, shipped)[0]


def test_a_page_of_every_kind_of_file(tmp_path):
    files.write(tmp_path / "collision.json", run_collision())
    files.write(tmp_path / "sweep_z.json", files.collision_sweep())
    accuracies = {("bayesian", 64): 0.9}
    files.write(tmp_path / "sweep_a.json", files.mqar_of("block,64x4", accuracies))
    files.write(tmp_path / "sweep_b.json", files.mqar_of("base,128x8", accuracies))
    files.write(tmp_path / "sweep_c.json", files.mqar_of("base,64x4", accuracies))
    (tmp_path / "sweep_z.md").write_text("Tried: more steps.")
    read = read_files(tmp_path)
    assert list(read.sweeps) == ["sweep_z.json", "sweep_c.json", "sweep_b.json", "sweep_a.json"]
    figures = {
        name: [tmp_path / f"{name}.svg"] for name in ("mqar", "collision.json", *read.sweeps)
    }
    page = results_page(read, lambda path: path.relative_to(tmp_path.parent).name, figures, shipped)
    places = [page.index(f"\n## {name}") for name in ("Deterministic collision", "Learned")]
    places += [page.index(f"\n### {name}") for name in ("Learned", "MQAR, base, length 64")]
    assert places == sorted(places) and page.count("mqar.svg") == 1
    assert "Tried: more steps." in page and "51 of 61 numbers" in page
    assert "| 4 of 4 claims |" in page and "bench_ops" not in page


def test_the_collision_section_tells_what_differs():
    text = markdown_section(run_collision(), "results/collision.json", [])
    assert "| end of flood | reset: margin | 0.92 | -.44 | -0.29723 | +0.14277 | **no** |" in text
    assert "| end of flood | reset: margin | 0.99 | -.44 | -0.44144 | -0.00144 | yes |" in text
    assert "never" in text and "-0.00000" not in text


@pytest.mark.parametrize("text", ('{"op"', "[1]", '[{"op": "a"}]', "{}", "null", "[]"))
def test_a_file_that_holds_no_timings_is_named(tmp_path, text):
    path = tmp_path / "bench_ops_bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"bench_ops_bad\.json: found no rows"):
        read_rows(path)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no collision\.json, no sweep"):
        read_files(tmp_path)
    (tmp_path / "collision.json").write_text("{}")
    with pytest.raises(ValueError, match=r"collision\.json: found no results of launch\.collision"):
        read_files(tmp_path)
    (tmp_path / "collision.json").unlink()
    found = files.collision_sweep()
    del found["results"][0]["runs"][0]["tests"]["test"]["queries"]
    path = files.write(tmp_path / "sweep_bad.json", found)
    with pytest.raises(ValueError, match=r"sweep_bad\.json: .*KeyError: 'queries'"):
        read_files(tmp_path)
    del found["results"][0]["parameters"]
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=r"sweep_bad\.json: .*KeyError: 'parameters'"):
        read_files(tmp_path)
