"""Evaluation of a model and its inference: log-likelihoods with diagnostics, and exact posteriors on a grid."""
