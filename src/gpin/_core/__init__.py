"""Plumbing: errors, files, configs, checked inputs, seeds, threads, memory and batches shared by processes."""
