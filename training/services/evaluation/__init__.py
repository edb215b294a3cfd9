"""Evaluations of a round's new policy: the comparison with its parent, and the decision on it."""
