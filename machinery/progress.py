"""Progress that one can see: a bar that moves while a single call works for minutes.

A file of its own because a bar which waits for the next reply, or for the next micro-batch, stands still for
minutes where a real model runs on a CPU: reading the prompts alone can take one. So a thread redraws it, and what
it shows of a sampler are tokens, of which there are some every second.

On a terminal it is redrawn twice a second; in a file each redrawing is some more text, so every five seconds.
"""
import sys
import threading
import time
from contextlib import contextmanager

from tqdm import tqdm

from machinery import ranks

QUIET = 5.0   # seconds before a bar appears: the laptop model's are over by then


@contextmanager
def shown(what: str, total: int | None = None, unit: str = "it", engine=None):
    """A bar over `total` things (None where nobody can tell); yields advance(n), which says that n more are done.

    With an `engine` its tokens per second are shown too: engine.sampled counts all it has sampled since it began; it
    is None where that is unknown.
    """
    every = 0.5 if sys.stderr.isatty() else QUIET
    counted = engine is not None and engine.sampled is not None
    before = engine.sampled if counted else 0
    began, done, over = time.monotonic(), 0, threading.Event()

    def advance(n: float = 1) -> None:
        nonlocal done
        done += n

    def redraw():
        while not over.wait(every):
            bar.n = round(done)
            if counted:
                rate = (engine.sampled - before) / (time.monotonic() - began)
                bar.set_postfix_str(f"{rate:.1f} tokens/s", refresh=False)
            bar.update(0)

    form = None if total else "{desc}: {elapsed}"
    with tqdm(total=total, desc=what, unit=unit, bar_format=form, leave=False, delay=QUIET, miniters=0,
              mininterval=0, disable=ranks.rank() > 0) as bar:
        thread = threading.Thread(target=redraw, daemon=True)   # a daemon: Ctrl-C must not wait for it
        thread.start()
        try:
            yield advance
        finally:
            over.set()
            thread.join()
