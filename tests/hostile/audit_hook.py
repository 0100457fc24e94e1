"""An audit hook that raises on every event, for good: hooks cannot be removed."""
import types

sys = types.sys if hasattr(types, "sys") else __import__("sys")


class AuditEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        def hook(event, arguments):
            raise SystemExit(event)

        sys.addaudithook(hook)
        return "next", eval("0.0"), False, False, {}
