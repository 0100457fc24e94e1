"""study/report.py: what a model wrote stays text, the curves are the metrics, and the page holds in a real browser."""
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from study import report, runs

EVIL = "<script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>\"'</pre></style>&amp;\x00\u202e\ud800"
METRICS = [{"rollout": i, "agent/return": 0.1 * i - 0.2, "designer/valid": 0.5, "designer/unique": 0.25,
            "designer/learnable_share": i / 8, "loss/entropy": 0.5 / (i + 1), "loss/engine_mismatch": 3e-7 * i,
            "loss/grad_norm": 1234.5 + i, "time/play": 60.0, "time/learn": 27.0, "time/total": 120.0}
           | ({"agent/return_hinted": 0.9, "designer/regret": -0.05 * i} if i % 2 == 0 else {}) for i in range(8)]


def make_run(folder, text=EVIL, metrics=METRICS, sets=4):
    """A run folder like run.py's, every text of which is `text`; its programs are wider and taller than any screen."""
    (folder / "environments" / "rejected").mkdir(parents=True)
    (folder / "args.json").write_text(json.dumps({"model": text, "recipe": "spade"}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in metrics))
    plays = []
    for i in range(sets):
        played = {"hint": text, "hinted": [1.0, i / 8], "unhinted": [[0.0, 1.0], [1.0, 1.0]]}
        no_hint = {"hint": "", "hinted": [], "unhinted": [[0.0], []]}
        for name, extra in ((f"e{i}_played", played), (f"e{i}_no_hint", no_hint), (f"rejected/e{i}_bad", {})):
            facts = {"name": name.split("/")[-1], "skill": text, "rollout": 2 * i + 1, "reward": 0.1 * i,
                     "reason": "" if extra else f"syntax: {text}"} | extra
            code = f"# {text}\n" + "x = " + "1 + " * 200 + "1\n" + "x += 1\n" * 80
            (folder / "environments" / f"{name}.py").write_text("# " + json.dumps(facts) + "\n" + code,
                                                                 "utf-8", "replace")
        plays += [{"rollout": rollout, "environment": f"e{i}_played", "hinted": hinted, "return": 0.5,
                   "outcome": "terminated", "turns": [["user", f"{text} opening {rollout}"], ["assistant", text]] * 20}
                  for rollout, hinted in ((2 * i, False), (2 * i, True), (2 * i + 1, False))]
    (folder / "plays.jsonl").write_text("".join(json.dumps(p) + "\n" for p in plays))
    return folder


class Page(HTMLParser):
    """The tags, the attributes and the visible text of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.text += data


def test_every_text_of_a_model_is_shown_as_text(tmp_path):
    html = report.write(make_run(tmp_path)).read_text(encoding="utf-8")
    page = Page(html)
    known = {"html", "meta", "title", "style", "h1", "h2", "h3", "h4", "p", "figure", "div", "ol", "li", "b", "span",
             "i", "svg", "path", "text", "article", "pre", "details", "summary", "progress"}
    assert set(page.tags) <= known                       # no script, no img, nothing that loads
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")]
    # in skill, hint, plays, code, reason and flags
    assert page.text.count("<script>alert(1)</script>") > 20
    assert "\x00" not in html and "\u202e" not in html   # control characters, right-to-left override
    assert html.count("<style>") == 1 and "default-src 'none'" in html


def test_no_reference_leaves_the_page(tmp_path):
    html = report.write(make_run(tmp_path, text="harmless")).read_text(encoding="utf-8")
    assert not re.search(r"https?:|//|@import|url\(", html)


def test_long_texts_keep_beginning_and_end(tmp_path):
    html = report.write(make_run(tmp_path, text="a" * 9000 + " \\boxed{42}")).read_text(encoding="utf-8")
    assert "characters" in html and "\\boxed{42}" in html and "a" * 5000 not in html


def plotted(html, title, width="0.5"):
    """The points of a figure's curves in the units of its axes, by the positions of the tick labels."""
    figure = html.split(f"<h3>{title}</h3>")[1].split("</figure>")[0]
    labels = re.findall(r'translate\(([-\d.]+),([-\d.]+)\)" dx="(-6|4)"[^>]*>([^<]+)<', figure)
    axes = []
    for mark, coordinate in (("4", 0), ("-6", 1)):
        ticks = [(float(label[coordinate]), float(label[3])) for label in labels if label[2] == mark]
        (p0, v0), (p1, v1) = ticks[0], ticks[-1]
        for place, value in ticks:                       # all labels of an axis agree on one scale
            assert v0 + (place - p0) * (v1 - v0) / (p1 - p0) == pytest.approx(value, abs=1e-3 * abs(v1 - v0))
        axes.append((p0, v0, (v1 - v0) / (p1 - p0)))
    curves = re.findall(rf'stroke-width="{width}" d="M([^"]+)h.01"', figure)
    return [[tuple(v0 + (float(place) - p0) * scale for place, (p0, v0, scale) in zip(point.split(","), axes))
             for point in curve.split()] for curve in curves]


@pytest.mark.parametrize("title, keys", [
    ("Return", ["agent/return", "agent/return_hinted"]), ("Regret", ["designer/regret"]),
    ("Learnable share", ["designer/learnable_share"]), ("Validity", ["designer/valid", "designer/unique"]),
    ("Entropy", ["loss/entropy"]), ("Gradient norm", ["loss/grad_norm"]),
    ("Engine mismatch", ["loss/engine_mismatch"])])
def test_the_curves_are_the_metrics(tmp_path, title, keys):
    html = report.write(make_run(tmp_path)).read_text(encoding="utf-8")
    curves = plotted(html, title)
    assert len(curves) == len(keys)
    for curve, key in zip(curves, keys):
        expected = [(m["rollout"], m[key]) for m in METRICS if key in m]
        height = max(abs(value) for _, value in expected)
        assert len(curve) == len(expected)
        for (x, y), (rollout, value) in zip(curve, expected):
            assert x == pytest.approx(rollout, abs=0.02) and y == pytest.approx(value, abs=2e-3 * height)


def test_long_curves_have_a_running_mean_over_the_measurements(tmp_path):
    metrics = [{"rollout": i, "designer/rung": 1.0 + 2 * (i % 2)} for i in range(200)]
    html = report.write(make_run(tmp_path, text="words", metrics=metrics)).read_text(encoding="utf-8")
    thin, thick = (plotted(html, "Rung", width)[0] for width in ("0.5", "2"))
    assert [round(y, 1) for _, y in thin] == [1.0, 3.0] * 100
    assert len(thick) == 200 and all(1.8 < y < 2.2 for _, y in thick[5:-5])


def test_a_curve_is_left_out_where_nothing_was_measured_and_survives_one_point(tmp_path):
    metrics = [METRICS[0] | {"loss/entropy": float("nan"), "loss/grad_norm": 0.0}]
    html = report.write(make_run(tmp_path, metrics=metrics)).read_text(encoding="utf-8")
    assert "<h3>Rung</h3>" not in html and "<h3>Entropy</h3>" not in html and "nan" not in html.split("<h2>Env")[0]
    assert "<h3>Gradient norm</h3>" in html and html.count('stroke-width="2"') == html.count('stroke-width="0.5"') == 8


def test_a_fork_adds_a_chart_with_one_entry_and_every_line_has_a_look_of_its_own(tmp_path, monkeypatch):
    keys = [f"agent/turns_{skill}" for skill in "abcdef"]
    monkeypatch.setattr(report, "CHARTS", [*report.CHARTS, ("Turns", "By skill.", *keys)])
    metrics = [m | {key: 1.0 + i for i, key in enumerate(keys)} for m in METRICS]
    one, other = make_run(tmp_path / "one", metrics=metrics), make_run(tmp_path / "two", metrics=metrics)

    def looks(html):
        figure = html.split("<h3>Turns</h3>")[1].split("</figure>")[0]
        return re.findall(r'style="color:(hsl[^"]+)" stroke-dasharray="([^"]+)" stroke-width="2"', figure)
    single = looks(report.write(one).read_text(encoding="utf-8"))
    assert len({colour for colour, _ in single}) == len({dashes for _, dashes in single}) == 6
    both = looks(report.write(one, other).read_text(encoding="utf-8"))
    assert len(both) == len(set(both)) == 12
    assert len({colour for colour, _ in both[:6]}) == len({colour for colour, _ in both[6:]}) == 1   # a run's


def test_programs_are_banded_by_how_often_they_were_solved():
    solved = {0: 3, 1: 2, 19: 2, 20: 1, 80: 1, 81: 0, 100: 0}    # of 100 plays: the position in BANDS
    for wins, band in solved.items():
        assert runs.band([[1.0] * wins, [0.0] * (100 - wins)]) == band
    assert runs.band([[], []]) == 3


def test_cards_are_evenly_spread_and_the_last_is_shown():
    assert report.evenly([1, 2, 3, 4, 5], 3) == [1, 3, 5]
    assert report.evenly([1, 2, 3, 4], 3) == [2, 4]
    assert report.evenly([1, 2], 3) == [1, 2] and report.evenly([], 3) == []


def test_ticks_are_round_and_enclose():
    assert report.ticks(0, 0.93) == [0, 0.25, 0.5, 0.75, 1.0]
    assert report.ticks(0, 0) == [0, 1]
    for low, high in ((0, 3e-7), (-0.061, 0.02), (0, 1e5), (3, 1000), (-2, 0), (0, 1)):
        ticks = report.ticks(low, high)
        assert ticks[0] <= low and ticks[-1] >= high and 2 <= len(ticks) <= 7, (low, high, ticks)


def test_the_strip_shows_each_set_in_order_with_both_arms(tmp_path):
    html = report.write(make_run(tmp_path, text="words", sets=40)).read_text(encoding="utf-8")
    cards = html.split('class="strip"')[1].split("<h2>")[0].split("<article>")[1:]
    names = [re.search(r"e(\d+)_\w+\.py", card).group(0) for card in cards]
    assert 8 <= len(cards) <= report.CARDS and names[-1] == "e39_played.py"
    assert names == sorted(names, key=lambda name: int(re.search(r"\d+", name).group(0)))
    assert "opening 78" in cards[-1] and "opening 79" not in cards[-1]    # the rollout that both arms played
    for card in cards:
        assert card.index("A play without hint") < card.index("A play with hint") and card.count("A play") == 2
        assert re.search(r"Return \d\.\d\d with hint, 0\.50 → 1\.00 without", card)


def test_environments_are_sorted_by_regret_and_refusals_are_counted(tmp_path):
    html = report.write(make_run(tmp_path, text="words")).read_text(encoding="utf-8")
    listed = html.split("Environments by regret")[1].split("<h2>")[0]
    assert re.findall(r"<summary>([^,]+), (\w+)<", listed) == [
        (f"{(1 + i / 8) / 2 - 0.5:+.2f} = {(1 + i / 8) / 2:.2f} - 0.50", f"e{i}_played") for i in (3, 2, 1, 0)]
    assert "4 syntax" in html and html.count("<summary>syntax: words") == 4


def test_broken_lines_are_left_out_and_counted(tmp_path):
    run = make_run(tmp_path, text="words")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"rollout": 8, "agent/retu\n[1]\n{"no": "rollout"}\n')
    with open(run / "plays.jsonl", "ab") as file:
        file.write(b"\xff\xfe not json\n")
    (run / "environments" / "e9_half.py").write_text("# {\"name\": ")
    (run / "environments" / "e9_empty.py").write_text("")
    html = report.write(run).read_text(encoding="utf-8")
    assert "6 unreadable lines left out, first metrics.jsonl:9" in html
    assert len(plotted(html, "Gradient norm")[0]) == 8


def test_several_runs_share_the_curves_and_the_first_keeps_the_page(tmp_path):
    first, second = make_run(tmp_path / "a", text="words"), make_run(tmp_path / "b", text="words", metrics=METRICS[:5])
    assert report.write(first, second) == first / "report.html" and not (second / "report.html").exists()
    html = (first / "report.html").read_text(encoding="utf-8")
    assert [len(curve) for curve in plotted(html, "Gradient norm")] == [8, 5]
    for text in ("grad norm (a)", "grad norm (b)", "8.0 play, a", "16.0 total, a", "10.0 total, b"):
        assert text in html


def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path):
    with pytest.raises(SystemExit, match="no metrics.jsonl: give the folder of a run"):
        report.write(tmp_path)


def test_the_end_of_a_run_writes_it_and_survives_its_failure(tmp_path, monkeypatch, capsys):
    folder = make_run(tmp_path)
    report.write_after(folder)
    assert f"the report is {tmp_path / 'report.html'}" in capsys.readouterr().out
    monkeypatch.setattr(report, "write", lambda folder: 1 / 0)
    report.write_after(folder)
    out, err = capsys.readouterr()
    assert "only its report failed: python -m study.report" in out and "ZeroDivisionError" in err


# --- in a browser ---

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """Chromium over its debugging pipe: one JSON message up to a zero byte on descriptors 3 and 4."""

    def __init__(self, profile):
        read_theirs, self.write = os.pipe()
        self.read, write_theirs = os.pipe()
        flags = ("--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars "
                 f"--remote-debugging-pipe --user-data-dir={profile} about:blank")
        self.process = subprocess.Popen(["bash", "-c", f"exec {CHROMIUM} {flags} 3<&{read_theirs} 4>&{write_theirs}"],
                                        pass_fds=(read_theirs, write_theirs), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(read_theirs)
        os.close(write_theirs)
        self.buffer, self.count, self.events, self.session = b"", 0, [], {}
        target = next(t for t in self("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        for domain in ("Page", "Network", "Runtime", "Log"):
            self(f"{domain}.enable")

    def message(self):
        while b"\0" not in self.buffer:
            part = os.read(self.read, 1 << 16)
            assert part, "the browser went away"
            self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(line)

    def __call__(self, method, **params):
        self.count += 1
        request = {"id": self.count, "method": method, "params": params} | self.session
        os.write(self.write, json.dumps(request).encode() + b"\0")
        while (answer := self.message()).get("id") != self.count:
            self.events.append(answer)
        return answer["result"]

    def open(self, path):
        self.events.clear()
        self("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message())

    def value(self, expression):
        return self("Runtime.evaluate", expression=expression)["result"].get("value")

    def seen(self, *methods):
        return [event for event in self.events if event.get("method") in methods]

    def close(self):
        self.process.terminate()
        self.process.wait(20)
        os.close(self.read)
        os.close(self.write)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no chromium here")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(browser, tmp_path, scheme):
    path = report.write(make_run(tmp_path))
    browser("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    browser("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open(path)
    requests = [event["params"]["request"]["url"] for event in browser.seen("Network.requestWillBeSent")]
    assert requests == [path.as_uri()]
    assert not browser.seen("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown",
                            "Page.javascriptDialogOpening")
    assert browser.value("document.documentElement.scrollWidth") == 390    # open details too:
    browser.value("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.value("document.documentElement.scrollWidth") == 390
    assert browser.value("[...document.querySelectorAll('pre')].some(p => p.scrollWidth > p.clientWidth)")
    assert browser.value("document.body.innerText").count("<script>alert(1)</script>") > 20
    assert browser.value("document.scripts.length + document.images.length") == 0
    background = browser.value("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", background))) > 3 * 128
    assert light == (scheme == "light")


def test_print_hides_nothing_behind_a_scroll_bar(browser, tmp_path):
    path = report.write(make_run(tmp_path))
    browser("Emulation.setDeviceMetricsOverride", width=760, height=1000, deviceScaleFactor=1, mobile=False)
    browser("Emulation.setEmulatedMedia", media="print")
    browser.open(path)
    assert browser.value("[...document.querySelectorAll('article, article div, article pre')].filter(e => "
                         "e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1).length") == 0
    assert browser.value("document.querySelector('.strip').scrollWidth") <= 760
