"""Sequence layers: Flax modules with one interface, `y, state = layer(x, state, ...)`."""

from bayesmem.layers.attention import Attention, KVCache
from bayesmem.layers.bayesian import BayesianLayer
from bayesmem.layers.deltanet import DeltaNet
from bayesmem.layers.gated_deltanet import GatedDeltaNet
from bayesmem.layers.gla import GLA
from bayesmem.layers.gsa import GSA
from bayesmem.layers.interface import Mixer, MixerState
from bayesmem.layers.kda import KDA
from bayesmem.layers.linear_attention import LinearAttention
from bayesmem.layers.mamba2 import Mamba2
from bayesmem.layers.norm import RMSNorm
from bayesmem.layers.options import HeadLayout, MixerOptions
from bayesmem.layers.ramnet import RamNet
from bayesmem.layers.registry import MIXERS, build_mixer, mixer_defaults
from bayesmem.layers.retnet import RetNet
from bayesmem.layers.short_convolution import ShortConvolution
from bayesmem.layers.swiglu import SwiGLU

__all__ = [
    "GLA",
    "GSA",
    "KDA",
    "MIXERS",
    "Attention",
    "BayesianLayer",
    "DeltaNet",
    "GatedDeltaNet",
    "HeadLayout",
    "KVCache",
    "LinearAttention",
    "Mamba2",
    "Mixer",
    "MixerOptions",
    "MixerState",
    "RMSNorm",
    "RamNet",
    "RetNet",
    "ShortConvolution",
    "SwiGLU",
    "build_mixer",
    "mixer_defaults",
]
