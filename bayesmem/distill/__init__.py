"""Distillation: layers of a trained model replaced by Bayesian Layers (arXiv 2605.31163, 4.3, G).

`replacement` makes the student of a teacher, `initial` its first parameters, `streams` runs both
through the layers that they share, `objectives` says what each phase descends, and `phases` runs
them one after the other. Each phase is a workdir like that of any training run.
"""
