"""Looks for descriptors it should not hold: the zygote's channel to the trainer, other workers' sockets."""
load = __import__


class DescriptorEnv:
    def reset(self, seed=None):
        system, found = load("os"), []
        for descriptor in range(3, 1024):
            try:
                system.write(descriptor, b"")
                found.append(descriptor)
            except OSError:
                pass
        return f"ESCAPED {found}" if len(found) > 1 else "only my own", {}

    def step(self, action):
        return "next", 0.0, False, False, {}
