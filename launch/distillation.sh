#!/usr/bin/env bash
# Distils a small Gated DeltaNet trained on a prepared text, end to end, and writes a comparison:
#   TOKENS=runs/tokens TOKENIZER=tokenizer.model DATA=data bash launch/distillation.sh
# TOKENS is what launch.prepare_data made with TOKENIZER, DATA the folder of the evaluation files.
# Others: TEACHER (workdir of a trained one), OUT, SIZE and DISTILL (variants of configs/pretrain.py
# and configs/distill.py), TASKS, EVALUATE (flags), TRAIN (flags of the teacher's training), FLAGS
# (of launch.distill), PYTHON. Again: it continues, and does nothing twice. SIZE and DISTILL are for a
# GPU; DATA has lm/wikitext2/test.txt and haystack/federalist.txt, or TASKS names its files.
set -euo pipefail
: "${TOKENS:?found none, wanted the folder of the tokens}"
: "${TOKENIZER:?found none, wanted the file of the tokenizer}" "${DATA:?found none, wanted a folder}"
out=${OUT:-runs/distillation} python=${PYTHON:-python}
teacher=${TEACHER:-$out/teacher}
tasks=${TASKS:-ppl@512,ppl@1024,ppl@2048,ppl@4096,ppl@8192,niah@2048,niah@4096,niah@8192}

if [ -z "${TEACHER:-}" ]; then
  # shellcheck disable=SC2086
  $python -m launch.train --config="configs/pretrain.py:${SIZE:-small},gated_deltanet" \
    --workdir="$teacher" --config.data.path="$TOKENS" --config.data.tokenizer="$TOKENIZER" ${TRAIN:-}
fi
# shellcheck disable=SC2086
$python -m launch.distill --config="configs/distill.py:${DISTILL:-small}" --workdir="$out/student" \
  --config.teacher="$teacher" ${FLAGS:-}
# For its speed alone: the student's own next token, without a teacher, 60 steps from scratch.
if ! [ -e "$out/plain/train_result.json" ]; then
  $python -m launch.train --config="configs/of_run.py:$out/student/phase_b" --workdir="$out/plain" \
    --config.train.steps=60 --config.optimizer.warmup_steps=10 --config.train.eval_every=0
fi
for run in "$teacher" "$out/student/phase_a" "$out/student/phase_b" "$out/student/control"; do
  # shellcheck disable=SC2086
  $python -m launch.evaluate --workdir="$run" --data_dir="$DATA" --tasks="$tasks" ${EVALUATE:-}
done
$python -m launch.compare --overwrite --baseline=teacher --output="$out/comparison.json" \
  --run=teacher="$teacher" --run=phase_a="$out/student/phase_a" \
  --run=student="$out/student/phase_b" --run=control="$out/student/control" --run=plain="$out/plain"
