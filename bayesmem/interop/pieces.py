"""The table of pieces: what of a tensor is what of a leaf, read in both directions.

A checkpoint of another project holds the numbers of our leaves under other names, transposed, cut
into parts or joined. A `Piece` states one such correspondence; the list of all pieces of a model
is its conversion, for reading (`fill_leaves`) and for writing (`make_tensors`) alike.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


class Piece(NamedTuple):
    """Rows of a tensor that are columns of a leaf.

    Attributes:
      tensor: the tensor's name.
      rows: first and behind the last index of its axis 0.
      leaf: our parameter's path, its names joined by "/".
      columns: first and behind the last index of the leaf's last axis; of a leaf of kind "same", of
        its first axis.
      kind: "linear": tensor [out, in], leaf [in, out]; "conv": tensor [C, 1, taps], leaf [taps, C];
        "same": a vector [C] or a table [V, W], as it is.
    """

    tensor: str
    rows: tuple[int, int]
    leaf: str
    columns: tuple[int, int]
    kind: str


def piece(
    tensor: str, leaf: str, size: int, kind: str = "linear", *, row: int = 0, column: int = 0
) -> Piece:
    """Returns the piece of `size` rows from `row` on, which are the columns from `column` on."""
    return Piece(tensor, (row, row + size), leaf, (column, column + size), kind)


def tensor_shapes(pieces: Sequence[Piece], leaves: Shapes) -> dict[str, Shape]:
    """Returns the shape of every tensor, after a check that the pieces leave nothing out.

    Args:
      pieces: of a model.
      leaves: shapes of all of its leaves.

    Raises:
      ValueError: a leaf, or an index of one or of a tensor, is in no piece or in two.
    """
    rows = {p.tensor: 0 for p in pieces}
    shapes: dict[str, Shape] = {}
    for p in pieces:
        rows[p.tensor] = max(rows[p.tensor], p.rows[1])
    for p in pieces:
        shape = leaves.get(p.leaf, ())
        kept = {"linear": shape[:-1], "conv": (1, *shape[:-1]), "same": shape[1:]}[p.kind]
        shapes.setdefault(p.tensor, (rows[p.tensor], *kept))
    _require_cover("tensor", [(p.tensor, p.rows) for p in pieces], rows)
    axis = {p.leaf: 0 if p.kind == "same" else -1 for p in pieces}
    sizes = {name: shape[axis.get(name, -1)] for name, shape in leaves.items()}
    _require_cover("leaf", [(p.leaf, p.columns) for p in pieces], sizes)
    return shapes


def fill_leaves(
    pieces: Sequence[Piece], leaves: Shapes, tensors: Iterable[tuple[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Returns the leaves, float32, of tensors that come one by one.

    Args:
      pieces: of a model; all of its tensors come.
      leaves: shapes of its leaves.
      tensors: names and arrays of the shapes of `tensor_shapes`; a name in no piece is passed over.
    """
    of_tensor = _by([p.tensor for p in pieces], pieces)
    filled = {name: np.empty(shape, np.float32) for name, shape in leaves.items()}
    for name, tensor in tensors:
        for p in of_tensor.get(name, ()):
            _columns(filled[p.leaf], p)[...] = _turned(tensor[slice(*p.rows)], p.kind)
    return filled


def make_tensors(
    pieces: Sequence[Piece], leaves: Mapping[str, np.ndarray], names: Iterable[str]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors of those names from the leaves: the inverse of `fill_leaves`."""
    of_tensor = _by([p.tensor for p in pieces], pieces)
    for name in names:
        parts = sorted(of_tensor[name], key=lambda p: p.rows)
        arrays = [_turned_back(_columns(leaves[p.leaf], p), p.kind) for p in parts]
        yield name, np.ascontiguousarray(np.concatenate(arrays, axis=0))


def _columns(leaf: np.ndarray, p: Piece) -> np.ndarray:
    """The part of a leaf that a piece is about, as a view."""
    return leaf[slice(*p.columns)] if p.kind == "same" else leaf[..., slice(*p.columns)]


def _turned(rows: np.ndarray, kind: str) -> np.ndarray:
    return {"linear": rows.T, "conv": rows.T[:, 0] if rows.ndim == 3 else rows, "same": rows}[kind]


def _turned_back(columns: np.ndarray, kind: str) -> np.ndarray:
    return {"linear": columns.T, "conv": columns.T[:, None], "same": columns}[kind]


def _by(keys: Sequence[str], pieces: Sequence[Piece]) -> dict[str, list[Piece]]:
    found: dict[str, list[Piece]] = {key: [] for key in keys}
    for key, p in zip(keys, pieces, strict=True):
        found[key].append(p)
    return found


def _require_cover(
    what: str, parts: Sequence[tuple[str, tuple[int, int]]], sizes: Mapping[str, int]
) -> None:
    """Raises ValueError unless the parts of every name go from 0 to its size, without a gap."""
    ranges: dict[str, list[tuple[int, int]]] = {name: [] for name in sizes}
    for name, part in parts:
        ranges.setdefault(name, []).append(part)
    for name in sorted(ranges):
        own = sorted(ranges[name])
        bounds = [0, *(end for _, end in own)]
        if [start for start, _ in own] != bounds[:-1] or bounds[-1] != sizes.get(name):
            raise ValueError(
                f"pieces: found {own} of the {what} {name}, wanted each index below "
                f"{sizes.get(name, 0)} in one of them"
            )
