"""The lessons' training: each shows one idea by the product's own code, in seconds to minutes on a CPU.

What a lesson is called, shows and claims is declared in `training.contract.course`; here is what it runs.
"""
