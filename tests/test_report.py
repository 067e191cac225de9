"""The report page: what it says, that names cannot break it, and that it works in a browser."""

import html.parser
import json
import re
import shutil
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm
from steinmatch.records.pages.report import Column, Report, page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NASTY = ("</script><script>window.broken=1</script>", "a&b<i>", "quote\"'", "tau")

PROBE = """
<script>
window.errors = [];
window.addEventListener("error", (event) => window.errors.push(String(event.message)));
window.addEventListener("unhandledrejection", (event) => window.errors.push(String(event.reason)));
console.error = (...words) => window.errors.push(words.join(" "));
window.addEventListener("load", () => {
  const table = document.getElementById("parameters"), body = table.tBodies[0];
  const order = () => Array.from(body.rows).map((row) => Number(row.dataset.i));
  const press = (column) => table.tHead.rows[0].cells[column].querySelector("button").click();
  const shown = () => Array.from(body.rows).filter((row) => !row.hidden).length;
  const found = { before: order(), all: shown() };
  press(1); found.rising = order();
  press(1); found.falling = order();
  press(0); found.first = order();
  const search = document.getElementById("search");
  search.value = "tau"; search.dispatchEvent(new Event("input")); found.picked = shown();
  search.value = ""; search.dispatchEvent(new Event("input")); found.unpicked = shown();
  document.getElementById("more").click(); found.everything = shown();
  body.rows[2].click(); found.words = document.getElementById("marginal-words").textContent;
  const up = document.getElementById("up"); up.value = "0"; up.dispatchEvent(new Event("change"));
  found.circles = document.querySelectorAll("#pairs circle").length;
  found.bars = document.querySelectorAll("#marginal rect").length;
  found.requests = performance.getEntriesByType("resource").length;
  found.broken = window.broken === 1;
  found.background = getComputedStyle(document.body).backgroundColor;
  found.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  found.errors = window.errors;
  const node = document.createElement("pre"); node.id = "found"; node.textContent = JSON.stringify(found);
  document.body.append(node);
});
</script>
"""


def _report(names=NASTY, k=None) -> Report:
    k = len(names) if k is None else k
    names = tuple(names) + tuple(f"b[{i}]" for i in range(k - len(names)))
    rng = np.random.default_rng(0)
    values = rng.normal(size=(60, k)) + np.arange(k)[::-1]
    columns = [Column("mean", values.mean(axis=0), np.full(k, 0.01)), Column("sd", values.std(axis=0))]
    weights = np.full(60, 1.0 / 60)
    rounds = [(100, 0.1), (400, 0.02)]
    return Report(
        "A <b>title", "Converged.", True, ["a & b"], names, columns, values, weights, lambda i: values[i, 0], rounds
    )


class _Ids(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.tags, self.outside = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "action", "srcset"):
                self.outside.append(value)


def test_names_are_escaped_everywhere():
    text = page(_report())
    parsed = _Ids()
    parsed.feed(text)
    assert parsed.tags.count("script") == 2 and not {"b", "i"} & set(parsed.tags)
    assert not parsed.outside and "window.broken=1</script>" not in text
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None and json.loads(data[1])["names"] == list(NASTY)


def test_a_fit_tells_its_story(tmp_path):
    target = sm.Target(lambda x: -0.5 * jnp.sum(x**2) - 0.1 * x[0] ** 4, dim=2, names=("one", "two"))
    fit = sm.fit(target, progress=False)
    fit.report(tmp_path / "report.html", title="Two", call="sm.fit(target)")
    text = (tmp_path / "report.html").read_text()
    for part in ("Converged", "one", "two", "How it got there", "Stein equations", "log evidence", "sm.fit(target)"):
        assert part in text
    mean = re.search(r"<td>two</td><td data-v=\"([^\"]+)\"", text)
    assert mean is not None and float(mean[1]) == pytest.approx(float(np.asarray(fit.mean)[1]), abs=1e-12)
    assert "nested R-hat" in text and "bound that the frame was raised to is" in text
    fit.save(tmp_path / "fit.nc")
    sm.load(tmp_path / "fit.nc").report(tmp_path / "again.html")
    assert "two" in (tmp_path / "again.html").read_text()


def test_fixed_points_and_fits_that_did_not_converge(tmp_path):
    target = sm.targets.Gaussian(jnp.zeros(2), jnp.eye(2))
    sm.fit(target, 10, kernel="linear", progress=False).report(tmp_path / "linear.html")
    text = (tmp_path / "linear.html").read_text()
    assert "rank condition" in text and "scaled residual over the steps" in text
    assert "steinmatch.fit(target, 10, kernel=..., seed=0)" in text
    sm.fit(target, 10, kernel="rbf", solver="descent", max_steps=2, progress=False).report(tmp_path / "not.html")
    assert "NOT converged" in (tmp_path / "not.html").read_text()


def test_sharpened_draws_tell_before_and_after(tmp_path):
    target = sm.targets.Gaussian(jnp.ones(2), jnp.eye(2))
    found = sm.sharpen(np.random.default_rng(0).normal(size=(400, 2)) + 1.0, target)
    found.report(tmp_path / "sharpened.html")
    text = (tmp_path / "sharpened.html").read_text()
    assert "mean before" in text and "Sharpened: the largest standard error" in text


def in_browser(text: str, folder, *options: str, probe: str = PROBE) -> dict:
    """What the probe found in a page."""
    path = folder / "page.html"
    path.write_text(text.replace("<head>", "<head>" + probe, 1))
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", *options,
        "--virtual-time-budget=3000", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    seen = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
    found = re.search(r'<pre id="found">(.*?)</pre>', seen, re.DOTALL)
    assert found is not None, seen[-2000:]
    return json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_page_works_in_a_browser(tmp_path):
    found = in_browser(page(_report(k=120)), tmp_path)
    assert found["errors"] == [] and not found["broken"] and found["requests"] == 0
    assert found["before"] == found["first"] == list(range(120))
    assert found["rising"] == list(range(120))[::-1] and found["falling"] == list(range(120))
    assert (found["all"], found["picked"], found["unpicked"], found["everything"]) == (50, 1, 50, 120)
    assert found["words"].startswith('quote"') and found["circles"] == 60 and found["bars"] == 40


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_thousand_parameters(tmp_path):
    found = in_browser(page(_report(k=1000)), tmp_path)
    assert found["errors"] == [] and (found["all"], found["picked"], found["everything"]) == (50, 1, 1000)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_dark_and_narrow(tmp_path):
    light = in_browser(page(_report()), tmp_path)
    dark = in_browser(page(_report()), tmp_path, "--force-dark-mode", "--enable-features=WebContentsForceDark")
    narrow = in_browser(page(_report()), tmp_path, "--window-size=360,800")
    assert light["errors"] == dark["errors"] == narrow["errors"] == []
    assert light["background"] == "rgb(255, 255, 255)" and dark["background"] != light["background"]
    assert narrow["wide"] <= 0
