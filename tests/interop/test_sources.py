"""Where checkpoints come from, and what reading them needs."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

from bayesmem.interop import load_fla
from tests.interop.fixture_models import FOLDER

ROOT = Path(__file__).parents[2]


def hub(monkeypatch, download):
    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)


def test_a_model_of_the_hub_is_fetched(monkeypatch):
    asked = []

    def download(name, revision, allow_patterns):
        asked.append((name, revision))
        assert "*.safetensors" in allow_patterns and "config.json" in allow_patterns
        return str(FOLDER / "gla")

    hub(monkeypatch, download)
    assert load_fla("hf:fla-hub/gla-340M").config.mixers == ("gla",)
    load_fla("hf:fla-hub/gla-340M@v1")
    assert asked == [("fla-hub/gla-340M", None), ("fla-hub/gla-340M", "v1")]


def test_a_hub_that_cannot_be_used_says_so(monkeypatch):
    def unreachable(*args, **kwargs):
        raise RuntimeError("no route to host")

    hub(monkeypatch, unreachable)
    with pytest.raises(
        ValueError, match="hf:a/b from the Hugging Face hub: RuntimeError: no route"
    ):
        load_fla("hf:a/b")
    for spec in ("hf:gla", "hf:", "hf:a/b/c", "hf:a/b@"):
        with pytest.raises(ValueError, match="wanted hf:ORG/NAME"):
            load_fla(spec)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="pip install huggingface_hub"):
        load_fla("hf:a/b")


def test_reading_needs_neither_torch_nor_fla_nor_transformers():
    program = (
        "import sys\n"
        "for name in ('torch', 'fla', 'transformers'): sys.modules[name] = None\n"
        "from bayesmem.interop import load_fla\n"
        f"print(load_fla({str(FOLDER / 'mamba2')!r}).config.width)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "24"
