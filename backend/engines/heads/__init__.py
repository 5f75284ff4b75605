"""Trained heads: small networks that draft for a target whose hidden states they read (EAGLE, arXiv
2401.15077). torch and OpenVINO load with the head that needs them.
"""
