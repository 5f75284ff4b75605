"""Runs trained heads: their files, their sizes, and the networks on OpenVINO and torch.

A head reads the target's hidden states, which EAGLE (arXiv 2401.15077) calls features, and predicts
the next ones. Torch and OpenVINO load with the head that needs them.
"""
