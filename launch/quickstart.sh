#!/usr/bin/env bash
# Installs bayesmem into .venv (PYTHON=... picks its Python), then trains a small language model,
# evaluates it and draws figures: `bash launch/quickstart.sh [WORKDIR]`. Again: it continues.
set -euo pipefail
case "${1:-}" in "") workdir=runs/quickstart ;; /*) workdir=$1 ;; *) workdir=$PWD/$1 ;; esac
cd "$(dirname "$0")/.."
if ! [ -x .venv/bin/pip ]; then
  "${PYTHON:=python3}" -c 'import sys; sys.version_info >= (3, 11) or sys.exit("error: found Python "
    + sys.version.split()[0] + ", wanted 3.11 or newer: PYTHON=python3.12 bash launch/quickstart.sh")'
  "$PYTHON" -m venv .venv
fi
.venv/bin/python -m pip install -q -e .
.venv/bin/python -m launch.train --config=configs/lm.py --workdir="$workdir"
.venv/bin/python -m launch.evaluate --workdir="$workdir" --max_batches=100
.venv/bin/python -m launch.plot --workdir="$workdir"
