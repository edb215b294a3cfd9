"""Policy gradient: REINFORCE, PPO, GRPO, RLOO and fine-grained RLHF.

In the order of a step: `sampling` draws and scores completions, in this process or by `rollout_servers`;
`credit` turns rewards into advantages; `update` learns from these through an `actor`; `guard` asks people and
warns. `loop` is the run. `training.rlhf.examples` uses `credit` and `update` on policies of a few parameters.
"""
