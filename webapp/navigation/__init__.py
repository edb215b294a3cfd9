"""Finding one's way: the sections of a project, and the search over everything."""
