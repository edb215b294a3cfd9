"""Text: rendering, source positions, formulas, edits. Knows no database."""
