"""Checkpoints of other projects, in and out: those of flash-linear-attention.

    config, params, origin = load_fla("FOLDER or hf:ORG/NAME")
    save_fla("NEW_FOLDER", config, params, origin)

`pieces.py` is the conversion, a table that is read in both directions; a file for each model type
makes its table and reads its config.json.
"""

from bayesmem.interop.checkpoint import Imported, load_fla, save_fla
from bayesmem.interop.origin import Origin

__all__ = ["Imported", "Origin", "load_fla", "save_fla"]
