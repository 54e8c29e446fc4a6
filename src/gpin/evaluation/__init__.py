"""How good a model and its inference are: log-likelihood estimates with diagnostics, and exact posteriors on a grid."""
