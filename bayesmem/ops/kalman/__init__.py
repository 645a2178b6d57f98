"""The Bayesian Layer recurrence: an associative memory filtered by a Kalman recurrence."""
