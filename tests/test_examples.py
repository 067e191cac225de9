"""Every example runs; the logistic regression against a long NUTS run."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import steinmatch as sm
from tests.test_frontends import example, usual_promotion  # noqa: F401

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.filterwarnings("ignore")

# NumPyro 0.22, NUTS on examples/logistic.py: 2 chains of 1000 + 8000 draws from zero, key 0, float64; least effective
# sample size 15,600, so that the means are good to 0.01 sd.
MEAN = np.array(
    [0.2092, -0.4709, -0.4771, -0.4544, -0.5493, -0.2376, 0.5815, -0.9639, -1.0654, 0.1079, 0.4505, -1.4373, 0.3196,
     -0.7784, -1.1819, -0.4364, 0.7306, 0.3126, -0.3339, 0.3063, 0.815, -1.1222, -1.4925, -0.9083, -1.124, -0.7202,
     -0.0211, -0.9834, -1.0355, -1.0595, -0.5299]
)  # fmt: skip
SD = np.array(
    [0.4056, 0.8956, 0.5557, 0.9155, 0.9174, 0.6297, 0.7938, 0.819, 0.8307, 0.5105, 0.6725, 0.781, 0.4997, 0.7804,
     0.9375, 0.4653, 0.6664, 0.6249, 0.667, 0.5292, 0.6923, 0.9253, 0.6464, 0.9219, 0.9366, 0.617, 0.783, 0.7577,
     0.7895, 0.5559, 0.7044]
)  # fmt: skip


def test_breast_cancer_against_nuts():
    fit = sm.fit(example("logistic").target, max_seconds=300.0)
    assert np.abs((fit.mean - MEAN) / SD).max() <= 0.05
    assert np.abs(fit.sd / SD - 1.0).max() <= 0.05


def test_neural_network():
    network = example("neural_network")
    fit = network.fit_network(n_particles=20, n_steps=300)
    predictions = fit.predict(lambda w: network.network(w, network.X[~network.TRAIN]))
    truth = network.Y[~network.TRAIN]
    assert predictions.shape == (20, len(truth))
    assert np.sqrt(np.mean((predictions.mean(axis=0) - truth) ** 2)) < 0.85 * truth.std()


def test_custom_features():
    fit = example("custom_features").fit_features()
    assert fit.converged and fit.certificate.rank_condition


@pytest.mark.slow
def test_query_as_a_script():
    done = subprocess.run([sys.executable, "query.py"], cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "before:" in done.stdout and "after:" in done.stdout
