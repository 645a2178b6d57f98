"""Distillation: some layers of a trained Gated DeltaNet replaced by Bayesian Layers.

python -m launch.distill --config=configs/distill.py:small --config.teacher=runs/teacher \
  --workdir=runs/distill

Variants: "small" (default), for a teacher of `configs/pretrain.py:small,gated_deltanet`, 8 layers;
"tiny", for one of `configs/lm.py:tiny,gated_deltanet` with `--config.model.num_layers=4`, minutes
on two CPU cores; and "gdn_340m", the run of arXiv 2605.31163, section 4.3: 24 layers, contexts of
2,048, 100M tokens for the layers alone, 300M for the whole, 400M for the control. Its teacher is a
checkpoint that `launch.convert` has read, its corpus `--config.data.path`. Learning rates, batch,
temperature and weights are our choice.
"""

from typing import NamedTuple

import ml_collections
from ml_collections import config_dict

from configs import common


class Size(NamedTuple):
    """What is replaced, and for how long each phase runs."""

    layers: tuple[int, ...]
    batch: int  # rows a step
    phase_a: int  # steps
    phase_b: int  # steps
    learning_rate: float  # of phase A; the other phases have a third of it


SIZES = {
    "small": Size((3, 7), 32, 250, 750, 1e-3),
    "tiny": Size((1, 3), 8, 100, 200, 2e-3),
    "gdn_340m": Size((5, 11, 17, 23), 64, 763, 2_289, 1e-3),
}
"""The first is the default."""


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The config of a variant, locked.

    Args:
        variant: One of `SIZES`; "" for the first.

    Returns:
        ConfigDict.

    Raises:
        ValueError: An unknown variant; lists those there are.
    """
    name = common.choose(variant, {"size": tuple(SIZES)})["size"]
    size = SIZES[name]
    base = common.base(common.text_data(), 0).unlock()
    config = ml_collections.ConfigDict()
    config.seed = 0  # of new parameters; the phases' rows have the orders of seed, +1 and +2
    config.teacher = ""  # workdir of a run of launch.train or launch.convert
    config.phases = ("phase_a", "phase_b", "control")  # those to run, in this order

    config.student = student = ml_collections.ConfigDict()
    student.layers = size.layers  # layers whose mixers are replaced
    student.initial = "close"  # from the teacher's parameters, near its delta rule; or "scratch"
    student.process_ratio = 1.0  # of a close start: ell^2 over what keeps the covariance level
    student.num_groups = 1  # observation-noise groups
    student.remat = config_dict.placeholder(bool)  # as `model.remat`; None: as the teacher

    config.data = data = ml_collections.ConfigDict()  # keys that are None are the teacher's
    data.path = config_dict.placeholder(str)
    data.text_key = config_dict.placeholder(str)
    data.tokenizer = config_dict.placeholder(str)  # the same in another place, if any
    data.seq_len = config_dict.placeholder(int)
    if name == "gdn_340m":
        data.seq_len = 2_048

    steps = {"phase_a": size.phase_a, "phase_b": size.phase_b}
    steps["control"] = sum(steps.values())  # the same tokens
    for phase, count in steps.items():
        config[phase] = own = ml_collections.ConfigDict()
        for part in ("optimizer", "train"):
            own[part] = base[part].copy_and_resolve_references()
        rate = size.learning_rate if phase == "phase_a" else size.learning_rate / 3
        own.optimizer.learning_rate = rate
        own.optimizer.warmup_steps = count // 20
        own.optimizer.weight_decay = 0.0
        own.train.steps, own.train.batch_size = count, size.batch
        own.train.eval_every = own.train.checkpoint_every = max(count // 5, 1)
        own.train.loss_tokens = 512 if name != "tiny" else 0
        own.train.grad_accumulation = 4 if name == "gdn_340m" else 1

    config.phase_b.loss = loss = ml_collections.ConfigDict()
    loss.temperature = 1.0  # of both distributions
    loss.kl_weight = 1.0  # of the divergence from the teacher's next token
    loss.boundary_weight = 1.0  # of the streams' difference after each replaced layer
    config.mesh = base.mesh
    return config.lock()
