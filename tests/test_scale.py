"""Much data, many data sets, checkpoints, several devices."""

import json
import os
import signal
import socket
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm
from steinmatch._devices import over

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(103, 3)), RNG.integers(0, 2, size=103)


def log_prior(w):
    return -0.5 * jnp.sum(w**2)


def log_likelihood(w, rows):
    signs = 2.0 * rows["y"].astype(w.dtype) - 1.0
    return jax.nn.log_sigmoid(signs * (rows["X"] @ w))


def whole(w):
    return log_prior(w) + jnp.sum(log_likelihood(w, {"X": jnp.asarray(X), "y": jnp.asarray(Y)}))


@pytest.mark.parametrize("chunk", [None, 1, 10, 103, 1000])
def test_chunks_give_the_density_and_gradient_of_the_whole(chunk):
    target = sm.Target.from_data(log_prior, log_likelihood, {"X": X, "y": Y}, chunk, dim=3)
    w = jnp.array([0.3, -1.0, 0.5])
    value, slope = eqx.filter_jit(lambda f, w: jax.value_and_grad(f)(w))(target.log_density, w)
    expected = jax.jit(jax.value_and_grad(whole))(w)
    np.testing.assert_allclose(value, expected[0], rtol=1e-13)
    np.testing.assert_allclose(slope, expected[1], rtol=1e-12)
    np.testing.assert_allclose(eqx.filter_jit(target.score)(w), expected[1], rtol=1e-12)


def test_data_in_single_precision_stay_so_and_are_computed_with_in_double():
    target = sm.Target.from_data(log_prior, log_likelihood, {"X": X.astype(np.float32), "y": Y}, 10, dim=3)
    assert target.log_density.data["X"].dtype == jnp.float32
    value = eqx.filter_jit(target.log_density)(jnp.ones(3))
    assert value.dtype == jnp.float64
    np.testing.assert_allclose(value, jax.jit(whole)(jnp.ones(3)), rtol=1e-6)


def test_memory_of_a_gradient_grows_with_the_chunk_and_not_with_the_data():
    rows = np.ones((2**15, 8))

    def temporary(chunk):
        target = sm.Target.from_data(log_prior, lambda w, rows: jnp.sin(rows @ w), rows, chunk, dim=8)
        arrays, static = eqx.partition(target.log_density, eqx.is_array)
        gradient = jax.jit(lambda leaves, w: jax.grad(eqx.combine(leaves, static))(w))
        return gradient.lower(arrays, jnp.ones(8)).compile().memory_analysis().temp_size_in_bytes

    assert temporary(2**8) < 0.1 * temporary(2**15)


def test_named_parameters_and_new_data():
    rows = RNG.normal(2.0, 3.0, size=400)
    target = sm.Target.from_data(
        lambda p: -p["sd"],
        lambda p, y: -0.5 * ((y - p["mu"]) / p["sd"]) ** 2 - jnp.log(p["sd"]),
        rows,
        dim=None,
        parameters={"mu": (), "sd": sm.positive},
    )
    fit = sm.fit(target, progress=False)
    assert fit.converged
    assert abs(fit.mean["mu"] - rows.mean()) < 0.1 * rows.std() / 20.0
    moved = fit.update(rows + 1.0, progress=False)
    assert abs(moved.mean["mu"] - fit.mean["mu"] - 1.0) < 0.1 * rows.std() / 20.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(data=X), "give dim="),
        (dict(data={"X": X, "y": Y[:5]}, dim=3), "same number of rows"),
        (dict(data={}, dim=3), "empty"),
        (dict(data=np.float64(1.0), dim=3), "one row an observation"),
        (dict(data=X, dim=3, chunk=0), "chunk"),
        (dict(data=np.array(["a"]), dim=3), "real numbers"),
    ],
)
def test_bad_data_are_named(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        sm.Target.from_data(log_prior, log_likelihood, **arguments)


def written(folder, rows, kind):
    """The same rows as files of this kind, or as a memory map; and a log likelihood of them."""
    if kind == "memory map":
        np.save(folder / "rows.npy", rows)
        return np.load(folder / "rows.npy", mmap_mode="r"), lambda w, rows: log_likelihood(w, _columns(rows))
    pa = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    X = pa.FixedSizeListArray.from_arrays(rows[:, :3].ravel(), 3)
    table = pa.table({"X": X, "y": rows[:, 3].astype(np.int8)})
    if kind == "Parquet":
        parquet.write_table(table[:60], folder / "a.parquet", row_group_size=25)
        parquet.write_table(table[60:], folder / "b.parquet")
        return [folder / "a.parquet", folder / "b.parquet"], log_likelihood
    feather.write_feather(table, folder / "rows.arrow", compression="uncompressed", chunksize=40)
    return folder / "rows.arrow", log_likelihood


def _columns(rows):
    return {"X": rows[:, :3], "y": rows[:, 3]}


@pytest.mark.parametrize("kind", ["memory map", "Parquet", "Arrow"])
def test_rows_of_files_are_read_in_passes(kind, tmp_path):
    data, likelihood = written(tmp_path, np.column_stack([X, Y]), kind)
    target = sm.Target.from_data(log_prior, likelihood, data, 17, dim=3)
    w = RNG.normal(size=(5, 3))
    expected = jax.jit(jax.vmap(jax.value_and_grad(whole)))(w)
    source = target.log_density.source
    assert max(len(jax.tree.leaves(rows)[0]) for rows in source.chunks(17)) <= 17
    before = source.passes
    values, scores = sm.targets.Evaluations(target)(w)
    assert source.passes == before + 1
    np.testing.assert_allclose(values, expected[0], rtol=1e-12)
    np.testing.assert_allclose(scores, expected[1], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(eqx.filter_jit(target.score)(w[0]), expected[1][0], rtol=1e-10, atol=1e-12)
    in_memory = sm.Target.from_data(log_prior, likelihood, data, 1000, dim=3)
    np.testing.assert_allclose(sm.targets.Evaluations(in_memory)(w)[1], expected[1], rtol=1e-10, atol=1e-12)


def test_a_fit_to_data_read_in_passes_is_that_of_the_whole(tmp_path):
    data, likelihood = written(tmp_path, np.column_stack([X, Y]), "memory map")
    streamed = sm.Target.from_data(log_prior, likelihood, data, 40, dim=3)
    fit = sm.fit(streamed, progress=False)
    expected = sm.fit(sm.Target.from_data(log_prior, log_likelihood, {"X": X, "y": Y}, dim=3), progress=False)
    assert fit.converged and "passes over the data" in fit.reason
    allowed = 4.0 * np.hypot(fit.error.mean, expected.error.mean)
    assert np.all(np.abs(fit.mean - expected.mean) <= allowed * expected.sd)
    np.testing.assert_allclose(fit.sd, expected.sd, rtol=0.02)


def test_single_precision_within_a_chunk():
    rows = {"X": RNG.normal(size=(5000, 3)), "y": RNG.integers(0, 2, size=5000)}
    w = jnp.array([0.3, -1.0, 0.5])
    single, double = (
        eqx.filter_jit(sm.Target.from_data(log_prior, log_likelihood, rows, 500, dim=3, dtype=dtype).score)(w)
        for dtype in ("float32", "float64")
    )
    assert single.dtype == jnp.float64
    np.testing.assert_allclose(single, double, rtol=1e-4)
    assert np.any(single != double)


def test_files_that_cannot_be_read_are_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    with pytest.raises(FileNotFoundError, match="no such file"):
        sm.Target.from_data(log_prior, log_likelihood, tmp_path / "none.parquet", dim=3)
    path = tmp_path / "words.parquet"
    parquet.write_table(pa.table({"y": ["a", "b"]}), path)
    with pytest.raises(ValueError, match="column 'y'"):
        sm.Target.from_data(log_prior, log_likelihood, path, dim=3)
    path.write_bytes(b"something else altogether")
    with pytest.raises(ValueError, match="neither a Parquet nor"):
        sm.Target.from_data(log_prior, log_likelihood, path, dim=3)
    parquet.write_table(pa.table({"y": [1.0, None]}), path)
    with pytest.raises(ValueError, match="missing values"):
        sm.Target.from_data(log_prior, log_likelihood, path, dim=3)


def normal_data(rows):
    return sm.Target.from_data(
        lambda m: -0.5 * jnp.sum(m**2) / 100.0, lambda m, y: -0.5 * jnp.sum((y - m[None, :]) ** 2, axis=1), rows, dim=2
    )


def test_many_posteriors_have_the_moments_of_each():
    rows = RNG.normal(size=(5, 30, 2)) + 3.0 * RNG.normal(size=(5, 1, 2))
    fits = sm.fit_many(normal_data(rows[0]), rows, progress=False)
    assert len(fits) == 5 and fits.converged.all() and "5 converged" in repr(fits)
    precision = 30.0 + 0.01
    np.testing.assert_allclose(fits.mean, rows.sum(axis=1) / precision, atol=0.02 / np.sqrt(precision))
    np.testing.assert_allclose(fits.sd, np.full((5, 2), precision**-0.5), rtol=0.02)
    np.testing.assert_array_equal(fits[3].mean, sm.fit(normal_data(rows[3]), progress=False).mean)
    by_function = sm.fit_many(normal_data, rows[:2], progress=False)
    np.testing.assert_array_equal(by_function.mean, fits[:2].mean)


def test_many_posteriors_of_bad_data():
    with pytest.raises(ValueError, match="first axis"):
        sm.fit_many(normal_data, {"a": np.ones((3, 2)), "b": np.ones((4, 2))})
    with pytest.raises(TypeError, match="from_numpyro"):
        sm.fit_many(sm.targets.Gaussian(np.zeros(2), np.eye(2)), np.ones((3, 2)))


CURVED = sm.Target(lambda x: -0.5 * x[0] ** 2 - 2.0 * (x[1] - 0.3 * x[0] ** 2) ** 2, dim=2)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        dict(n_particles=20, kernel=sm.LinearRandom()),
        dict(n_particles=12, kernel=sm.FeatureKernel(lambda x: jnp.concatenate([jnp.ones(1), x, x**2]))),
    ],
    ids=["automatic", "features", "own features"],
)
def test_a_stopped_fit_goes_on_to_the_same_result(arguments, tmp_path):
    path = tmp_path / "run.checkpoint"
    expected = sm.fit(CURVED, **arguments, progress=False)
    stopped = sm.fit(CURVED, **arguments, checkpoint=path, max_gradients=expected.n_gradients // 2, progress=False)
    assert not stopped.converged and path.exists()
    ended = sm.fit(CURVED, **arguments, checkpoint=path, progress=False)
    np.testing.assert_array_equal(ended.particles, expected.particles)
    np.testing.assert_array_equal(ended.weights, expected.weights)
    assert ended.reason == expected.reason and ended.n_gradients == expected.n_gradients
    again = sm.fit(CURVED, **arguments, checkpoint=path, progress=False)
    np.testing.assert_array_equal(again.particles, expected.particles)


def test_checkpoints_of_other_fits_and_other_files_are_refused(tmp_path):
    path = tmp_path / "run.checkpoint"
    target = sm.targets.Gaussian(np.zeros(2), np.eye(2))
    sm.fit(target, checkpoint=path, progress=False)
    with pytest.raises(ValueError, match="another fit: its seed"):
        sm.fit(target, checkpoint=path, seed=1, progress=False)
    with pytest.raises(ValueError, match="another fit: its score"):
        sm.fit(sm.targets.Gaussian(np.ones(2), np.eye(2)), checkpoint=path, progress=False)
    path.write_bytes(b"cposix\nsystem\n(S'false'\ntR.")
    with pytest.raises(ValueError, match="no checkpoint"):
        sm.fit(target, checkpoint=path, progress=False)


SLOW = """
import sys, time
import numpy as np, jax.numpy as jnp
import steinmatch as sm
from steinmatch.solvers import checkpoint
checkpoint._SELDOM = 0.0
keep = checkpoint.Checkpoint.keep
def slowly(self, state, last):
    keep(self, state, last)
    print("kept", flush=True)
    time.sleep(float(sys.argv[2]))
checkpoint.Checkpoint.keep = slowly
target = sm.Target(lambda x: -0.5 * x[0] ** 2 - 2.0 * (x[1] - 0.3 * x[0] ** 2) ** 2, dim=2)
fit = sm.fit(target, checkpoint=sys.argv[1], progress=False)
np.save(sys.argv[1] + ".npy", fit.particles)
"""


def test_a_killed_process_goes_on_to_the_same_result(tmp_path):
    path = tmp_path / "run.checkpoint"
    command = [sys.executable, "-c", SLOW, str(path)]
    first = subprocess.Popen([*command, "60"], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None and first.stdout.readline() == "kept\n"
    first.send_signal(signal.SIGKILL)
    first.communicate()
    subprocess.run([*command, "0"], check=True, capture_output=True)
    fit = sm.fit(CURVED, progress=False)
    np.testing.assert_array_equal(np.load(f"{path}.npy"), fit.particles)


SHARED = """
import json, sys
import numpy as np, jax, jax.numpy as jnp
import steinmatch as sm
target = sm.Target(lambda x: -0.5 * x[0] ** 2 - 2.0 * (x[1] - 0.3 * x[0] ** 2) ** 2, dim=2)
mesh = jax.make_mesh((4,), ("points",)) if sys.argv[1] == "4" else None
automatic = sm.fit(target, mesh=mesh, progress=False)
features = sm.fit(target, 24, kernel=sm.LinearRandom(), mesh=mesh, progress=False)
print(json.dumps([jax.device_count(), automatic.mean.tolist(), automatic.sd.tolist(), automatic.n_gradients,
                  features.particles.tolist(), features.converged]))
"""


def test_several_devices_give_the_result_of_one():
    def run(devices):
        environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        done = subprocess.run(
            [sys.executable, "-c", SHARED, str(devices)], env=environment, check=True, capture_output=True, text=True
        )
        return json.loads(done.stdout.splitlines()[-1])

    (_, *one), (count, *four) = run(1), run(4)
    assert count == 4
    for expected, found in zip(one, four, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-10)


def test_a_mesh_must_be_one():
    with pytest.raises(TypeError, match="make_mesh"), over("four"):  # type: ignore[arg-type]
        pass


TOGETHER = """
import sys, time
import numpy as np, jax
address, n, i, path, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], float(sys.argv[5])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, n, i, heartbeat_timeout_seconds=10)
import steinmatch as sm
from steinmatch.solvers import checkpoint
checkpoint._SELDOM = 0.0
keep = checkpoint.Checkpoint.keep
def slowly(self, state, last):
    keep(self, state, last)
    print("kept", flush=True)
    time.sleep(pause)
checkpoint.Checkpoint.keep = slowly
target = sm.Target(lambda x: -0.5 * x[0] ** 2 - 2.0 * (x[1] - 0.3 * x[0] ** 2) ** 2, dim=2)
mesh = jax.make_mesh((jax.device_count(),), ("points",))
fit = sm.fit(target, mesh=mesh, checkpoint=path, progress=False)
if i == 0:
    np.save(path + ".npy", fit.particles)
"""


def together(n, path, pause):
    with socket.socket() as one:
        one.bind(("localhost", 0))
        address = f"localhost:{one.getsockname()[1]}"
    command = [sys.executable, "-c", TOGETHER, address, str(n)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen([*command, str(i), str(path), pause], **pipes) for i in range(n)]


def test_several_processes_give_the_result_of_one(tmp_path):
    path = tmp_path / "run.checkpoint"
    for process in together(2, path, "0"):
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    np.testing.assert_allclose(np.load(f"{path}.npy"), sm.fit(CURVED, progress=False).particles, atol=1e-10)


def test_after_a_lost_process_the_others_end_and_fewer_go_on(tmp_path):
    path = tmp_path / "run.checkpoint"
    first, second = together(2, path, "5")
    assert first.stdout is not None and "kept\n" in iter(first.stdout.readline, "")
    second.kill()
    second.communicate()
    first.communicate(timeout=300)
    assert first.returncode != 0 and not path.with_name(f"{path.name}.npy").exists()
    (alone,) = together(1, path, "0")
    alone.communicate(timeout=300)
    np.testing.assert_allclose(np.load(f"{path}.npy"), sm.fit(CURVED, progress=False).particles, atol=1e-10)
