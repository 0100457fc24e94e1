"""A run folder in, one self-contained report.html out: what the Designer learnt and how the Agent fared.

What it teaches: how to read a self-play run. Both arms beside their difference (regret 0 is either mastered
or broken), environments at the edge, the programs in the order of training, what was refused and why.
What it leaves out: scripts, plotting libraries, anything from elsewhere. All text was written by a model: it
goes through `esc`, and the page's own Content-Security-Policy runs no script and loads nothing.

Try it:  python -m study.report runs/NAME [runs/OTHER ...]     of several runs the curves are in one page
"""
import html
import math
import sys
import traceback
from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean

from machinery import ranks
from study.runs import BANDS, load, records

CARDS, ROWS, REFUSED = 16, 100, 20  # shown at most: cards, environments by regret, refused programs
LEFT, WIDTH, BOTTOM, HEIGHT = 52, 318, 158, 150  # where a chart's curves are, of its 380 x 196
# title, what to know, any number of keys of metrics.jsonl. What a run has not measured is left out.
CHARTS = [
    ("Return", "A gap closed by a falling hinted arm is no gain.", "agent/return", "agent/return_hinted"),
    ("Regret", "Return with the hint minus return without it.", "designer/regret"),
    ("Learnable share", "Environments solved in 20 to 80% of plays.", "designer/learnable_share"),
    ("Validity", "Programs that hold; different ones among them.", "designer/valid", "designer/unique"),
    ("Designer reward", "Mean over all programs, refused ones included.", "designer/reward_all"),
    ("Rung", "Mean difficulty, where programs declare it.", "designer/rung"),
    ("Entropy", "Nats per trained token. Near 0 all samples are alike.", "loss/entropy"),
    ("Gradient norm", "Before clipping; 0 if no group had different rewards.", "loss/grad_norm"),
    ("Engine mismatch", "|log p learner - log p sampler|. Rising: stale weights?", "loss/engine_mismatch")]
STYLE = """
:root { color-scheme: light dark; --page: #f4f2ed; --box: #fff; --ink: #23272d; --soft: #656c75;
  --line: #dedbd3; --bright: 38%; --band0: #2563a8; --band1: #2e8555; --band2: #c2682c; --band3: #9aa1a9;
  --band4: var(--line); }
@media screen and (prefers-color-scheme: dark) { :root { --page: #15181c; --box: #1d2126; --ink: #dfe3e8;
  --soft: #98a2ad; --line: #373d45; --bright: 68%; --band0: #74aef0; --band1: #5fbd86; --band2: #d9884f;
  --band3: #6b737c; } }
* { box-sizing: border-box; min-width: 0; overflow-wrap: anywhere; }
body { margin: auto; max-width: 76rem; padding: 1rem 1rem 4rem; background: var(--page); color: var(--ink);
  font: 1rem/1.4 system-ui, sans-serif; accent-color: var(--band0); print-color-adjust: exact; }
h1, h2, h3, h4, p { margin: 0 0 .4rem; }
h2 { margin-top: 3rem; }
h4, p, summary, .key { font-size: .85rem; color: var(--soft); }
figure, article, details { margin: 0 0 .5rem; padding: .8rem; background: var(--box); border-radius: 8px; }
figure { display: grid; align-content: space-between; break-inside: avoid; }
.grid { display: grid; gap: 1rem; grid: auto / repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }
.map { display: flex; gap: min(2px, .2vw); height: 9rem; margin: 0 0 .5rem; padding: 0; }
li { display: grid; flex: 1; }
.strip { display: grid; gap: 1rem; grid: auto / auto-flow min(42rem, 92%); overflow-x: auto; }
path { fill: none; stroke: currentColor; stroke-linecap: round; }
text { fill: var(--soft); font-size: 12px; text-anchor: end; }
.key { display: flex; flex-wrap: wrap; gap: 0 1rem; }
.key div { flex: 1 1 14rem; max-height: 32rem; overflow: auto; }
.key svg { width: 1.9em; height: .4em; margin-right: .5em; vertical-align: .15em; }
pre { margin: 0 0 .4rem; padding: .4rem .7rem; max-height: 20rem; overflow: auto; color: var(--ink);
  background: var(--page); border-left: 3px solid var(--line); font: .8rem/1.45 monospace; }
.said { white-space: pre-wrap; max-height: none; }
.assistant { border-color: var(--band0); }
@media print { .strip { display: block; } .key div, pre { max-height: none; white-space: pre-wrap; } }
"""


def esc(text: str, longest: int = 4000) -> str:
    """Anybody's text as harmless HTML: cut in the middle, control characters made visible, escaped."""
    if len(text) > longest:
        text = f"{text[:longest // 2]}\n[... {len(text) - longest} characters ...]\n{text[-longest // 2:]}"
    return html.escape("".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in text))


# --- curves ---

def ticks(low: float, high: float) -> list[float]:
    """Round numbers around [low, high]: ticks(0, 0.93) -> 0, 0.25, 0.5, 0.75, 1."""
    span = high - low
    unit = 10 ** math.floor(math.log10(span / 4)) if span else 1
    step = next(step for step in (unit, 2 * unit, 2.5 * unit, 5 * unit, 10 * unit) if 4 * step >= span)
    first = math.floor(low / step)
    last = max(math.ceil(high / step), 1)
    return [i * step for i in range(first, last + 1)]


def running_mean(values: list[float]) -> list[float]:
    """Each value averaged with its neighbours, a fortieth of all on either side."""
    reach, means = len(values) // 40, []
    for i in range(len(values)):
        first = max(i - reach, 0)
        means.append(fmean(values[first:i + reach + 1]))
    return means


def line_style(colour: int, dashes: int) -> str:
    """The look of a line: any number of colours, of which no two are alike, and of dashes; 0 has none."""
    hue = (212 + 137.5 * colour) % 360   # the golden angle: every new hue falls into the widest gap
    dash = f"{5 * dashes} 4" if dashes else "none"
    return f'style="color:hsl({hue:g} 60% var(--bright))" stroke-dasharray="{dash}"'


def chart(title: str, note: str, lines: list[tuple[str, str, list[tuple[int, float]]]]) -> str:
    """One figure of lines (label, style, points): the measurements thin, their running mean thick."""
    every = [point for _, _, points in lines for point in points]
    xs, ys = [x for x, _ in every], [y for _, y in every]
    rows = ticks(min(0, *ys), max(0, *ys))
    bottom, top = rows[0], rows[-1]
    first, span = min(xs), max(xs) - min(xs) or 1

    def at(x, y):
        right, up = (x - first) / span, (y - bottom) / (top - bottom)
        return f"{LEFT + WIDTH * right:.2f},{BOTTOM - HEIGHT * up:.2f}"

    keys, svg = "", '<text x="370" y="193">rollout</text>'
    for y in rows:
        svg += (f'<path style="color:var(--line)" d="M{at(first, y)}h{WIDTH}"/>'
                f'<text transform="translate({at(first, y)})" dx="-6" dy="4">{y:.4g}</text>')
    for x in ticks(first, first + span):
        if first <= x <= first + span and x % 1 == 0:
            svg += f'<text transform="translate({at(x, bottom)})" dx="4" dy="18">{x:g}</text>'
    for label, style, points in lines:
        values = [y for _, y in points]
        for width, heights in ((0.5, values), (2, running_mean(values))):
            corners = " ".join(at(x, height) for (x, _), height in zip(points, heights))
            svg += f'<path {style} stroke-width="{width}" d="M{corners}h.01"/>'
        keys += legend(style, label)
    return (f'<figure><h3>{title}</h3><p>{note}</p><div class="key">{keys}</div>'
            f'<svg viewBox="0 0 380 196" role="img" aria-label="{title}">{svg}</svg></figure>')


def legend(style: str, label: str) -> str:
    return f'<span><svg viewBox="0 0 28 6"><path {style} stroke-width="3" d="M2 3h24"/></svg>{label}</span>'


def curves(runs: list[dict]) -> str:
    """All charts. Of several runs each has a colour of its own, of a single one each line."""
    figures = ""
    for title, note, *keys in CHARTS:
        lines = []
        for run_number, run in enumerate(runs):
            for key_number, key in enumerate(keys):
                measured = [(m["rollout"], m[key]) for m in run["metrics"] if key in m]
                points = [(rollout, value) for rollout, value in measured if math.isfinite(value)]
                label = key.rpartition("/")[2].replace("_", " ")
                colour = key_number
                if len(runs) > 1:
                    label += f" ({run['label']})"
                    colour = run_number
                if points:
                    lines.append((label, line_style(colour, key_number), points))
        if lines:
            figures += chart(title, note, lines)
    return f'<h2>Curves</h2><p>Thin: each rollout. Thick: running mean.</p><div class="grid">{figures}</div>'


# --- programs ---

def program(e: dict, plays=()) -> str:
    """What is known of a program. Every play begins with the first observation."""
    page = ""
    if "returns" in e:
        by_rollout = " → ".join(f"{ret:.2f}" for ret in e["returns"])
        page += f"<p>Return {e['return_hinted']:.2f} with hint, {by_rollout} without, by rollout</p>"
    page += '<div class="key">'
    for p in plays:
        arm = "with hint" if p["hinted"] else "without hint"
        turns = "".join(f'<pre class="said {esc(who)}">{esc(text, 1500)}</pre>' for who, text in p["turns"])
        page += f"<div><h4>A play {arm}: {p['return']:.2f}, {esc(p['outcome'])}</h4>{turns}</div>"
    page += "</div>"
    for name in ("hint", "reason"):
        if e.get(name):
            page += f'<h4>{name.title()}</h4><pre class="said">{esc(e[name])}</pre>'
    return f"{page}<h4>Program</h4><pre>{esc(e['code'])}</pre>"


def curriculum(run: dict) -> str:
    """How hard each set of programs was for the Agent of its time, and the best paid program of some sets."""
    sets, best = defaultdict(lambda: "<li>"), {}   # of the rollout with which they ended
    for e in run["programs"]:
        end = e["rollout"]
        sets[end] += f'<b style="background:var(--band{e["band"]})"></b>'
        if "returns" in e and (end not in best or e["reward"] > best[end]["reward"]):
            best[end] = e
    chosen = evenly(list(best.values()), CARDS)
    plays = first_plays(run, chosen)
    cards = ""
    for e in chosen:
        cards += (f"<article><h3>{esc(e['skill'])}</h3><p>{esc(e['name'])}.py, to rollout {e['rollout']:d}, "
                  f"paid {e['reward']:.2f}</p>{program(e, plays[first_rollout(e)])}</article>")
    keys = "".join(legend(f'style="color:var(--band{i})"', name) for i, name in enumerate(BANDS))
    return f"""<h2>The curriculum</h2><p>One column per set of programs, from first to last: how often the
Agent of that time solved each without the hint.</p><figure><ol class="map">{"".join(sets.values())}</ol>
<div class="key">{keys}</div></figure><p>The best paid program of {len(chosen)} sets, oldest first.
What the Agent said has a coloured edge.</p><div class="strip" tabindex="0">{cards}</div>"""


def evenly(items: list, most: int) -> list:
    """At most so many of the items, at equal distances, with the last: evenly([1, 2, 3, 4, 5], 3) -> 1, 3, 5."""
    if not items:
        return []
    distance = math.ceil(len(items) / most)
    first = (len(items) - 1) % distance
    return items[first::distance]


def first_rollout(e: dict) -> tuple[str, int]:
    """A program's name and the rollout in which both arms played it."""
    return e["name"], e["rollout"] + 1 - len(e["unhinted"])


def first_plays(run: dict, programs: list[dict]) -> dict[tuple[str, int], list[dict]]:
    """The plays of the programs' first rollouts, at most one of each arm: without the hint, then with it."""
    plays = {first_rollout(e): {} for e in programs}
    wanted = {"rollout", "environment", "hinted", "turns", "return", "outcome"}
    with open(run["folder"] / "plays.jsonl", encoding="utf-8", errors="replace") as file:
        for p in records("plays.jsonl", file, wanted, run["broken"]):
            where = p["environment"], p["rollout"]
            if where in plays:
                plays[where][p["hinted"]] = p
    return {where: [arms[hinted] for hinted in (False, True) if hinted in arms] for where, arms in plays.items()}


def environments(run: dict) -> str:
    measured = [e for e in run["programs"] if not math.isnan(e["regret"])]
    shown = sorted(measured, key=lambda e: -e["regret"])[:ROWS]
    page = f"<h2>Environments by regret</h2><p>With hint - without; {len(shown)} of {len(measured)}</p>"
    for e in shown:
        gap = f"{e['regret']:+.2f} = {e['return_hinted']:.2f} - {e['returns'][0]:.2f}"
        page += f"<details><summary>{gap}, {esc(e['name'])}</summary>{program(e)}</details>"
    return page


def refused(run: dict) -> str:
    those = [e for e in run["programs"] if "returns" not in e]
    kinds = Counter(e["reason"].split(":")[0] for e in those)
    counts = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()) or "0"
    page = f"<h2>Refused programs</h2><p>All: {esc(counts)}</p>"
    for e in those[-REFUSED:]:
        page += f"<details><summary>{esc(e['reason'])}, {esc(e['name'])}</summary>{program(e)}</details>"
    return page


def times(runs: list[dict]) -> str:
    page = "<h2>Where the time went, in minutes</h2>"
    for run in runs:
        total = sum(m.get("time/total", 0) for m in run["metrics"]) or 1
        for part in ("design", "play", "learn", "total"):
            seconds = sum(m.get(f"time/{part}", 0) for m in run["metrics"])
            share, minutes = seconds / total, seconds / 60
            page += f"<p><progress value={share:.3f}></progress> {minutes:.1f} {part}, {run['label']}"
    return page


def write(*folders: str | Path) -> Path:
    """Writes report.html into the first folder and returns its path. Curves and times are of all folders."""
    runs = [load(Path(folder)) for folder in folders]
    for run in runs:
        run["label"] = esc(run["folder"].resolve().name)
    first = runs[0]
    title, path = " and ".join(run["label"] for run in runs), first["folder"] / "report.html"
    parts = [curriculum(first), curves(runs), environments(first), refused(first), times(runs)]
    flags = esc((path.parent / "args.json").read_text("utf-8"))
    broken = [place for run in runs for place in run["broken"]]
    notice = f"<p>{len(broken)} unreadable lines left out, first {esc(broken[0])}</p>" if broken else ""
    path.write_text(f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"
><meta name="viewport" content="width=device-width"><style>{STYLE}</style>
<h1>{title}</h1>{notice}{"".join(parts)}<h2>Flags</h2><pre>{flags}</pre></html>""", encoding="utf-8")
    return path


def write_after(run: Path) -> None:
    """The report of a run that is over. Whatever is wrong with the page, the run is complete and saved."""
    if ranks.rank() > 0:
        return
    try:
        print(f"the report is {write(run)}")
    except Exception:
        traceback.print_exc()
        print(f"the run is complete and saved, only its report failed: python -m study.report {run}")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(__doc__)
    print(f"the report is {write(*sys.argv[1:])}")
