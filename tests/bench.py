"""Measurements, a section each: python tests/bench.py sandbox ...

They print what they measured on this machine and assert nothing; the tests do that.
"""
import random
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))


def designer_noise(count, seed=0):
    """What a bad Designer may write: random bytes, cut programs, mutated programs."""
    rng = random.Random(seed)
    programs = [path.read_text() for path in sorted((TOP / "tests" / "hostile").glob("*.py"))]
    for _ in range(count):
        text = rng.choice(programs)
        how = rng.randrange(4)
        if how == 0:
            text = rng.randbytes(rng.randrange(2000)).decode("utf-8", rng.choice(["replace", "surrogateescape"]))
        elif how == 1:
            text = text[:rng.randrange(len(text))]
        else:
            for _ in range(rng.randrange(1, 6)):
                i, j = sorted(rng.choices(range(len(text) + 1), k=2))
                text = rng.choice([
                    text[:i] + text[i + 1:], text[:i] + chr(rng.choice([0, 10, 39, 40, 123, 233, 0x1F600])) + text[i:],
                    text[:i] + text[i:j] * 2 + text[j:], text[:i] + text[j:], text.replace("return", "yield", 1),
                ])[:20_000]
        yield text
