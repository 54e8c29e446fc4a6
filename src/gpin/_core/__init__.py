"""Internal helpers: errors, files, configs, input checks, seeds, threads, memory, and batches shared by processes."""
