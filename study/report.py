"""A run folder in, one self-contained report.html out: what the Designer learnt and how the Agent fared.

What it teaches: how to read a self-play run. Both arms beside their difference (regret 0 is either mastered
or broken), environments at the edge, the programs in the order of training, what was refused and why.
What it leaves out: scripts, plotting libraries, anything from elsewhere. All text was written by a model: it
goes through `esc`, and the page's own Content-Security-Policy runs no script and loads nothing.

Try it:  python report.py runs/NAME [runs/OTHER ...]     of several runs the curves are in one page
"""
import html
import json
import math
import sys
import traceback
from collections import Counter, defaultdict
from itertools import product
from pathlib import Path
from statistics import fmean

from machinery import ranks

CARDS, ROWS, REFUSED = 16, 100, 20  # shown at most: cards, environments by regret, refused programs
LEVELS = ["over 80% solved", "20 to 80%: learnable", "under 20%", "never solved", "refused"]  # of a program
CHARTS = [  # title, what to know, keys of metrics.jsonl
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
  --line: #dedbd3; --c0: #2563a8; --c1: #2e8555; --c2: #c2682c; --c3: #9aa1a9; --c4: var(--line); }
@media screen and (prefers-color-scheme: dark) { :root { --page: #15181c; --box: #1d2126; --ink: #dfe3e8;
  --soft: #98a2ad; --line: #373d45; --c0: #74aef0; --c1: #5fbd86; --c2: #d9884f; --c3: #6b737c; } }
* { box-sizing: border-box; min-width: 0; overflow-wrap: anywhere; }
body { margin: auto; max-width: 76rem; padding: 1rem 1rem 4rem; background: var(--page); color: var(--ink);
  font: 1rem/1.4 system-ui, sans-serif; accent-color: var(--c0); print-color-adjust: exact; }
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
i { display: inline-block; width: 1.5em; margin-right: .5em; vertical-align: .25em; border-top: .2em solid; }
.dashed { border-top-style: dashed; stroke-dasharray: 5 4; }
pre { margin: 0 0 .4rem; padding: .4rem .7rem; max-height: 20rem; overflow: auto; color: var(--ink);
  background: var(--page); border-left: 3px solid var(--line); font: .8rem/1.45 monospace; }
.said { white-space: pre-wrap; max-height: none; }
.assistant { border-color: var(--c0); }
@media print { .strip { display: block; } .key div, pre { max-height: none; white-space: pre-wrap; } }
"""


def esc(text: str, longest: int = 4000) -> str:
    """Anybody's text as harmless HTML: cut in the middle, control characters made visible, escaped."""
    if len(text) > longest:
        text = f"{text[:longest // 2]}\n[... {len(text) - longest} characters ...]\n{text[-longest // 2:]}"
    return html.escape("".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in text))


def records(name: str, lines, wanted: set[str], broken: list[str]):
    """The JSON objects among `lines` that have the wanted keys; `broken` notes where the others stand."""
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if wanted - record.keys():
                raise ValueError("a key is missing")
        except (ValueError, AttributeError):
            broken.append(f"{name}:{number}")
        else:
            yield record


def load(folder: Path) -> dict:
    """A run without its plays, which can be large and are read once it is known whose are shown."""
    broken, programs, path = [], [], folder / "metrics.jsonl"
    if not path.exists():
        raise SystemExit(f"{folder} has no metrics.jsonl: give the folder of a run, such as runs/NAME")
    metrics = list(records(path.name, path.read_text("utf-8", "replace").splitlines(), {"rollout"}, broken))
    for path in sorted(folder.glob("environments/**/*.py")):
        head, _, code = path.read_text("utf-8", "replace").partition("\n")
        for e in records(path.name, [head[2:]], {"name", "skill", "rollout", "reward", "reason"}, broken):
            e |= {"code": code, "level": 4, "regret": math.nan}
            if "unhinted" in e:
                p = fmean([ret > 0 for returns in e["unhinted"] for ret in returns] or [0])
                e["level"] = (p <= 0.8) + (p < 0.2) + (p == 0)
                # with the hint, then without it, rollout by rollout; the same weights played the first two
                e["arms"] = [fmean(returns or [math.nan]) for returns in (e["hinted"], *e["unhinted"])]
                e["regret"] = e["arms"][0] - e["arms"][1]
            programs.append(e)
    programs.sort(key=lambda e: (e["rollout"], e["level"]))
    return {"folder": folder, "label": esc(folder.resolve().name), "metrics": metrics, "programs": programs,
            "broken": broken}


def ticks(low: float, high: float) -> list[float]:
    """Round numbers around [low, high]: ticks(0, 0.93) -> 0, 0.25, 0.5, 0.75, 1."""
    unit = 10 ** math.floor(math.log10((high - low) / 4 or 1))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if 4 * m * unit >= high - low)
    return [i * step for i in range(math.floor(low / step), max(math.ceil(high / step), 1) + 1)]


def chart(title: str, note: str, lines: list[tuple[str, str, list[tuple[int, float]]]]) -> str:
    """One figure of lines (label, style, points): the measurements thin, their running mean thick."""
    xs, ys = zip(*(point for *_, points in lines for point in points))
    rows, left, wide = ticks(min(0, *ys), max(0, *ys)), min(xs), max(xs) - min(xs) or 1

    def at(x, y):
        return f"{52 + 318 * (x - left) / wide:.2f},{158 - 150 * (y - rows[0]) / (rows[-1] - rows[0]):.2f}"

    keys, svg = "", '<text x="370" y="193">rollout</text>'
    for y in rows:
        svg += (f'<path style="color:var(--line)" d="M{at(left, y)}h318"/>'
                f'<text transform="translate({at(left, y)})" dx="-6" dy="4">{y:.4g}</text>')
    for x in [x for x in ticks(left, left + wide) if left <= x <= left + wide and x % 1 == 0]:
        svg += f'<text transform="translate({at(x, rows[0])})" dx="4" dy="18">{x:g}</text>'
    for label, style, points in lines:
        values, half = [y for _, y in points], len(points) // 40
        means = [fmean(values[max(0, i - half):i + half + 1]) for i in range(len(values))]
        for width, heights in ((0.5, values), (2, means)):
            corners = " ".join(at(x, y) for (x, _), y in zip(points, heights))
            svg += f'<path {style} stroke-width="{width}" d="M{corners}h.01"/>'
        keys += f"<span><i {style}></i>{label}</span>"
    return (f'<figure><h3>{title}</h3><p>{note}</p><div class="key">{keys}</div>'
            f'<svg viewBox="0 0 380 196" role="img" aria-label="{title}">{svg}</svg></figure>')


def curves(runs: list[dict]) -> str:
    figures = ""
    for title, note, *keys in CHARTS:
        found = []
        for (r, run), (k, key) in product(enumerate(runs), enumerate(keys)):
            points = [(m["rollout"], m[key]) for m in run["metrics"] if math.isfinite(m.get(key, math.nan))]
            label = key.split("/")[1].replace("_", " ") + f" ({run['label']})" * (len(runs) > 1)
            style = f'class="{"dashed" * (k > 0)}" style="color:var(--c{2 * k if len(runs) == 1 else r % 4})"'
            found += [(label, style, points)] if points else []
        figures += chart(title, note, found) if found else ""
    return f'<h2>Curves</h2><p>Thin: each rollout. Thick: running mean.</p><div class="grid">{figures}</div>'


def program(e: dict, plays=()) -> str:
    """What is known of a program. Every play begins with the first observation."""
    hinted, *rest = [f"{ret:.2f}" for ret in e.get("arms", [0])]
    page = f"<p>Return {hinted} with hint, {' → '.join(rest)} without, by rollout</p>" if rest else ""
    page += '<div class="key">'
    for p in plays:
        arm = "with hint" if p["hinted"] else "without hint"
        turns = "".join(f'<pre class="said {esc(who)}">{esc(text, 1500)}</pre>' for who, text in p["turns"])
        page += f"<div><h4>A play {arm}: {p['return']:.2f}, {esc(p['outcome'])}</h4>{turns}</div>"
    page += "</div>"
    for name in ("hint", "reason"):
        page += f'<h4>{name.title()}</h4><pre class="said">{esc(e[name])}</pre>' if e.get(name) else ""
    return f"{page}<h4>Program</h4><pre>{esc(e['code'])}</pre>"


def curriculum(run: dict) -> str:
    """How hard each set of programs was for the Agent of its time, and the best paid program of some sets."""
    sets, best, cards = defaultdict(lambda: "<li>"), {}, ""
    for e in run["programs"]:
        sets[e["rollout"]] += f'<b style="background:var(--c{e["level"]})"></b>'
        if "arms" in e:
            best[e["rollout"]] = max(best.get(e["rollout"], e), e, key=lambda e: e["reward"])
    chosen = list(best.values())[::-1][::math.ceil(len(best) / CARDS) or 1][::-1]  # evenly, always the last
    plays = {(e["name"], e["rollout"] + 1 - len(e["unhinted"])): {} for e in chosen}
    wanted = {"rollout", "environment", "hinted", "turns", "return", "outcome"}
    with open(run["folder"] / "plays.jsonl", encoding="utf-8", errors="replace") as file:
        for p in records("plays.jsonl", file, wanted, run["broken"]):
            if (p["environment"], p["rollout"]) in plays:
                plays[p["environment"], p["rollout"]][p["hinted"]] = p
    for e, arms in zip(chosen, plays.values()):
        cards += (f"<article><h3>{esc(e['skill'])}</h3><p>{esc(e['name'])}.py, to rollout {e['rollout']:d}, "
                  f"paid {e['reward']:.2f}</p>{program(e, [arms[arm] for arm in sorted(arms)])}</article>")
    keys = "".join(f'<span><i style="color:var(--c{i})"></i>{name}</span>' for i, name in enumerate(LEVELS))
    return f"""<h2>The curriculum</h2><p>One column per set of programs, from first to last: how often the
Agent of that time solved each without the hint.</p><figure><ol class="map">{"".join(sets.values())}</ol>
<div class="key">{keys}</div></figure><p>The best paid program of {len(chosen)} sets, oldest first.
What the Agent said has a coloured edge.</p><div class="strip" tabindex="0">{cards}</div>"""


def environments(run: dict) -> str:
    ranked = sorted((e for e in run["programs"] if not math.isnan(e["regret"])), key=lambda e: -e["regret"])
    page = f"<h2>Environments by regret</h2><p>With hint - without; {len(ranked[:ROWS])} of {len(ranked)}</p>"
    for e in ranked[:ROWS]:
        gap = f"{e['regret']:+.2f} = {e['arms'][0]:.2f} - {e['arms'][1]:.2f}"
        page += f"<details><summary>{gap}, {esc(e['name'])}</summary>{program(e)}</details>"
    return page


def refused(run: dict) -> str:
    those = [e for e in run["programs"] if "arms" not in e]
    kinds = Counter(e["reason"].split(":")[0] for e in those).most_common()
    page = f"<h2>Refused programs</h2><p>All: {esc(', '.join(f'{n} {kind}' for kind, n in kinds)) or 0}</p>"
    for e in those[-REFUSED:]:
        page += f"<details><summary>{esc(e['reason'])}, {esc(e['name'])}</summary>{program(e)}</details>"
    return page


def times(runs: list[dict]) -> str:
    page = "<h2>Where the time went, in minutes</h2>"
    for run, part in product(runs, ("design", "play", "learn", "total")):
        s, total = (sum(m.get(f"time/{key}", 0) for m in run["metrics"]) for key in (part, "total"))
        page += f"<p><progress value={s / (total or 1):.3f}></progress> {s / 60:.1f} {part}, {run['label']}"
    return page


def write(*folders: str | Path) -> Path:
    """Writes report.html into the first folder and returns its path. Curves and times are of all folders."""
    runs = [load(Path(folder)) for folder in folders]
    title, path = " and ".join(run["label"] for run in runs), runs[0]["folder"] / "report.html"
    parts = [curriculum(runs[0]), curves(runs), environments(runs[0]), refused(runs[0]), times(runs)]
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
    print(f"the report is {write(*sys.argv[1:] or sys.exit(__doc__))}")
