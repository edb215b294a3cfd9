"""Tables of a project's data: prompts, comparisons, annotations and responses."""
