"""A class whose class loops when it is asked for its attributes."""


class Maze(type):
    def __getattribute__(cls, name):
        if name in ("reset", "step"):
            while True:
                pass
        return type.__getattribute__(cls, name)


class MazeEnv(metaclass=Maze):
    pass
