"""Measures on held-out data.

scikit-learn has some of them (κ, average precision), but is no dependency, and these are a few lines of NumPy
each. Others take weights, ties, fractional counts or clusters of one prompt, which SciPy's functions do not.
"""
