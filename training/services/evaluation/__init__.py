"""Evaluation of a round's new policy against its parent, and the decision that follows from it."""
