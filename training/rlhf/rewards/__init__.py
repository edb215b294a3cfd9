"""Rewards: what says how good a completion is.

`protocol` is what they have in common, `combination` their weighted sum; `text_rewards`, `judge` and
`reward_model` are kinds of reward, and `from_settings` builds those that a run names. No module is imported
here: each brings packages of its own, and a run uses few.
"""
