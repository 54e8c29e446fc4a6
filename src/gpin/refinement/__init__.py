"""Per-instance improvement of a posterior."""
