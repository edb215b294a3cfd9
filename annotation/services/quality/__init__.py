"""Quality control: gold items and reviews."""
