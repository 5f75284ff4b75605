"""Makes trained heads: the target's conversations, its hidden states of them, and the fit."""
