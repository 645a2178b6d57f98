"""A small teacher on disk, a config for it, and what the workdirs of its students hold."""

import json
import shutil
from typing import Any

import jax
import numpy as np

from bayesmem.distill.replacement import in_turns
from bayesmem.models import LanguageModel, ModelConfig
from bayesmem.train.checkpoint import restore_params
from bayesmem.train.loop import train
from bayesmem.train.parts import build_model
from bayesmem.train.settings import MeshSettings
from bayesmem.train.sharding import make_mesh
from bayesmem.train.step import abstract_params
from bayesmem.train.workdir import as_json, read_config
from configs import common, distill
from tests.distill.cases import flat

STEPS = 4
PHASES = ("phase_a", "phase_b", "control")


def make_teacher(folder, **model) -> Any:
    """Trains a teacher of two layers on a few hundred bytes; returns its workdir."""
    text = folder / "text.txt"
    text.write_text("memory filter state gain " * 60)
    config = common.base(common.text_data(), 257)
    common.use_mixers(config, "deltanet", num_heads=2)
    config.model.mixer_options.deltanet.update({"chunk_size": 8, "conv_size": 0})
    config.model.update({"width": 8, "num_layers": 2, "mlp_width": 8} | model)
    config.data.path, config.data.seq_len = str(text), 16
    config.optimizer.warmup_steps = 0
    config.train.update({"steps": 4, "batch_size": 4, "checkpoint_every": 2, "eval_batches": 1})
    train(config, folder / "teacher")
    return folder / "teacher"


def make_config(teacher, **changes) -> dict[str, Any]:
    """A config for it; changes are sections or keys, of which dicts are merged."""
    config = distill.get_config("tiny").unlock()
    config.teacher, config.student.layers = str(teacher), (1,)
    for phase in PHASES:
        own = config[phase]
        own.optimizer.update({"warmup_steps": 0, "learning_rate": 1e-2})
        own.train.update({"steps": STEPS, "batch_size": 4, "log_every": 1, "eval_batches": 1})
        own.train.update({"eval_every": 2, "checkpoint_every": 2, "keep_checkpoints": 0})
    found = as_json(config)
    for key, value in changes.items():
        found[key] = found[key] | value if isinstance(value, dict) else value
    return found


def older(teacher, folder):
    """A copy of a teacher's workdir, at an earlier step."""
    copy = folder / "older"
    shutil.copytree(teacher, copy)
    shutil.rmtree(copy / "checkpoints" / "step_00000004")
    return copy


def restored(workdir) -> tuple[int, dict[str, Any]]:
    """Step and parameters of the newest checkpoint of a run, by name."""
    model, mesh = build_model(read_config(workdir)), make_mesh(MeshSettings())
    step, params = restore_params(workdir / "checkpoints", abstract_params(model, mesh))
    return step, {name: np.asarray(leaf) for name, leaf in flat(params).items()}


def teacher_in_turns(teacher, period=2) -> dict[str, Any]:
    """The teacher's parameters by their names in the student."""
    config = ModelConfig.from_dict(read_config(teacher)["model"])
    target = abstract_params(LanguageModel(config), make_mesh(MeshSettings()))
    params = restore_params(teacher / "checkpoints", target)[1]
    return flat(jax.tree.map(np.asarray, in_turns(config, params, period)))


def rows(workdir) -> list[dict[str, Any]]:
    """Rows of a run, without times."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    kept = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in kept]


def contents(workdir) -> dict[str, bytes]:
    """Every file of a folder."""
    files = (path for path in workdir.rglob("*") if path.is_file())
    return {path.relative_to(workdir).as_posix(): path.read_bytes() for path in files}
