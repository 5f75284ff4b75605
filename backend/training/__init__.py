"""Makes trained heads: the target's conversations, its hidden states of them, and the fit.

`train` is the way in. The modules that compute import torch, and are imported for that alone.
"""
