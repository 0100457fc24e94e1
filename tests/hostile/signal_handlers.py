"""Installs handlers and timers, so that no signal and no alarm would end it."""
load = __import__


class HandlerEnv:
    def reset(self, seed=None):
        signals, done = load("signal"), []
        for number in (2, 10, 14, 15, 24):
            try:
                signals.signal(number, signals.SIG_IGN)
                done.append(number)
            except OSError:
                pass
        try:
            signals.setitimer(signals.ITIMER_REAL, 0.01)
            done.append("timer")
        except OSError:
            pass
        return f"ESCAPED {done}" if done else "refused", {}

    def step(self, action):
        return "next", 0.0, False, False, {}
