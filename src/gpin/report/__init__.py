"""Figures, and the self-contained HTML page that shows them."""

from gpin.report.page import Finding, Page, Section, Table, Tile

__all__ = ["Finding", "Page", "Section", "Table", "Tile"]
