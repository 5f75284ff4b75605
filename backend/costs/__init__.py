"""What forward passes cost: T(k) and one running scale (`pass_costs`), measured and stored."""
