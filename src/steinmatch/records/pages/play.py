"""The play page: solvers on a target of two dimensions, step by step, in one HTML file that needs nothing beside it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from steinmatch.records.pages.report import escaped, safe_json, style_sheet


class Frame(NamedTuple):
    """Where the particles of a run stand."""

    words: str
    particles: Float[np.ndarray, "n 2"]
    weights: Float[np.ndarray, " n"]  # one each, if they are equal
    mean_error: float  # largest, in sds
    sd_error: float  # largest, relative
    gradients: int


class Run(NamedTuple):
    """One solver from its start to its end."""

    solver: str
    kernel: str
    n: int
    frames: Sequence[Frame]


class Play(NamedTuple):
    """All runs of one target."""

    name: str
    words: str
    low: tuple[float, float]
    high: tuple[float, float]
    density: Float[np.ndarray, "up across"]
    truth: tuple[np.ndarray, np.ndarray]
    runs: Sequence[Run]


def play_page(play: Play) -> str:
    """The page as text."""
    style, own, script = (style_sheet(name) for name in ("report.css", "play.css", "play.js"))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>steinmatch: {escaped(play.name)}</title><style>{style}{own}</style></head>
<body><h1>{escaped(play.words[:1].upper() + play.words[1:])}</h1>
<div class="tools">
<label>solver <select id="solver"></select></label>
<label>kernel <select id="kernel"></select></label>
<label>particles <select id="n"></select></label>
</div>
<div class="tools">
<button id="back" type="button" aria-label="one step back">&#9664;</button>
<button id="go" type="button">Play</button>
<button id="forward" type="button" aria-label="one step on">&#9654;</button>
<input id="step" type="range" min="0" value="0" aria-label="step">
<span id="words"></span>
</div>
<div class="stage">
<canvas id="picture" width="640" height="560" role="img" aria-label="particles over the density"></canvas>
<div><table><tbody>
<tr><td>largest error of a mean, in sds</td><td id="mean"></td></tr>
<tr><td>largest error of an sd</td><td id="sd"></td></tr>
<tr><td>gradients so far</td><td id="gradients"></td></tr>
</tbody></table>
<p id="story"></p></div>
</div>
<script type="application/json" id="data">{safe_json(_numbers(play))}</script>
<script>{script}</script>
</body></html>
"""


def _numbers(play: Play) -> dict:
    return {
        "low": list(play.low),
        "high": list(play.high),
        "density": [[round(float(value), 3) for value in row] for row in play.density],
        "runs": [
            {
                "solver": run.solver,
                "kernel": run.kernel,
                "n": run.n,
                "frames": [
                    {
                        "words": frame.words,
                        "x": [[float(f"{value:.4g}") for value in row] for row in frame.particles],
                        "w": [round(float(value), 3) for value in frame.weights],
                        "mean": frame.mean_error,
                        "sd": frame.sd_error,
                        "gradients": frame.gradients,
                    }
                    for frame in run.frames
                ],
            }
            for run in play.runs
        ],
    }
