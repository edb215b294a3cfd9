"""Tables of a project's data: prompts, comparisons, annotations and responses."""

from annotation.selectors.tables.data import TABLES
from annotation.selectors.tables.table import Table, View

__all__ = ["TABLES", "Table", "View"]
