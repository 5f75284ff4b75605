"""Decodes: the loop, its clock, sampling, verification, and the seams that strategies plug into."""
