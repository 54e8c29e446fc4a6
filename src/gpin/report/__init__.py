"""Figures, and the self-contained HTML page that shows them."""

from gpin.report.page import Page, Section, Table, Tile

__all__ = ["Page", "Section", "Table", "Tile"]
