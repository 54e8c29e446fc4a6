"""What came out of experiments: gathered scores, statistics, tables, figures and one page."""
