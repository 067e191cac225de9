"""`steinmatch bench`: its exact moments, and the command as it is run."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from steinmatch.cli.bench import truth


def test_exact_moments_against_draws():
    """The model's own draws given data, by importance: tau and mu from their priors, theta given both."""
    y, sigma = np.array([3.0, -1.0, 6.0]), np.array([4.0, 5.0, 6.0])
    rng = np.random.default_rng(0)
    tau, mu = np.abs(5.0 * rng.standard_cauchy(400_000)), 5.0 * rng.normal(size=400_000)
    variance = tau[:, None] ** 2 + sigma**2
    logs = -0.5 * np.sum((y - mu[:, None]) ** 2 / variance + np.log(variance), axis=1)
    w = np.exp(logs - logs.max())
    w /= w.sum()
    shrunk = tau[:, None] ** 2 / variance
    theta = shrunk * y + (1.0 - shrunk) * mu[:, None] + np.sqrt(shrunk) * sigma * rng.normal(size=(400_000, 3))
    exact = truth(y, sigma)
    for name, draws in (("mu", mu[:, None]), ("tau", tau[:, None]), ("theta", theta)):
        mean, sd = (np.atleast_1d(part) for part in exact[name])
        found = w @ draws
        np.testing.assert_allclose(found, mean, atol=0.02 * sd.max())
        np.testing.assert_allclose(np.sqrt(w @ (draws - found) ** 2), sd, rtol=0.03)


@pytest.mark.slow
def test_the_command_writes_a_page_and_json(tmp_path):
    settings = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-m", "steinmatch", "bench", "--quick", "--out", "bench"]
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    text = (tmp_path / "bench" / "bench.json").read_text()
    rows = json.loads(text)["rows"]
    own = next(row for row in rows if row["by"] == "steinmatch" and row["converged"] is not None)
    assert own["converged"] and own["error"] < 0.04
    assert "NumPyro NUTS" in (tmp_path / "bench" / "bench.html").read_text() and "NaN" not in text
