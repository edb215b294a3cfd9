"""Webhooks: other programs are told what happens in a project, signed, until they have taken it.

`endpoints` keeps the addresses, `messages` writes down what happened in the transaction in which it did,
`deliveries` sends what is due and notes how that went, `sending` is the one request over the network.
"""
