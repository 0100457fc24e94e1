"""A program in an anonymous file, run by its descriptor: no path is ever opened."""
load = __import__


class MemoryFileEnv:
    def reset(self, seed=None):
        system = load("os")
        try:
            descriptor = system.memfd_create("x")
            system.write(descriptor, b"#!/bin/sh\nsleep 30\n")
            pid = system.fork()
            if pid == 0:
                system.execve(descriptor, ["x"], {})
            return "ESCAPED started a program", {}
        except OSError as error:
            return f"refused: {error}", {}

    def step(self, action):
        return "next", 0.0, False, False, {}
