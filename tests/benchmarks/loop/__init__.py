"""The whole loop with simulated annotators whose preference is known: does a round help?"""
