"""What forward passes cost: T(k) as a value times one running scale (`pass_costs`), measured
(`measure`) and stored (`store`).
"""
