"""Recipe: sampling, training, evaluation and decision of a round in one dataclass, checked when built."""
