"""ArviZ and files: exact round trips, whole files or none."""

import os
import signal
import subprocess
import sys
import textwrap
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import arviz as az

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def fit():
    target = sm.Target.from_parameters(
        {"mu": (), "tau": sm.positive, "theta": (2, 3)},
        lambda p: -0.5 * p["mu"] ** 2 - p["tau"] - 0.5 * jnp.sum((p["theta"] - p["mu"]) ** 2),
        info=sm.targets.ModelInfo({"theta": ["row", "column"]}, {"row": ["a", "b"], "column": [1, 2, 3]}),
    )
    return sm.fit(target)


@pytest.fixture(scope="module")
def path(fit, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "fit.nc"
    fit.save(path)
    return path


def test_arviz_reads_the_particles(fit):
    data = fit.to_arviz()
    sizes = dict(data.posterior.sizes)
    assert sizes["chain"] * sizes["draw"] == len(fit.particles) and sizes["draw"] >= 100
    assert (sizes["row"], sizes["column"]) == (2, 3)
    table = az.summary(data, kind="stats")
    weighted = np.sum(data.sample_stats["weight"].values * data.posterior["mu"].values)
    np.testing.assert_allclose(weighted, fit.summary()["mu"]["mean"], rtol=1e-10, atol=1e-14)
    assert "theta[a, 1]" in table.index
    first = data.unconstrained["x"].values[2, 5]
    (row,) = np.nonzero((fit.particles == first).all(axis=1))[0][:1]
    assert data.sample_stats["weight"].values[2, 5] == fit.weights[row]
    density = data.sample_stats["lp"].values[2, 5]
    np.testing.assert_allclose(density, fit.target.log_density(jnp.asarray(first)), rtol=1e-6)
    az.plot_posterior(data, var_names=["mu", "tau"])
    az.plot_pair(data, var_names=["mu", "tau"])


def test_round_trip_is_exact(fit, path):
    for again in (sm.load(path), sm.load(path, target=fit.target)):
        for name in ("particles", "weights"):
            np.testing.assert_array_equal(getattr(again, name), getattr(fit, name))
        for name in ("converged", "reason", "residual", "n_steps", "n_gradients", "n_hvps", "seed", "rounds"):
            assert getattr(again, name) == getattr(fit, name), name
        np.testing.assert_array_equal(again.error.mean, fit.error.mean)
        np.testing.assert_array_equal(again.history["error"], fit.history["error"])
        assert str(again.summary()) == str(fit.summary())
    assert sm.load(path, target=fit.target).certificate.residual == pytest.approx(fit.certificate.residual)


def test_a_loaded_fit_can_be_saved_again(fit, path, tmp_path):
    sm.load(path).save(tmp_path / "again.nc")
    np.testing.assert_array_equal(sm.load(tmp_path / "again.nc").particles, fit.particles)


def test_without_its_target_new_densities_are_refused(path):
    with pytest.raises(ValueError, match="target="):
        _ = sm.load(path).log_evidence


def test_damaged_and_foreign_files(path, tmp_path):
    whole = path.read_bytes()
    for share in (0.0, 0.3, 0.9):
        broken = tmp_path / "broken.nc"
        broken.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ValueError, match="damaged"):
            sm.load(broken)
    foreign = tmp_path / "foreign.nc"
    az.from_dict(posterior={"x": np.zeros((1, 3))}).to_netcdf(str(foreign), engine="h5netcdf")
    with pytest.raises(ValueError, match="not a file that steinmatch saved"):
        sm.load(foreign)
    with pytest.raises(FileNotFoundError, match="no file"):
        sm.load(tmp_path / "nothing.nc")
    with pytest.raises(ValueError, match="dimension"):
        sm.load(path, target=sm.Target(lambda x: -jnp.sum(x**2), dim=2))


def test_a_killed_save_leaves_the_old_file(fit, path, tmp_path):
    """The process is killed while the new file is being written."""
    kept = tmp_path / "kept.nc"
    kept.write_bytes(path.read_bytes())
    code = f"""
        import os, signal, warnings
        warnings.simplefilter("ignore")
        import steinmatch as sm
        fit = sm.load({str(kept)!r})
        os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
        fit.save({str(kept)!r})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=dict(os.environ), check=False)
    assert done.returncode == -signal.SIGKILL
    np.testing.assert_array_equal(sm.load(kept).particles, fit.particles)
    assert kept.read_bytes() == path.read_bytes()
