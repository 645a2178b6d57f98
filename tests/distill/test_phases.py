"""Whole distillations of a small teacher: what is trained, and what stops and continues."""

import json
import os
import shutil
import signal

import numpy as np
import pytest

from bayesmem.distill import phases
from bayesmem.distill.phases import distill
from bayesmem.distill.replacement import SCALE
from bayesmem.evaluate.language import load_subject
from bayesmem.evaluate.workdir import evaluate_workdir
from bayesmem.train import parts as train_parts
from tests.distill.runs import (
    PHASES,
    STEPS,
    contents,
    make_config,
    make_teacher,
    older,
    restored,
    rows,
    teacher_in_turns,
)

TRAINED = "layers/block_1/mixer/"


class Killed(Exception):
    """Stands for a kill: nothing after it runs."""


def kill():
    raise Killed


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


class StoppingLoader:
    """Does something before it hands out one of its batches."""

    def __init__(self, loader, at, action):
        self.loader, self.at, self.action, self.count = loader, at, action, 0

    def __next__(self):
        if self.count == self.at:
            self.action()
        self.count += 1
        return next(self.loader)

    def __getattr__(self, name):
        return getattr(self.loader, name)


@pytest.fixture
def stop(monkeypatch):
    """Makes the next runs of a phase do something before a batch, counted from their start."""

    def arrange(phase, at, action):
        def build(config, settings):
            parts = train_parts.build_parts(config, settings)
            if settings.seed != PHASES.index(phase):
                return parts
            return parts._replace(loader=StoppingLoader(parts.loader, at, action))

        monkeypatch.setattr(phases, "build_parts", build)

    yield arrange
    monkeypatch.undo()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return make_teacher(tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="module")
def whole(teacher, tmp_path_factory):
    """The workdir and result of a distillation that nothing interrupts."""
    workdir = tmp_path_factory.mktemp("whole")
    return workdir, distill(make_config(teacher), workdir)


def assert_same(workdir, whole, names=PHASES):
    for name in names:
        assert rows(workdir / name) == rows(whole[0] / name)
        (step, found), (_, wanted) = restored(workdir / name), restored(whole[0] / name)
        assert step == STEPS and found.keys() == wanted.keys()
        for leaf in wanted:
            np.testing.assert_array_equal(found[leaf], wanted[leaf], err_msg=f"{name} {leaf}")


def test_result_rows_and_parameters(whole, teacher):
    workdir, result = whole
    assert result == json.loads((workdir / "distill_result.json").read_text())
    assert result["layers"] == [1] and set(result) == {"teacher", "layers", *PHASES}
    wanted, trained = teacher_in_turns(teacher), []
    for name in PHASES:
        step, found = restored(workdir / name)
        assert step == STEPS
        for leaf, value in found.items():
            if not leaf.startswith(TRAINED):
                np.testing.assert_array_equal(value, wanted[leaf], err_msg=leaf)
        trained.append({leaf: x for leaf, x in found.items() if leaf.startswith(TRAINED)})
        assert [row["step"] for row in rows(workdir / name) if row["split"] == "valid"] == [0, 2, 4]
    first, second, control = trained
    for leaf in first:
        assert (first[leaf] != second[leaf]).any(), leaf
        assert leaf not in wanted or (first[leaf] != wanted[leaf]).any(), leaf
    assert all((control[leaf] != wanted[leaf]).any() for leaf in control)
    assert {"loss", "nmse_layer_1"} <= set(result["phase_a"]["valid"])
    assert {"divergence", "cross_entropy", "boundary_layer_1"} <= set(result["phase_b"]["valid"])
    assert "bits_per_token" in result["control"]["valid"]
    losses = [row["loss"] for row in rows(workdir / "phase_a") if row["split"] == "valid"]
    assert losses[-1] < losses[0]
    noted = json.loads((workdir / "teacher.json").read_text())
    assert noted["step"] == 4 and noted["workdir"] == str(teacher)


def test_phase_b_starts_where_phase_a_ended(whole):
    """Its first row is of phase A's last parameters."""
    one, two = (rows(whole[0] / name) for name in ("phase_b", "control"))
    assert one[0]["step"] == two[0]["step"] == 0
    # The control starts as the teacher itself, from which the divergence is measured.
    assert one[0]["divergence"] > 0


@pytest.mark.parametrize("name", PHASES)
def test_a_phase_is_a_run(whole, name):
    found = evaluate_workdir(whole[0] / name)
    assert found["step"] == STEPS and np.isfinite(found["perplexity"])
    step, subject = load_subject(whole[0] / name, batch_size=2, chunk=32)
    assert step == STEPS and subject.tokenizer.vocab_size == 257
    mixer = subject.scorer.model.config.build_mixer(1, parent=None)
    assert getattr(mixer, "prior_var", SCALE) == SCALE


def up_to(name, whole, folder):
    """A copy of the whole in which a phase and those after it are still to be run."""
    workdir = shutil.copytree(whole[0], folder / "run")
    (workdir / "distill_result.json").unlink()
    for left in PHASES[PHASES.index(name) :]:
        shutil.rmtree(workdir / left)
    return workdir


@pytest.mark.parametrize("name", PHASES)
def test_stopped_in_every_phase_it_ends_where_the_whole_ended(teacher, whole, stop, tmp_path, name):
    config, workdir = make_config(teacher), up_to(name, whole, tmp_path)
    stop(name, 3, kill)
    with pytest.raises(Killed):
        distill(config, workdir)
    assert restored(workdir / name)[0] == 2
    stop(name, 0, terminate)
    assert distill(config, workdir) == {"phase": name, "step": 3, "stopped": "SIGTERM"}
    assert not (workdir / "distill_result.json").exists()
    stop(name, 99, kill)
    asked = list(PHASES[: PHASES.index(name) + 1])
    result = distill(config | {"phases": asked}, workdir)
    assert_same(workdir, whole, asked)
    assert result[name]["valid"] == whole[1][name]["valid"]
    assert set(result) == {"teacher", "layers", *asked}


def test_killed_before_the_first_checkpoint_there_is_one_first_row(teacher, whole, stop, tmp_path):
    stop("control", 1, kill)
    for _ in range(2):
        with pytest.raises(Killed):
            distill(make_config(teacher, phases=["control"]), tmp_path)
        assert [row["step"] for row in rows(tmp_path / "control")] == [0, 1]
    stop("control", 99, kill)
    distill(make_config(teacher, phases=["control"]), tmp_path)
    assert_same(tmp_path, whole, ["control"])


def test_a_finished_distillation_is_left_as_it_is(whole, teacher):
    before = contents(whole[0])
    for asked in (PHASES, ("control",)):
        assert distill(make_config(teacher, phases=list(asked)), whole[0]) == whole[1]
        assert contents(whole[0]) == before


def test_phases_may_be_asked_for_one_by_one(teacher, whole, tmp_path):
    workdir = up_to("phase_b", whole, tmp_path)
    for asked in ("control", "phase_b"):
        result = distill(make_config(teacher, phases=[asked]), workdir)
    assert list(result) == ["teacher", "layers", *PHASES]
    assert_same(workdir, whole)


def test_phase_b_alone_starts_from_the_first_student(teacher, whole, tmp_path):
    config = make_config(teacher, phases=["phase_b"])
    result = distill(config, tmp_path)
    assert set(result) == {"teacher", "layers", "phase_b"} and not (tmp_path / "phase_a").exists()
    first, later = rows(tmp_path / "phase_b")[0], rows(whole[0] / "phase_b")[0]
    assert first["step"] == 0 and first["boundary_layer_1"] > later["boundary_layer_1"]
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="found phase_a, wanted .*without a phase_a"):
        distill(make_config(teacher), tmp_path)
    assert contents(tmp_path) == before


def test_phase_b_waits_for_a_phase_a_that_has_begun(teacher, stop, tmp_path):
    stop("phase_a", 3, kill)
    with pytest.raises(Killed):
        distill(make_config(teacher, phases=["phase_a"]), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="found phase_b without phase_a, wanted both"):
        distill(make_config(teacher, phases=["phase_b"]), tmp_path)
    assert contents(tmp_path) == before


OTHERS = {
    "seed": ({"seed": 1}, "seed: 0 there, 1 asked"),
    "initial": ({"student": {"initial": "scratch"}}, "student.initial: 'close' there"),
    "layers": ({"student": {"layers": [0]}}, r"student\.layers: \[1\] there, \[0\] asked"),
    "unread": ({"unread": 1}, r"config: found unknown keys \['unread'\]"),
    "order": ({"phases": ["phase_b", "phase_a"]}, "config phases: found .*wanted the order"),
    "name": ({"phases": ["phase_c"]}, "config phases: found .*wanted some of"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_config_is_refused(whole, teacher, name):
    changes, words = OTHERS[name]
    before = contents(whole[0])
    config = make_config(teacher) | {k: v for k, v in changes.items() if not isinstance(v, dict)}
    for key, value in changes.items():
        config[key] = config[key] | value if isinstance(value, dict) else value
    # A phase that nothing was saved of makes no difference.
    for asked in ({}, {"phases": ["control"]} if "phases" not in changes else {}):
        with pytest.raises(ValueError, match=words):
            distill(config | asked, whole[0])
    assert contents(whole[0]) == before


def test_what_changes_nothing_may_differ(whole, teacher):
    train = make_config(teacher)["phase_a"]
    train["train"] |= {"log_every": 3, "keep_checkpoints": 1, "loss_tokens": 4}
    config = make_config(teacher, phase_a=train, student={"remat": True})
    assert distill(config, whole[0]) == whole[1]


def test_another_teacher_is_refused(whole, teacher, tmp_path):
    earlier, hidden = older(teacher, tmp_path), teacher.with_name("hidden")
    before = contents(whole[0])
    teacher.rename(hidden)
    try:
        earlier.rename(teacher)
        with pytest.raises(ValueError, match="teacher: found step 2 of .*wanted step 4, which"):
            distill(make_config(teacher), whole[0])
        with pytest.raises(ValueError, match=r"teacher: '.*' there, '.*hidden' asked"):
            distill(make_config(hidden), whole[0])
    finally:
        teacher.rename(tmp_path / "away")
        hidden.rename(teacher)
    assert contents(whole[0]) == before


def test_a_mistake_before_anything_was_saved_can_be_mended(teacher, tmp_path):
    workdir = tmp_path / "run"
    for changes, words in (
        ({"data": {"path": str(tmp_path / "nowhere")}}, "nowhere"),
        ({"data": {"unread": 1}}, "unread"),
    ):
        config = make_config(teacher, phases=["control"])
        config["data"] |= changes["data"]
        with pytest.raises((ValueError, OSError), match=words):
            distill(config, workdir)
    earlier = make_config(older(teacher, tmp_path), phases=["control"])
    earlier["data"]["unread"] = 1
    with pytest.raises(ValueError, match="unread"):
        distill(earlier, workdir)
    assert "control" in distill(make_config(teacher, phases=["control"]), workdir)
    assert json.loads((workdir / "teacher.json").read_text())["step"] == 4
