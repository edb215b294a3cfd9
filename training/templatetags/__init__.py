"""Words and marks of the training pages."""
