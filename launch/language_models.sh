#!/usr/bin/env bash
# Trains language models of several mixers on one prepared text, all with the same tokens and the
# same peak rates to choose from, evaluates each at its best rate, and writes a comparison:
#   TOKENS=runs/tokens TOKENIZER=tokenizer.model DATA=data bash launch/language_models.sh
# TOKENS is what launch.prepare_data made with TOKENIZER, DATA the folder of the evaluation files.
# Others: OUT, SIZE (of configs/pretrain.py), MODELS (variants of it, separated by spaces), RATES,
# TASKS, GPUS (numbers; a model each at once), TRAIN (flags of launch.train), EVALUATE (of
# launch.evaluate), PYTHON. Again: it continues, and does nothing twice. The best rate is that of
# the lowest validation loss at the end; no task has a part in the choice.
set -euo pipefail
: "${TOKENS:?found none, wanted the folder of the tokens}"
: "${TOKENIZER:?found none, wanted the file of the tokenizer}" "${DATA:?found none, wanted a folder}"
export TOKENS TOKENIZER DATA TRAIN=${TRAIN:-} EVALUATE=${EVALUATE:-} SIZE=${SIZE:-small}
export OUT=${OUT:-runs/language_models} PYTHON=${PYTHON:-python} GPUS=${GPUS:-0}
export RATES=${RATES:-1e-3 2e-3 4e-3}
export TASKS=${TASKS:-ppl@2048,ppl@8192,s_niah@2048,s_niah@8192,recall}
models=${MODELS:-attention mamba2 gla gated_deltanet bayesian ramnet,top8 ramnet,top32}

# The workdir of a model that ended with the lowest validation loss.
best() {
  "$PYTHON" - "$OUT/$1"@*/train_result.json <<'END'
import json, pathlib, sys
paths = map(pathlib.Path, sys.argv[1:])
print(min(paths, key=lambda path: json.loads(path.read_text())["valid"]["loss"]).parent)
END
}

# Trains a model at every rate and evaluates the best, on one GPU.
one() {
  local model=$1 rate run gpus
  read -ra gpus <<<"$GPUS"
  export CUDA_VISIBLE_DEVICES=${gpus[${SLOT:-0}]}
  for rate in $RATES; do
    run="$OUT/$model@$rate"
    [ -e "$run/train_result.json" ] && continue
    # shellcheck disable=SC2086
    $PYTHON -m launch.train --config="configs/pretrain.py:$SIZE,$model" --workdir="$run" \
      --config.data.path="$TOKENS" --config.data.tokenizer="$TOKENIZER" \
      --config.optimizer.learning_rate="$rate" $TRAIN || return
  done
  # shellcheck disable=SC2086
  $PYTHON -m launch.evaluate --workdir="$(best "$model")" --data_dir="$DATA" --tasks="$TASKS" $EVALUATE
}

export -f best one
# One model that fails does not stop the others.
failed=0
printf '%s\n' $models |
  xargs -P "$(wc -w <<<"$GPUS")" --process-slot-var=SLOT -I{} bash -c 'one "$1"' _ {} || failed=$?
runs=()
for model in $models; do
  if ls "$OUT/$model"@*/train_result.json >/dev/null 2>&1; then
    runs+=("--run=$model=$(best "$model")")
  fi
done
$PYTHON -m launch.compare --overwrite --output="$OUT/comparison.json" "${runs[@]}"
exit "$failed"
