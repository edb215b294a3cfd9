"""Environments: a policy acts over several turns, and what answers it is no prompt of a snapshot.

In the order of a step: `protocol` is what an environment is and opens one, in this process, in a child
process or behind HTTP; `episodes` lets the policy act in many of them at once and keeps the ids that it
drew; `training.rlhf.policy_gradient` learns from them as from answers. `traces` writes episodes for people to
label.
Each folder here is an example, and has the form of a folder that somebody adds.
"""
