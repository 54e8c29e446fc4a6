"""Running experiments: jobs, the store of their results, leases, workers and executors."""
