"""Figures of a run from its files only."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from bayesmem.plots.training import plot_training

ROWS = [
    {"step": 10, "split": "train", "loss": 3.0, "accuracy": 0.1},
    {"step": 10, "split": "valid", "loss": 3.1, "accuracy": 0.1},
    {"step": 20, "split": "train", "loss": None, "accuracy": 0.2},
]
TEXT = {
    "step": 20, "task": "text", "loss": 2.5, "bits_per_byte": 3.6,
    "by_position": [
        {"start": 0, "end": 16, "bits_per_byte": 4.0},
        {"start": 16, "end": 32, "bits_per_byte": 3.2},
    ],
}  # fmt: skip


def write(workdir, rows=ROWS, evaluation=None):
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if evaluation:
        (workdir / "evaluation.json").write_text(json.dumps(evaluation))


def text_of(path):
    """What an SVG says: Matplotlib puts each label in a comment beside its glyphs."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    tree = ElementTree.parse(path, parser)
    return [node.text.strip() for node in tree.iter() if node.tag is ElementTree.Comment]


def test_curves_without_an_evaluation(tmp_path):
    write(tmp_path)
    paths = plot_training(tmp_path)
    assert [path.name for path in paths] == [
        "loss.png", "loss.svg", "accuracy.png", "accuracy.svg",
    ]  # fmt: skip
    assert all(path.parent == tmp_path / "figures" and path.stat().st_size for path in paths)
    assert {"train", "valid", "loss (nats a target)", "step"} <= set(text_of(paths[1]))


def test_text_evaluation_adds_bits_by_position(tmp_path):
    write(tmp_path, evaluation=TEXT)
    paths = {path.name: path for path in plot_training(tmp_path)}
    found = set(text_of(paths["bits_by_position.svg"]))
    assert {"0-15", "16-31", "all tokens: 3.600"} <= found
    assert "test: 2.5" in text_of(paths["loss.svg"])


def test_recall_is_called_recall(tmp_path):
    write(tmp_path, evaluation={"step": 20, "task": "mqar", "accuracy": 0.995, "loss": 0.1})
    paths = {path.name: path for path in plot_training(tmp_path)}
    assert {"recall", "test: 0.995"} <= set(text_of(paths["accuracy.svg"]))


def test_same_files_give_the_same_figures(tmp_path):
    write(tmp_path, evaluation=TEXT)
    before = {path: path.read_bytes() for path in plot_training(tmp_path)}
    assert {path: path.read_bytes() for path in plot_training(tmp_path)} == before


def test_no_rows(tmp_path):
    with pytest.raises(FileNotFoundError, match="no metrics.jsonl"):
        plot_training(tmp_path)
    write(tmp_path, rows=[])
    with pytest.raises(ValueError, match="no rows"):
        plot_training(tmp_path)
