"""The covariance-reset family: DeltaNet, Gated DeltaNet, KDA."""
