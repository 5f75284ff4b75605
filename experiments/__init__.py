"""What the developers of Decode Derby run now and then, by `python -m experiments NAME`: training
of drafts, the built-in model's assets, and measurements. Nothing of the product imports it.
"""
