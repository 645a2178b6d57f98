"""Every variant of the distillation's config fits its teacher, and its phases are parsed."""

import jax
import jax.numpy as jnp
import pytest

from bayesmem.distill.replacement import make_pair
from bayesmem.distill.settings import DistillSettings
from bayesmem.models import LanguageModel, ModelConfig, parameter_counts
from configs import distill, lm, pretrain

# Variant to its teacher, layers of a turn, and parameters that are trained.
TEACHERS = {
    "small": (pretrain.get_config("small,gated_deltanet"), 4),
    "tiny": (lm.get_config("tiny,gated_deltanet"), 2),
    "gdn_340m": (pretrain.get_config("340m,gated_deltanet"), 6),
}


@pytest.mark.parametrize("name", distill.SIZES)
def test_variant_fits_its_teacher(name):
    config = distill.get_config(name)
    assert config.is_locked
    config.teacher = "runs/teacher"
    settings = DistillSettings.from_config(config)
    model, period = TEACHERS[name]
    layers = 4 if name == "tiny" else model.model.num_layers
    teacher = ModelConfig.from_dict(model.model.to_dict() | {"num_layers": layers})
    pair = make_pair(teacher, settings.student)
    assert pair.period == period and pair.layers == settings.student.layers
    steps = {key: run.train.steps for key, run in settings.runs.items()}
    assert steps["control"] == steps["phase_a"] + steps["phase_b"]
    counts = [
        parameter_counts(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 2), "int32")))
        for model in (LanguageModel(pair.teacher), LanguageModel(pair.student))
    ]
    added = counts[1]["total"] - counts[0]["total"]
    # r^2 and ell^2 with biases in place of beta, for every replaced layer and head.
    mixer = pair.teacher.build_mixer(pair.places[0], parent=None)
    assert added == len(pair.layers) * mixer.layout.value_heads * (teacher.width + 2)


def test_tokens_of_the_papers_run():
    settings = DistillSettings.from_config(
        distill.get_config("gdn_340m").to_dict() | {"teacher": "x"}
    )
    assert distill.get_config("gdn_340m").data.seq_len == 2_048
    millions = {
        name: run.train.steps * run.train.batch_size * 2_048 // 10**6
        for name, run in settings.runs.items()
    }
    assert millions == {"phase_a": 100, "phase_b": 300, "control": 400}


def test_default_variant_and_unknown_variant():
    assert distill.get_config() == distill.get_config("small")
    with pytest.raises(ValueError, match="banana.*small, tiny, gdn_340m"):
        distill.get_config("banana")
