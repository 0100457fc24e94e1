"""Disarms random.seed for later episodes; every episode has a process of its own."""
import random


class SeedEnv:
    def reset(self, seed=None):
        number = random.random()
        random.seed = lambda *arguments: None
        random.random = lambda: 4.0
        return f"drew {number}", {}

    def step(self, action):
        return "next", 0.0, False, False, {}
