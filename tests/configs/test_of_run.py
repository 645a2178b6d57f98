"""The config of an earlier run: the same again, changed, and errors."""

import pytest

from bayesmem.train.parts import build_model
from bayesmem.train.settings import Settings
from bayesmem.train.workdir import as_json, claim_workdir
from configs import lm, mqar, of_run


@pytest.mark.parametrize("config", [lm.get_config(), mqar.get_config("gla,block")])
def test_it_is_the_config_of_the_run(tmp_path, config):
    claim_workdir(tmp_path / "run", config)
    again = of_run.get_config(str(tmp_path / "run"))
    assert again.is_locked and as_json(again) == as_json(config)
    claim_workdir(tmp_path / "run", again)
    assert Settings.from_config(again) == Settings.from_config(config)
    assert build_model(again) == build_model(config)
    again.train.steps, again.optimizer.warmup_steps = 7, 0
    assert Settings.from_config(again).train.steps == 7


@pytest.mark.parametrize("content", [None, "{", "3"])
def test_what_is_no_run_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"variant: found no .*config\.json"):
        of_run.get_config(str(tmp_path))
    with pytest.raises(ValueError, match=r"wanted configs/of_run\.py:WORKDIR"):
        of_run.get_config()
