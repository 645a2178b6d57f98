"""Runs the phases of a distillation, one after the other; `distill` reads top to bottom.

Files, in its workdir:
  config.json          the config it was started with
  teacher.json         which teacher that was: workdir, step, a digest of its parameters
  phase_a/, phase_b/   workdirs of the student, as of any training run
  control/             the same of the teacher, trained on in the layers that the student replaces
  distill_result.json  the last rows of every phase that is done, written when all asked for are

The same command continues it after a signal, a kill or a crash, where it was. Phases may be asked
for one by one, in their order.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bayesmem.distill.initial import keep_init, make_init
from bayesmem.distill.objectives import joint_objective, layer_objective
from bayesmem.distill.progress import (
    SAVED,
    check_order,
    check_teacher,
    finished,
    noted_step,
)
from bayesmem.distill.replacement import Pair, in_turns, make_pair
from bayesmem.distill.settings import PHASES, DistillSettings
from bayesmem.distill.teacher import Teacher, load_teacher
from bayesmem.models import LanguageModel, ModelConfig
from bayesmem.models.state_file import describe_model
from bayesmem.train.checkpoint import restore_params
from bayesmem.train.loop import Program, evaluate, run_steps
from bayesmem.train.objective import Objective, Scoring, next_token
from bayesmem.train.optimizer import make_optimizer, make_schedule
from bayesmem.train.parts import build_parts
from bayesmem.train.records import write_json
from bayesmem.train.settings import Settings
from bayesmem.train.sharding import check_batch_size, make_mesh
from bayesmem.train.sole_use import sole_use
from bayesmem.train.step import abstract_params, make_eval_step, make_train_step, start_state
from bayesmem.train.trained_part import mask_table
from bayesmem.train.workdir import (
    CHECKPOINTS,
    RESULTS,
    as_json,
    claim_workdir,
)

logger = logging.getLogger(__name__)

PyTree = Any
DISTILL_RESULT = "distill_result.json"


class Phase(NamedTuple):
    """One phase.

    Attributes:
      model: configuration of what is trained.
      objective: what it descends.
      init: (key, given parameters) -> its first parameters, boxed.
      start: makes the given parameters, when they are needed.
      given: what the objective reads besides.
    """

    model: ModelConfig
    objective: Objective
    init: Callable[[jax.Array, PyTree], PyTree]
    start: Callable[[], PyTree]
    given: PyTree


def distill(config: Mapping[str, Any], workdir: str | Path) -> dict[str, Any]:
    """Distils, or continues in `workdir`.

    Args:
      config: as `configs/distill.py` makes it.
      workdir: the directory of all phases.

    Returns:
      The content of distill_result.json; or, stopped by a signal, that of the phase.

    Raises:
      ValueError: a bad config, a teacher that does not fit or has changed, or a workdir of another
        distillation.
      FileNotFoundError: the teacher's workdir has no run or no usable checkpoint.
      BlockingIOError: another process distils in the workdir.
      NotADirectoryError: the workdir is a file.
    """
    settings, workdir = DistillSettings.from_config(config), Path(workdir)
    mesh = make_mesh(settings.runs["phase_a"].mesh)
    for own in settings.runs.values():
        check_batch_size(own.train.batch_size, own.train.grad_accumulation, mesh)
    own_folder = Path(settings.teacher).resolve()
    if own_folder in (workdir.resolve(), *workdir.resolve().parents):
        raise ValueError(
            f"workdir: found {workdir} in the teacher's folder; wanted one outside of it"
        )
    teacher = load_teacher(settings, config, noted_step(workdir))
    pair = make_pair(teacher.model.config, settings.student)
    with sole_use(workdir):
        return _run_phases(pair, settings, teacher, workdir, config)


def _run_phases(
    pair: Pair,
    settings: DistillSettings,
    teacher: Teacher,
    workdir: Path,
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """Runs what is left of all phases; see `distill`."""
    claim_workdir(workdir, config, holds=(*SAVED, CHECKPOINTS, RESULTS))
    check_order(workdir, settings.phases)
    # By all processes: each may have a part of the arrays.
    digest = describe_model(teacher.model, teacher.params)["parameters"]
    check_teacher(workdir, settings.teacher, teacher.step, digest)
    params = in_turns(teacher.model.config, teacher.params, pair.period)
    logger.info("text of all phases: %s", teacher.config["data"]["path"] or "Python's own sources")
    logger.info(
        "layers %s are replaced; trained of the student, where block_N of layers is place N of "
        "each turn of %d layers:\n%s", pair.layers, pair.period, _mask(pair),
    )  # fmt: skip
    results: dict[str, Any] = {}
    for name in PHASES:
        if name not in settings.phases:
            results |= {name: done} if (done := finished(workdir / name)) else {}
            continue
        phase = make_phase(name, pair, settings, teacher, params, workdir)
        section = phase_config(name, phase.model, settings, teacher, config)
        logger.info("%s, in %s", name, workdir / name)
        result = run_phase(phase, pair, settings.runs[name], workdir / name, section)
        if "stopped" in result:
            return {"phase": name} | result
        if result["valid"]["loss"] is None:
            raise ValueError(
                f"{name}: found a loss at its end that is not finite, after "
                f"{result['train']['skipped']} skipped steps; wanted a finite one: use another "
                f"--workdir, with another config {name}.optimizer.learning_rate"
            )
        results[name] = result
    result = {"teacher": settings.teacher, "layers": list(pair.layers), **results}
    if jax.process_index() == 0:
        write_json(workdir / DISTILL_RESULT, result)
    return result


def make_phase(
    name: str,
    pair: Pair,
    settings: DistillSettings,
    teacher: Teacher,
    params: PyTree,
    workdir: Path,
) -> Phase:
    """Says what a phase is.

    Args:
      name: of the phase.
      pair: teacher and student.
      settings: the whole config.
      teacher: the teacher.
      params: its parameters in turns.
      workdir: of all phases; phase B goes on from phase A where that is run, or has been.
    """
    options = settings.runs[name].train
    scoring = Scoring(options.loss_tokens, options.z_loss)
    if name == "control":
        model = LanguageModel(pair.teacher)
        objective = next_token(model, scoring)
        return Phase(pair.teacher, objective, keep_init(model), lambda: params, ())
    blocks = params["layers"]
    given = {f"block_{place}": blocks[f"block_{place}"]["mixer"] for place in pair.places}
    init = make_init(pair, settings.student)
    if name == "phase_a":
        return Phase(pair.student, layer_objective(pair), init, lambda: params, given)
    objective = joint_objective(
        pair, settings.joint, vocab_size=teacher.vocab_size, tokens=options.loss_tokens
    )
    if "phase_a" not in settings.phases and finished(workdir / "phase_a") is None:
        return Phase(pair.student, objective, init, lambda: params, given)
    student = LanguageModel(pair.student)

    def start() -> PyTree:
        target = abstract_params(student, make_mesh(settings.runs[name].mesh))
        return restore_params(workdir / "phase_a" / CHECKPOINTS, target)[1]

    return Phase(pair.student, objective, keep_init(student), start, given)


def phase_config(
    name: str,
    model: ModelConfig,
    settings: DistillSettings,
    teacher: Teacher,
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """The config of a phase's workdir, such as `launch.train` would have written."""
    section = {key: config[name][key] for key in ("optimizer", "train")}
    own = {"seed": settings.runs[name].seed, "mesh": config["mesh"], **section}
    return as_json(own | {"model": model_section(model), "data": teacher.config["data"]})


def model_section(model: ModelConfig) -> dict[str, Any]:
    """The `model` section of a config that a model is built from."""
    fields = {name: getattr(model, name) for name in type(model).__dataclass_fields__}
    fields["mixer_options"] = {name: dict(x) for name, x in model.mixer_options.items()}
    return fields


def run_phase(
    phase: Phase, pair: Pair, settings: Settings, workdir: Path, config: dict[str, Any]
) -> dict[str, Any]:
    """Runs what is left of a phase; returns as `bayesmem.train.loop.train`."""
    if (done := finished(workdir)) is not None:
        return done
    options, mesh = settings.train, make_mesh(settings.mesh)
    parts = build_parts(config, settings)
    claim_workdir(workdir, config)
    schedule = make_schedule(settings.optimizer, options.steps)
    optimizer = make_optimizer(settings.optimizer, options.steps)
    state, shardings = start_state(
        phase.init, optimizer, settings.seed, mesh, trains=pair.trains, given=phase.start()
    )
    step = make_train_step(
        phase.objective,
        optimizer,
        schedule,
        shardings,
        grad_accumulation=options.grad_accumulation,
        trains=pair.trains,
    )
    measure = make_eval_step(phase.objective)

    def evaluation(params: PyTree) -> dict[str, float]:
        of_batch = functools.partial(measure, params, given=phase.given)
        return evaluate(phase.objective, of_batch, parts.eval_batches, mesh)

    program = Program(
        state, functools.partial(step, given=phase.given), evaluation, evaluates_first=True
    )
    return run_steps(program, parts.loader, settings, workdir, config)


def _mask(pair: Pair) -> str:
    model = LanguageModel(pair.student)
    tokens = jax.ShapeDtypeStruct((1, 2), "int32")
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    return mask_table(params, pair.trains)
