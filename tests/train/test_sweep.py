"""A sweep from its config to its result files, stopped and continued too."""

import itertools
import json
import shutil
import signal

import jax
import pytest

from bayesmem.train import sweep as module
from bayesmem.train.grid import Run, done_runs, read_results
from bayesmem.train.sweep import ALL_RESULTS, collect, sweep
from bayesmem.train.sweep_adoption import adopt
from bayesmem.train.sweep_file import read_sweep
from tests.train.toys import sweep_config

DONE = {"done": 4, "left": 0, "failed": [], "elsewhere": [], "stopped": None}


def stop_after(monkeypatch, checks):
    """Lets a signal arrive when the sweep has looked for one that often."""
    seen = [0]

    def requested(self, step):
        seen[0] += 1
        if seen[0] == checks:
            self.received = signal.SIGTERM
        return self.received is not None

    monkeypatch.setattr(module.StopSignal, "requested", requested)


def test_every_run_has_a_result(tmp_path):
    assert sweep(sweep_config(), tmp_path) == DONE
    (result,) = read_results(tmp_path)
    assert done_runs([result]) == [
        Run("linear_attention", 8, rate, seed) for rate in (1e-2, 1e-1) for seed in (0, 1)
    ]
    assert result["task"] == "mqar" and result["steps"] == 6 and result["commit"]
    for run in result["runs"]:
        assert set(run["tests"]) == {"test", "longer"}
        assert run["tests"]["longer"]["queries"] == 12
        assert run["curve"]["step"] == [2, 4, 6] and len(run["curve"]["loss"]) == 3
    whole = json.loads((tmp_path / ALL_RESULTS).read_text())
    assert done_runs(whole["results"]) == done_runs([result])  # of fewer digits
    assert whole["results"][0].keys() == result.keys() and whole["config"]["data"]["task"] == "mqar"


def test_a_stopped_sweep_ends_where_it_would_have(tmp_path, monkeypatch):
    sweep(sweep_config(), tmp_path / "through")
    with monkeypatch.context() as patched:
        stop_after(patched, 2)
        hours = itertools.count(0, 3600)
        patched.setattr(module.time, "monotonic", lambda: next(hours))
        found = sweep(sweep_config(), tmp_path / "stopped")
    assert found == DONE | {"done": 0, "left": 4, "stopped": "SIGTERM"}
    assert sweep(sweep_config(), tmp_path / "stopped")["done"] == 4
    one, two = (read_results(tmp_path / name)[0] for name in ("through", "stopped"))
    assert one["runs"] == two["runs"]  # bit for bit, curves too
    assert one["seconds"] < 3600 <= two["seconds"]  # of both parts


def test_what_is_done_is_not_trained_again_and_a_grid_may_grow(tmp_path, monkeypatch):
    sweep(sweep_config(), tmp_path)
    kept = read_results(tmp_path)[0]
    trained = []
    real = module.create_runs
    monkeypatch.setattr(
        module, "create_runs", lambda *given: (trained.append(given[2]), real(*given))[1]
    )
    assert sweep(sweep_config(), tmp_path)["done"] == 4
    assert trained == []
    assert sweep(sweep_config(sweep__seeds=(0, 1, 2)), tmp_path)["done"] == 6
    assert trained == [[2, 2]]
    assert kept in read_results(tmp_path)


def test_a_result_that_is_gone_is_tested_again_from_its_checkpoint(tmp_path, monkeypatch):
    sweep(sweep_config(), tmp_path)
    (path,) = (tmp_path / "results").iterdir()
    kept = json.loads(path.read_text())
    path.unlink()
    with monkeypatch.context() as patched:  # a signal between two tests loses nothing either
        real = module.means_of_runs

        def interrupted(*given):
            signal.raise_signal(signal.SIGTERM)
            return real(*given)

        patched.setattr(module, "means_of_runs", interrupted)
        assert sweep(sweep_config(), tmp_path)["stopped"] == "SIGTERM"
    assert not path.exists()
    monkeypatch.setattr(module, "make_train_steps", lambda *given: pytest.fail)
    assert sweep(sweep_config(), tmp_path)["done"] == 4
    assert json.loads(path.read_text())["runs"] == kept["runs"]


def test_what_was_begun_goes_on_in_a_grown_grid(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        stop_after(patched, 2)
        sweep(sweep_config(), tmp_path)
    (saved,) = (tmp_path / "checkpoints").iterdir()
    sizes, real = [], module.make_train_steps

    def record(*given):
        sizes.append(len(given[2]))
        return real(*given)

    monkeypatch.setattr(module, "make_train_steps", record)
    assert sweep(sweep_config(sweep__seeds=(0, 1, 2)), tmp_path)["done"] == 6
    assert sizes == [4, 2] and (tmp_path / "results" / f"{saved.name}.json").exists()


def test_a_group_that_memory_has_no_room_for_does_not_stop_the_others(tmp_path, monkeypatch):
    real, seen = module.create_runs, []

    def first_fails(*given):
        seen.append(given)
        if len(seen) == 1:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return real(*given)

    monkeypatch.setattr(module, "create_runs", first_fails)
    found = sweep(sweep_config(sweep__together=2), tmp_path)
    assert found["done"] == 2 and found["left"] == 2 and len(found["failed"]) == 1
    assert sweep(sweep_config(sweep__together=2), tmp_path)["done"] == 4


@pytest.mark.parametrize("gone", (None, "checkpoints"))
def test_another_config_is_refused(tmp_path, gone):
    sweep(sweep_config(), tmp_path)
    if gone:  # results alone hold the place too
        shutil.rmtree(tmp_path / gone)
    before = sorted(path for path in tmp_path.rglob("*.json"))
    with pytest.raises(ValueError, match=r"train\.steps: 6 there, 8 asked"):
        sweep(sweep_config(train__steps=8), tmp_path)
    assert sorted(path for path in tmp_path.rglob("*.json")) == before


@pytest.mark.parametrize(
    "changes,message",
    (
        ({"train__grad_accumulation": 2}, "train.grad_accumulation: found 2; wanted no such key"),
        ({"train__eval_every": 10}, "train.eval_every: found 10; wanted no such key"),
        ({"optimizer__learning_rate": 0.1}, "optimizer.learning_rate: found 0.1; wanted no such"),
        ({"model__width": 16}, "model.width: found 16; wanted no such key in a sweep"),
        ({"data__valid_examples": 5}, "data.valid_examples: found 5; wanted no such key"),
        ({"train__batch_size": 32}, "train.batch_size: found 32; wanted at most the 16 examples"),
        ({"sweep__mixers": ("nothing",)}, "mixer: found 'nothing'"),
        ({"sweep__widths": (7,)}, "head_dim: width 7"),
        ({"model__vocab_size": 5}, "model.vocab_size: found 5; wanted at least 12"),
        ({"data__task": "text"}, "data"),
    ),
)
def test_bad_configs_are_refused_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(ValueError) as caught:
        sweep(sweep_config(**changes), tmp_path / "new")
    assert message in str(caught.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("own", ({"length": 3}, {"seq_len": 15}, {"test_examples": 0}))
def test_a_test_that_cannot_be_made_is_refused_as_early(tmp_path, own):
    config = sweep_config()
    config.tests["longer"] = own
    with pytest.raises(ValueError, match=f"{next(iter(own))}|unknown keys"):
        sweep(config, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_parts_of_a_grid_in_one_workdir_are_collected(tmp_path, monkeypatch):
    for seed in (1, 0):
        sweep(sweep_config(sweep__seeds=(seed,)), tmp_path)
    assert len(json.loads((tmp_path / ALL_RESULTS).read_text())["results"]) == 1  # the last part
    monkeypatch.setattr(module, "create_runs", lambda *given: pytest.fail())
    whole = sweep_config(sweep__seeds=(0, 1, 2))
    assert collect(whole, tmp_path) == {"done": 4, "left": 2}
    found = json.loads((tmp_path / ALL_RESULTS).read_text())
    assert len(done_runs(found["results"])) == 4
    assert found["config"]["sweep"]["seeds"] == [0, 1, 2]


def test_a_run_that_two_processes_have_trained_is_collected_once(tmp_path):
    sweep(sweep_config(), tmp_path)
    (first,) = (tmp_path / "results").glob("*.json")
    part = json.loads(first.read_text())
    part["runs"] = part["runs"][:1]  # as of another process with a smaller grid
    first.with_name(f"{first.stem}x.json").write_text(json.dumps(part))
    assert collect(sweep_config(), tmp_path) == {"done": 4, "left": 0}
    assert len(done_runs(read_sweep(tmp_path / ALL_RESULTS)["results"])) == 4


def test_nothing_is_collected_where_nothing_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="wanted a training run"):
        collect(sweep_config(), tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    sweep(sweep_config(), tmp_path)
    before = (tmp_path / ALL_RESULTS).read_text()
    with pytest.raises(ValueError, match="found no result of the grid"):
        collect(sweep_config(sweep__seeds=(7,)), tmp_path)
    with pytest.raises(ValueError, match="another config"):
        collect(sweep_config(train__steps=5), tmp_path)
    assert (tmp_path / ALL_RESULTS).read_text() == before


def test_results_of_an_earlier_sweep_are_not_trained_again(tmp_path, monkeypatch):
    sweep(sweep_config(), tmp_path / "old")
    earlier = tmp_path / "old" / ALL_RESULTS
    wider = sweep_config(sweep__seeds=(0, 1, 2))
    wider.model.mixer_options["linear_attention/new"] = {}  # another mixer is a larger grid
    assert adopt(wider, tmp_path / "new", earlier) == 4
    assert adopt(wider, tmp_path / "new", earlier) == 0
    trained = []
    real = module.create_runs
    monkeypatch.setattr(
        module, "create_runs", lambda *given: (trained.append(given[2]), real(*given))[1]
    )
    assert sweep(wider, tmp_path / "new")["done"] == 6
    assert trained == [[2, 2]]  # two learning rates
    kept = json.loads((tmp_path / "new" / ALL_RESULTS).read_text())["results"]
    assert json.loads(earlier.read_text())["results"][0] in kept


def test_results_of_another_sweep_are_refused(tmp_path):
    sweep(sweep_config(), tmp_path / "old")
    earlier = tmp_path / "old" / ALL_RESULTS
    other = sweep_config(train__steps=5)
    with pytest.raises(
        ValueError, match="found results of another config:\n  train.steps: 6 there"
    ):
        adopt(other, tmp_path / "new", earlier)
    assert not (tmp_path / "new").exists()
    options = sweep_config()
    options.model.mixer_options["linear_attention"] = {"num_heads": 4}
    with pytest.raises(ValueError, match="model.mixer_options.linear_attention"):
        adopt(options, tmp_path / "new", earlier)
    with pytest.raises(ValueError, match="found no results of launch.sweep"):
        (tmp_path / "bad.json").write_text("{}")
        adopt(sweep_config(), tmp_path / "new", tmp_path / "bad.json")
