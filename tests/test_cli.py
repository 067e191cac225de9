"""The installed command, in a process of its own, on good and bad input."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
GAUSSIAN = """
import jax.numpy as jnp
import steinmatch as sm
target = sm.Target(lambda x: -0.5 * jnp.sum((x - 1.0) ** 2 / jnp.array([1.0, 4.0])), dim=2, names=["a", "b"])
wrong = 3
nan = sm.Target(lambda x: jnp.sum(x) * jnp.nan, dim=2)
cauchy = sm.Target(lambda x: -jnp.sum(jnp.log1p(x**2)), dim=2)
"""


def command(*arguments, cwd=None):
    run = [str(Path(sys.executable).with_name("steinmatch")), *map(str, arguments)]
    return subprocess.run(run, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    (folder / "gaussian.py").write_text(GAUSSIAN)
    (folder / "raises.py").write_text("raise RuntimeError('no data today')")
    return folder


def test_fit_writes_and_prints(folder):
    done = command("fit", folder / "gaussian.py", "--out", folder / "out", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["converged"]
    assert found["parameters"]["b"]["mean"] == pytest.approx(1.0, abs=0.02)
    assert found["parameters"]["b"]["sd"] == pytest.approx(2.0, abs=0.04)
    assert {path.name for path in (folder / "out").iterdir()} == {
        "fit.nc",
        "particles.png",
        "report.html",
        "summary.csv",
    }
    assert "steinmatch fit" in (folder / "out" / "report.html").read_text()
    header, first, *_ = (folder / "out" / "summary.csv").read_text().splitlines()
    assert header == "parameter,mean,sd,5%,50%,95%,error,sd_error" and first.startswith('"a",')


def test_a_fit_that_does_not_converge_says_so_by_its_code(folder):
    done = command("fit", f"{folder / 'gaussian.py'}:cauchy", "--out", folder / "heavy")
    assert done.returncode == 3
    assert "heavy tails" in done.stdout and (folder / "heavy" / "fit.nc").exists()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("nowhere.py", "no file"),
        ("raises.py", "no data today"),
        ("gaussian.py:missing", "has no missing"),
        ("gaussian.py:wrong", "is needed, got int"),
        ("gaussian.py:nan", "not finite"),
    ],
)
def test_bad_models_exit_with_2(folder, where, message):
    done = command("fit", where, cwd=folder)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_unknown_kernel_and_wrong_stan_data(folder):
    done = command("fit", folder / "gaussian.py", "--kernel", "linaer")
    assert done.returncode == 2 and "linear" in done.stderr
    (folder / "data.json").write_text('{"J": 8}')
    done = command("fit", EXAMPLES / "eight_schools.stan", "--data", folder / "data.json")
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_assess_draws(folder):
    draws = np.random.default_rng(0).normal(size=(400, 2)) * [1.0, 2.0] + 1.3  # shifted by 0.3
    np.save(folder / "draws.npy", draws)
    np.savetxt(folder / "draws.csv", draws, delimiter=",", header="a,b", comments="")
    results = []
    for name in ("draws.npy", "draws.csv"):
        done = command("assess", folder / name, "--target", folder / "gaussian.py", "--json")
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
    assert results[0]["parameters"]["a"]["mean"] == pytest.approx(1.3, abs=0.15)
    assert results[0]["stein_ess"] < 100.0
    assert results[0]["ksd"] == pytest.approx(results[1]["ksd"])
    np.save(folder / "own.npy", np.random.default_rng(1).normal(size=(400, 2)) * [1.0, 2.0] + 1.0)
    words = ["--target", folder / "gaussian.py", "--json", "--out", folder / "s.nc"]
    done = command("sharpen", folder / "own.npy", *words)
    assert done.returncode == 0, done.stderr
    sharpened = json.loads(done.stdout)["parameters"]["a"]
    assert sharpened["before_mean"] == pytest.approx(1.0, abs=0.2)
    assert sharpened["after_mean"] == pytest.approx(1.0, abs=1e-6)
    done = command("sharpen", folder / "s.nc", "--target", folder / "gaussian.py")
    assert done.returncode == 0 and "sharpened" in done.stdout, done.stderr
    np.save(folder / "wide.npy", np.zeros((50, 3)))
    done = command("assess", folder / "wide.npy", "--target", folder / "gaussian.py")
    assert done.returncode == 2 and "3 columns" in done.stderr


def test_help_shows_examples():
    done = command("fit", "--help")
    assert done.returncode == 0 and "steinmatch fit schools.stan" in done.stdout
