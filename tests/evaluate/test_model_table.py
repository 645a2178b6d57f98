"""The results page's section on language models' speed."""

import copy
import json

import pytest

from bayesmem.evaluate.model_table import model_section
from bayesmem.evaluate.results_page import read_files, results_page


def row(model, implementation, mode, batch, tokens, **found):
    names = ("model", "implementation", "mode", "batch", "tokens")
    own = dict(zip(names, (model, implementation, mode, batch, tokens), strict=True))
    return own | {"parameters": 12_300_000} | found


def speed(rate, memory=1_500.0):
    return {"ms": 1.0, "tokens_per_s": rate, "peak_mb": memory}


FOUND = {
    "size": "340m",
    "device": "some device",
    "versions": {"jax": "1.2.3"},
    "commit": "0123456789abcdef",
    "rows": [
        row("gla", "bayesmem", "train", 8, 4096, **speed(50_000.0)),
        row("gla", "bayesmem", "decode", 1, 32_768, **speed(300.0)),
        row("gla", "fla", "train", 8, 4096, **speed(40_000.0), note="it may be wrong"),
        row("gla", "fla", "decode", 1, 32_768, error="out of memory"),
        row("attention", "bayesmem", "train", 8, 4096, **speed(60_000.0)),
        row("attention", "fla", "train", None, None, error="flash_attn is not installed"),
    ],
}


def test_rates_stand_beside_the_peers_and_what_failed_is_said():
    text = model_section({"bench_model_x.json": FOUND}, "results")
    assert "### [bench_model_x.json](results/bench_model_x.json)" in text
    assert "Size `340m`, on some device; jax 1.2.3; commit 0123456789." in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert table[0] == (
        "| model | implementation | parameters | train 8 x 4,096 | decode 1 x 32,768 |"
    )
    assert table[2:] == [
        "| `gla` | bayesmem | 12M | 50,000 (1.25x, 1,500 MB) | 300 (1,500 MB) |",
        "| `gla` | fla | 12M | 40,000 (1,500 MB) | out of memory |",
        "| `attention` | bayesmem | 12M | 60,000 (1,500 MB) | - |",
        "| `attention` | fla | - | flash_attn is not installed | - |",
    ]
    assert "|\n\n`gla`, fla, train: it may be wrong.\n" in text


def test_the_page_has_the_section_and_names_a_file_that_is_none(tmp_path):
    path = tmp_path / "bench_model_x.json"
    path.write_text(json.dumps(FOUND))
    page = results_page(read_files(tmp_path), lambda path: path.name, {}, lambda file, variant: {})
    assert "6 timings of size 340m | some device | 0123456789 |" in page
    assert "## Speed of language models" in page
    less = copy.deepcopy(FOUND)
    del less["rows"][0]["model"]
    path.write_text(json.dumps(less))
    with pytest.raises(
        ValueError, match="bench_model_x.json: found no results of launch.bench_mod"
    ):
        read_files(tmp_path)
