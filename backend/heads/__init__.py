"""Trained heads: their files, their sizes, and what runs them. A head reads the target's hidden
states, which EAGLE (arXiv 2401.15077) calls features, and predicts the next ones.

May import `engines` and `models`; torch and OpenVINO load with the head that needs them.
"""
