"""Where a result comes from: device, versions and commit."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

import bayesmem

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


def provenance() -> dict[str, Any]:
    """Returns `device`, `versions`, and `commit`: None outside a checkout."""
    versions = {"bayesmem": bayesmem.__version__} | {name: version(name) for name in PACKAGES}
    device = jax.devices()[0].device_kind
    return {"device": device, "versions": versions, "commit": _commit()}


def _commit() -> str | None:
    """The commit of the sources that run, with "+" where tracked files differ from it."""
    folder = Path(__file__).resolve().parent
    try:
        if Path(_git(folder, "rev-parse", "--show-toplevel")) != folder.parents[1]:
            return None  # installed somewhere inside of another repository
        commit = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
