"""People judge text. Knows no model, no trainer and no torch."""
