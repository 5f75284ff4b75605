"""Proposes tokens, and decides how many are verified. Knows neither strategies nor engines."""
