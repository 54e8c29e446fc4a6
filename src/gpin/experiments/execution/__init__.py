"""The execution of experiments: jobs, the store of their results, leases, workers, executors, cost and timing."""
