"""The analysis of experiments: results read from the store, statistics, tables, figures and one page."""
