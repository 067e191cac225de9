"""The README's figure: error against gradients on the reference posteriors, ours beside NUTS.

python -m benchmarks.picture RESULTS.json --out docs/figures/posteriors.png

RESULTS.json is what `python -m benchmarks.posteriors --peers --out RESULTS.json` has written.
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

OURS, NUTS = "#0b6e4f", "#c1440e"


def draw(results: dict, out: Path) -> None:
    names = [key.split("/", 1)[1] for key in results if key.startswith("steinmatch/") and f"nuts/{key[11:]}" in results]
    ours, nuts = (
        np.array([[results[f"{method}/{name}"][key] for key in ("gradients", "mean", "sd")] for name in names])
        for method in ("steinmatch", "nuts")
    )
    figure, axes = plt.subplots(figsize=(7.2, 4.0), layout="constrained")
    for a, b in zip(nuts, ours, strict=True):
        axes.plot([a[0], b[0]], [max(a[1:]), max(b[1:])], color="0.8", linewidth=0.8, zorder=1)
    for points, colour, marker, label in (
        (nuts, NUTS, "s", "NUTS, 1000 + 1000 draws"),
        (ours, OURS, "o", "steinmatch, defaults"),
    ):
        axes.scatter(points[:, 0], points[:, 1:].max(axis=1), c=colour, marker=marker, s=36, label=label, zorder=2)
    axes.axhline(0.02, color="0.6", linewidth=0.8, linestyle=":")
    axes.text(1.02, 0.02, "noise of the\nreferences", fontsize=8, color="0.4", va="center", transform=_right(axes))
    axes.set(xscale="log", yscale="log", xlabel="gradients of the log density, all counted")
    axes.set_ylabel("largest error of a mean or sd, in posterior sds")
    axes.set_title(f"{len(names)} real posteriors: each line joins two runs on one of them", fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", fontsize=9)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)


def _right(axes):
    from matplotlib.transforms import blended_transform_factory

    return blended_transform_factory(axes.transAxes, axes.transData)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/figures/posteriors.png"))
    options = parser.parse_args()
    draw(json.loads(options.results.read_text()), options.out)


if __name__ == "__main__":
    main()
