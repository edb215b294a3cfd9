"""External yardsticks: a reward model on public test sets, beside what others published.

    python -m training.rlhf.yardsticks CHECKPOINT --base FOLDER --set reward-bench-2 FILE

No file is part of Rondo, and none is trained on: a checkpoint that has seen a test set proves nothing by it.
"""
