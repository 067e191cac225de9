"""The play page: what it computes, and that it works in a browser."""

import jax
import numpy as np
import pytest

from steinmatch.cli import play as computed
from steinmatch.kernels.features import Linear
from steinmatch.records.pages.play import Frame, Play, Run, play_page
from tests.test_report import BROWSER, in_browser

PROBE = """
<script>
window.errors = [];
window.addEventListener("error", (event) => window.errors.push(String(event.message)));
window.addEventListener("unhandledrejection", (event) => window.errors.push(String(event.reason)));
console.error = (...words) => window.errors.push(words.join(" "));
window.addEventListener("load", () => {
  const part = (id) => document.getElementById(id);
  const choose = (id, value) => { part(id).value = value; part(id).dispatchEvent(new Event("change")); };
  const words = () => part("words").textContent;
  const inked = () => {
    const seen = part("picture").getContext("2d").getImageData(0, 0, 640, 560).data;
    return seen.filter((value, i) => i % 4 === 3 && value > 0).length;
  };
  const found = { first: words(), solvers: part("solver").options.length, inked: inked() };
  part("forward").click(); found.second = words();
  part("back").click(); found.back = words();
  choose("solver", "levenberg-marquardt"); found.other = words();
  part("forward").click(); found.mean = part("mean").textContent; found.gradients = part("gradients").textContent;
  choose("n", "5"); found.more = words();
  found.story = part("story").textContent;
  found.requests = performance.getEntriesByType("resource").length;
  found.background = getComputedStyle(document.body).backgroundColor;
  found.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  found.errors = window.errors;
  const node = document.createElement("pre"); node.id = "found"; node.textContent = JSON.stringify(found);
  document.body.append(node);
});
</script>
"""


def _made() -> Play:
    rng = np.random.default_rng(0)

    def frames(words: str, n: int) -> list[Frame]:
        return [
            Frame(f"{words} {i}, n = {n}", rng.normal(size=(n, 2)), np.ones(n), 0.1 / 10**i, 0.2, 1000 * i)
            for i in range(3)
        ]

    runs = [
        Run(solver, "linear", n, frames(solver, n)) for n in (4, 5) for solver in ("descent", "levenberg-marquardt")
    ]
    density = np.exp(-(np.linspace(-2.0, 2.0, 12)[:, None] ** 2) - np.linspace(-2.0, 2.0, 12) ** 2)
    return Play("</script>", "a <b>target", (-3.0, -3.0), (3.0, 3.0), density, (np.zeros(2), np.ones(2)), runs)


def test_linear_features_and_weights_are_exact_on_a_gaussian(monkeypatch):
    """Mean zero and sd one exactly, by the fixed point and by Stein weights; but not by as many plain draws."""
    monkeypatch.setattr(computed, "SIZES", (100,))
    monkeypatch.setattr(computed, "_KERNELS", {"linear": Linear})
    seen = []
    made = computed.played("gaussian", 0, lambda: seen.append(1))
    assert len(seen) == computed.n_runs() == 3
    solved, walked = made.runs[1].frames, made.runs[2].frames
    assert solved[0].gradients == 0 and [frame.gradients for frame in solved] == sorted(f.gradients for f in solved)
    for last in (solved[-1], walked[-1]):
        assert last.mean_error < 1e-5 and last.sd_error < 1e-4
    assert walked[-2].mean_error > 0.01 and np.ptp(walked[-1].weights) > 0.01


@pytest.mark.parametrize("name", list(computed.TARGETS))
def test_moments_are_those_of_the_density(name):
    """Summed over a grid, of y / exp(0.75 x) for the funnel, which no even grid holds."""
    case = computed.TARGETS[name]
    x, y = np.meshgrid(np.linspace(-9.0, 9.0, 1201), np.linspace(-9.0, 60.0 if name == "banana" else 9.0, 2401))
    stretch = np.exp(0.75 * x) if name == "funnel" else np.ones_like(x)
    points = np.stack([x.ravel(), (y * stretch).ravel()], axis=1)
    logs = np.asarray(jax.jit(jax.vmap(case.log_density))(points)) + np.log(stretch.ravel())
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = weights @ points
    np.testing.assert_allclose(mean, case.mean, atol=1e-6)
    np.testing.assert_allclose(np.sqrt(weights @ (points - mean) ** 2), case.sd, rtol=1e-5)


def test_unknown_targets_are_named():
    with pytest.raises(ValueError, match="'banana'"):
        computed.played("bananna", 0)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_page_works_in_a_browser(tmp_path):
    found = in_browser(play_page(_made()), tmp_path, probe=PROBE)
    assert found["errors"] == [] and found["requests"] == 0 and found["solvers"] == 2 and found["inked"] > 1000
    assert found["first"] == found["back"] == "descent 0, n = 4" and found["second"] == "descent 1, n = 4"
    assert found["other"].startswith("levenberg-marquardt") and found["more"].endswith("n = 5")
    assert (found["mean"], found["gradients"]) == ("1.0e-2", "1,000") and "equation" in found["story"]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_dark_and_narrow(tmp_path):
    light = in_browser(play_page(_made()), tmp_path, probe=PROBE)
    dark = in_browser(play_page(_made()), tmp_path, "--force-dark-mode", probe=PROBE)
    narrow = in_browser(play_page(_made()), tmp_path, "--window-size=360,800", probe=PROBE)
    assert light["errors"] == dark["errors"] == narrow["errors"] == []
    assert light["background"] == "rgb(255, 255, 255)" and dark["background"] != light["background"]
    assert narrow["wide"] <= 0
