"""Arithmetic that is short to write and for ever to finish, in C."""
import decimal


class DecimalEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        decimal.getcontext().prec = 40_000_000
        root = decimal.Decimal(2).sqrt()
        return str(root)[:10], 0.0, False, False, {}
