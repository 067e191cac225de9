"""What use and abuse have found, each with what mends it. The whole campaign: python -m benchmarks.faults."""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm
from steinmatch._files import check_folder, only_one, write_whole
from steinmatch.records.trees import NotBuiltIn, put_together, taken_apart
from steinmatch.solvers import Budget, Problem
from tests.registry import KERNELS, PARTICLES, held

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.filterwarnings("ignore")


def normal(x):
    return -0.5 * jnp.sum(x**2)


@pytest.fixture(scope="module")
def target():
    return sm.Target(normal, dim=2)


@pytest.fixture(scope="module")
def fit(target):
    return sm.fit(target, progress=False)


def test_a_short_campaign():
    """As users run it: a process of its own, JAX in its default mode."""
    command = [sys.executable, "-m", "benchmarks.faults", "--json", "--tries", "100"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tried"] >= 100 and found["bad"] == 0, found["list"]


# -- functions of the user's -------------------------------------------------------------------------------------------


def failing(at, how):
    calls = 0

    def score(x):
        nonlocal calls
        calls += 1
        return how(x) if calls > at else -np.asarray(x)

    return sm.Target(score=score, dim=2)


def test_a_score_that_raises_is_named_with_its_point():
    with pytest.raises(ValueError, match=r"score raised ZeroDivisionError.*at x = \["):
        sm.ksd(failing(1, lambda x: 1 / 0), np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"score must return numbers of shape \(2,\).*at x = \["):
        sm.ksd(failing(1, lambda x: np.zeros(3)), np.ones((3, 2)))


def test_a_score_that_raises_late_leaves_the_best_so_far():
    found = sm.fit(failing(400, lambda x: 1 / 0), 8, kernel="rbf", solver=sm.Descent(chunk=10), progress=False)
    assert not found.converged and "score raised ZeroDivisionError" in found.reason
    assert np.isfinite(found.particles).all()


@pytest.mark.parametrize("how", [{}, {"kernel": "rbf", "n_particles": 20, "solver": "descent"}])
def test_seconds_are_kept_with_a_slow_score(how):
    def slow(x):
        time.sleep(0.005)
        return -np.asarray(x)

    slow_target = sm.Target(score=slow, dim=2)
    sm.fit(slow_target, progress=False, max_gradients=1, **how)  # compiles
    started = time.monotonic()
    found = sm.fit(slow_target, progress=False, max_seconds=0.5, **how)
    assert "max_seconds=0.5" in found.reason and time.monotonic() - started < 10.0


def test_gradients_are_kept_to_a_batch(target):
    assert sm.fit(target, max_gradients=1, progress=False).n_gradients <= 64


class InterruptedAtOnce(sm.Descent):
    def init(self, problem, particles):
        raise KeyboardInterrupt


def test_an_interrupt_before_the_first_step_returns_the_start(target):
    start = np.random.default_rng(0).normal(size=(5, 2))
    problem = Problem(target, sm.RBF(), jnp.full(5, 0.2))
    solver = InterruptedAtOnce()  # type: ignore[call-arg]
    found = solver.solve(problem, jnp.asarray(start), Budget(), lambda iterate: None)
    assert found.interrupted and "interrupted" in found.reason
    np.testing.assert_array_equal(found.particles, start)


@pytest.mark.parametrize("f", [lambda x: None, lambda x: "a", lambda x: {"a": x}, lambda x: 1j * x[0]])
def test_queries_of_what_is_no_number(fit, f):
    for ask in (fit.expectation, fit.query):
        with pytest.raises((ValueError, TypeError), match=r"f must (return|be)"):
            ask(f)


# -- starts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [2**64, -1, True])
def test_seeds(target, seed):
    for call in (lambda: sm.fit(target, seed=seed), lambda: sm.ksd(target, np.ones((3, 2)), seed=seed)):
        with pytest.raises(ValueError, match="seed must be a whole number"):
            call()


def test_more_particles_than_memory(target):
    with pytest.raises(ValueError, match="more than a quarter of the"):
        sm.fit(target, 10**12, kernel="rbf")
    with pytest.raises(ValueError, match="at most 262,144 draws"):
        sm.fit(target, 10**12)


def test_coinciding_particles_never_converge(target):
    with pytest.raises(ValueError, match="all 10 particles are the same point"):
        sm.fit(target, init=np.zeros((10, 2)), kernel="rbf")
    problem = Problem(target, sm.RBF(), jnp.full(4, 0.25))
    found = sm.Descent().solve(problem, jnp.zeros((4, 2)), Budget(), lambda iterate: None)
    assert not found.converged and "same point" in found.reason


def test_ensure_rank_keeps_the_given_start(target):
    start = np.repeat(np.array([[50.0, 50.0], [51.0, 49.0]]), 2, axis=0)
    found = sm.fit(target, init=start, kernel="linear", solver="affine", max_steps=1, ensure_rank=True, progress=False)
    assert len(found.particles) > 4 and "ran again with n=6" in found.reason


def test_annealing_that_blows_up_is_a_result(target):
    import optax

    solver = sm.Annealed(20, 2, rule=optax.sgd(1e200))
    found = sm.fit(target, 6, kernel="rbf", solver=solver, progress=False)
    assert not found.converged and "non-finite" in found.reason and np.isfinite(found.particles).all()


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chain", "draw", "a\nb", "\ud800"])
def test_names_that_no_file_can_hold(name):
    with pytest.raises(ValueError, match="cannot name a parameter"):
        sm.Target(normal, dim=2, constrain=lambda x: {name: x})
    with pytest.raises(ValueError, match="cannot name a parameter"):
        sm.Target(normal, dim=2, names=["a", name])


def test_odd_names_survive_files_and_pictures(tmp_path):
    names = ("a/b", "</script>", "$\\frac{", "λ", "a b", "%s")
    odd = sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=6, constrain=lambda x: dict(zip(names, x, strict=True)))
    found = sm.fit(odd, progress=False)
    found.save(tmp_path / "fit.nc")
    found.plot(tmp_path / "fit.png")
    assert set(sm.load(tmp_path / "fit.nc").summary().names) == set(names)


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_found(fit, tmp_path):
    fit.save(tmp_path / "fit.nc")
    content = bytearray((tmp_path / "fit.nc").read_bytes())
    place = content.find(np.ascontiguousarray(fit.particles[5]).tobytes())
    assert place > 0
    content[place + 6] ^= 1
    (tmp_path / "bad.nc").write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        sm.load(tmp_path / "bad.nc")


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_every_kernel_of_the_library_comes_back(name):
    kernel = held(name)
    if "user" in name or name == "features sum":
        with pytest.raises(NotBuiltIn):
            taken_apart(kernel, "kernel")
        return
    structure, arrays = taken_apart(kernel, "kernel")
    again = put_together(json.loads(json.dumps(structure)), arrays)
    x, y = jnp.asarray(PARTICLES[:2])
    np.testing.assert_array_equal(np.asarray(again(x, y)), np.asarray(kernel(x, y)))


def test_a_kernel_of_the_users_own_is_asked_for(target, tmp_path):
    own = sm.FeatureKernel(lambda x: jnp.concatenate([jnp.ones(1), x]))
    found = sm.fit(target, 8, kernel=own, progress=False)
    found.save(tmp_path / "fit.nc")
    with pytest.raises(ValueError, match="kernel of your own, FeatureKernel"):
        _ = sm.load(tmp_path / "fit.nc", target=target).certificate
    assert sm.load(tmp_path / "fit.nc", target=target, kernel=found.kernel).certificate.rank == 3


def test_permissions_links_devices_and_parts(tmp_path):
    os.umask(before := os.umask(0o022))
    write_whole(tmp_path / "a", "x")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~before
    (tmp_path / "link").symlink_to(tmp_path / "a")
    write_whole(tmp_path / "link", "y")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "a").read_text() == "y"
    with pytest.raises(ValueError, match="not a plain file"):
        write_whole("/dev/null", "x")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stale = tmp_path / f".a.{gone.pid}.part"
    stale.write_text("half")
    write_whole(tmp_path / "a", "z")
    assert not stale.exists()


def test_folders_are_tried_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write into"):
        check_folder(tmp_path / "file" / "out")
    with (
        only_one(tmp_path, "run"),
        pytest.raises(ValueError, match="another run is at work"),
        only_one(tmp_path, "run"),
    ):
        pass


def test_pickle_or_a_sentence(fit):
    import pickle

    with pytest.raises(TypeError, match=r"fit\.save"):
        pickle.dumps(sm.fit(sm.Target(lambda x: -jnp.sum(x**2), dim=1), progress=False))
    again = pickle.loads(pickle.dumps(fit))
    np.testing.assert_array_equal(again.particles, fit.particles)


def test_memory_of_many_targets_is_given_back():
    """Compiled functions of other targets push out those of old ones."""
    from steinmatch.targets import Evaluations, compiled

    for k in range(40):
        Evaluations(sm.Target(lambda x, k=k: -k * jnp.sum(x**2), dim=1), 1)(np.zeros((1, 1)))
    assert len(compiled._COMPILED) <= compiled._KEPT
