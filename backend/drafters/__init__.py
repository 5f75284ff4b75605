"""What proposes tokens: prompt lookup, a draft model, a trained head, lookup and one of those in a
hybrid, lookahead; and how much of what they guess is verified.

May import `decoding` for the seams, `costs`, `engines.base`, `engines.hidden_states` and `heads`;
knows neither strategies nor what loads models.
"""
