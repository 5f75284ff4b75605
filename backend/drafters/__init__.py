"""Proposes tokens: prompt lookup, a draft model, a trained head, hybrid, lookahead.

Also how much of what they guess is verified. Knows neither strategies nor what loads models.
"""
