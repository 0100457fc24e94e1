"""An exception that is its own cause, with a type whose name and text cannot be had."""


class Meta(type):
    @property
    def __name__(cls):
        raise SystemExit


class Knot(Exception, metaclass=Meta):
    def __str__(self):
        raise self

    __repr__ = __str__


class ChainEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        knot = Knot()
        knot.__context__ = knot.__cause__ = Knot()
        knot.__cause__.__cause__ = knot
        raise knot
