"""The axis legend, and the array aliases used in every public signature.

Legend (sequence-first everywhere):
    B  batch                      T  time (tokens)
    H  heads                      D  key dimension of a head
    M  value dimension of a head  G  noise groups (M splits into G equal parts)
    S  memory slots               K  addressed slots
    U  digits of a slot's address
    W  model width                V  vocabulary
    N  chunks                     L  tokens in a chunk (kernel and chunk-form internals)
"""

from jaxtyping import Array, Bool, Float, Int

Keys = Float[Array, "B T H D"]
"""Keys or queries of every head."""
Values = Float[Array, "B T H M"]
"""Values of every head, and what an op reads out."""
HeadScalars = Float[Array, "B T H"]
"""One number for each head and token."""
HeadVectors = Float[Array, "B T H D"]
"""One number for each head, token and key dimension."""
GroupScalars = Float[Array, "B T H G"]
"""One number for each head, token and noise group."""
PairAngles = Float[Array, "B T H D//2"]
"""Radians for each head, token and (real, imaginary) pair of key dimensions."""
SegmentIds = Int[Array, "B T"]
"""Document number of each token; a negative number marks padding."""
StepMask = Bool[Array, "B T"]
"""One truth value for each token."""
Positions = Int[Array, "B T"]
"""0-based position of each token in its document."""
RowCounts = Int[Array, "B"]
"""One count for each row of the batch."""
Memory = Float[Array, "B H D M"]
"""Associative memory of every head: key dimension to value dimension."""
Covariance = Float[Array, "B H G D D"]
"""Key-space covariance of every head and noise group."""
DigitLogits = Float[Array, "B T H U*base"]
"""Scores of every value of every digit of a slot's address."""
SlotIds = Int[Array, "B T H K"]
"""Numbers of the addressed slots."""
SlotWeights = Float[Array, "B T H K"]
"""Weights of the addressed slots."""
SlotContent = Float[Array, "B H S M"]
"""Values that the slots of every head hold."""
SlotMass = Float[Array, "B H S"]
"""Weight that stands behind the content of every slot."""
Hidden = Float[Array, "B T W"]
"""Activations of the residual stream."""
Addresses = Float[Array, "B T D"]
"""A key of unit length for each token, which every head writes and reads at."""
Tokens = Int[Array, "B T"]
"""Token ids."""
Logits = Float[Array, "B T V"]
"""Unnormalised log probabilities over the vocabulary."""
