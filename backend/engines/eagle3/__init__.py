"""EAGLE-3 drafts (arXiv 2503.01840): one decoder layer that reads the hidden states of three of the
target's. torch and OpenVINO load with the draft that needs them.
"""
