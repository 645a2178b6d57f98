"""bayesmem: sequence layers with an explicit, bounded memory.

The Bayesian Layer (arXiv 2605.31163) and the recurrences that are special cases of its
design-model framework, as pure functions (`bayesmem.ops`), Flax modules (`bayesmem.layers`,
`bayesmem.models`) and training loops (`bayesmem.train`). Importing the package touches no kernel.
"""

__version__ = "0.1.0"
