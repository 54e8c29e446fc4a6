"""The page of one or several runs: their comparison, figures and text."""

from gpin.runs.report.page import write_report

__all__ = ["write_report"]
