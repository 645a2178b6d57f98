#!/usr/bin/env bash
# Recall (MQAR) of every mixer over sizes and widths on one GPU, several programs at once, into the
# files that launch.report reads:
#   bash launch/recall_grid.sh
# Others: OUT, FORMS (of the task), SIZES, MIXERS, WIDTHS, FLAGS (of launch.sweep), PROCESSES (at
# once), RESULTS (folder: what its sweep_mqar_FORM_SIZE.json hold is not trained again, and what is
# done is written there; not over a file that holds more), PYTHON. Again: it continues. Mixers and
# widths of a size each have a process of their own in one workdir; one that fails does not stop the
# others. Without FLAGS it is the whole protocol, days of one GPU. What docs/results holds was run with
# RESULTS=docs/results FLAGS="--config.model.dtype=bfloat16 --config.sweep.seeds=(1,) \
#   --config.train.steps=2500"
set -uo pipefail
export OUT=${OUT:-runs/recall} PYTHON=${PYTHON:-python} FLAGS=${FLAGS:-}
export XLA_PYTHON_CLIENT_PREALLOCATE=${XLA_PYTHON_CLIENT_PREALLOCATE:-false}
results=${RESULTS:-$OUT/results}
mixers=${MIXERS:-bayesian bayesian/rotation bayesian/conv deltanet gated_deltanet \
  gated_deltanet/plain kda gla mamba2 linear_attention attention ramnet}

# sweep FORM SIZE FLAGS...: one sweep.
sweep() {
  local form=$1 size=$2
  shift 2
  # shellcheck disable=SC2086
  $PYTHON -m launch.sweep --config="configs/sweeps/mqar.py:$form,$size" \
    --workdir="$OUT/${form}_$size" $FLAGS "$@"
}
# Its part of one mixer at one width.
one() {
  sweep "$1" "$2" "--config.sweep.mixers=('$3',)" "--config.sweep.widths=($4,)" \
    >"$OUT/logs/$1_$2_${3/\//-}_$4.log" 2>&1 || { echo "failed: $*" >&2; return 1; }
  echo "done: $*"
}
export -f sweep one
# How many runs a file holds; 0 where there is none.
count() {
  [ -e "$1" ] || { echo 0; return; }
  "$PYTHON" -c 'import json, sys
print(sum(len(x["runs"]) for x in json.load(open(sys.argv[1]))["results"]))' "$1"
}
[ $# = 0 ] || { echo "error: found the argument $1, wanted none: see the top of $0" >&2; exit 1; }
sizes=${SIZES:-64x4 128x8 256x16 512x64} forms=${FORMS:-base update block}
mkdir -p "$OUT/logs" "$results" || exit
failed=0
# Whatever does not fit is known before anything is trained.
for size in $sizes; do
  for form in $forms; do
    file="$results/sweep_mqar_${form}_$size.json"
    [ -e "$file" ] && { sweep "$form" "$size" --collect --adopt="$file" >&2 || exit; }
  done
done
for size in $sizes; do
  for width in ${WIDTHS:-64 128 256}; do
    for mixer in $mixers; do
      for form in $forms; do echo "$form $size $mixer $width"; done
    done
  done | xargs -P "${PROCESSES:-2}" -L 1 bash -c 'one "$@"' _ || failed=1
  for form in $forms; do
    ours="$OUT/${form}_$size/sweep.json" file="$results/sweep_mqar_${form}_$size.json"
    sweep "$form" "$size" --collect || { failed=1; continue; }
    if [ "$(count "$ours")" -lt "$(count "$file")" ]; then
      echo "error: $file holds more runs than $ours and is left as it is" >&2
      failed=1
    else
      cp "$ours" "$file" || failed=1
    fi
  done
done
exit "$failed"
