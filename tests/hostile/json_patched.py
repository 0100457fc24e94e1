"""Replaces the worker's json by one that writes anything but JSON."""
import json


class PatchEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        json.dumps = lambda *arguments, **options: "{'ok': FORGED" * 3
        return "next", 0.0, False, False, {}
