"""Answers on the model's own scale and by name, against closed forms of log-normal and normal parameters."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import steinmatch as sm
from steinmatch.measures.weights import Layout
from steinmatch.records.moments import Draws, interval, probability

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import arviz as az

TAU = scipy.stats.lognorm(s=0.5)
B = scipy.stats.norm(np.array([1.0, -2.0, 0.0]), np.array([1.0, 2.0, 0.5]))


def log_density(p):
    tau = -0.5 * (jnp.log(p["tau"]) / 0.5) ** 2 - jnp.log(p["tau"])
    return tau - 0.5 * jnp.sum(((p["b"] - B.mean()) / B.std()) ** 2)


@pytest.fixture(scope="module")
def fit():
    target = sm.Target.from_parameters({"b": (3,), "tau": sm.positive}, log_density)
    return sm.fit(target, solver=sm.Walk(least_draws=4096), progress=False)


def within(found, truth, error):
    """Within five standard errors, each of which is small."""
    assert np.all(np.asarray(error) > 0.0)
    np.testing.assert_array_less(np.abs(np.asarray(found) - truth), 5.0 * np.asarray(error))


def test_moments_by_name(fit):
    assert fit.target.names == fit.names == ("b[0]", "b[1]", "b[2]", "tau")
    np.testing.assert_allclose(fit.mean["b"], B.mean(), atol=0.02)
    np.testing.assert_allclose(fit.sd["b"], B.std(), rtol=0.02)
    assert fit.mean["tau"] == pytest.approx(TAU.mean(), rel=0.02)
    assert fit.sd["tau"] == pytest.approx(TAU.std(), rel=0.02)
    np.testing.assert_allclose(np.asarray(fit.mean), [*fit.mean["b"], fit.mean["tau"]])
    with pytest.raises(KeyError, match="no parameter 'nu'; there are b, tau"):
        fit.mean["nu"]


def test_unconstrained_moments(fit):
    np.testing.assert_allclose(fit.unconstrained.mean, [*B.mean(), 0.0], atol=0.03)
    np.testing.assert_allclose(fit.unconstrained.sd, [*B.std(), 0.5], rtol=0.02)
    np.testing.assert_allclose(fit.cov, np.diag(fit.unconstrained.sd**2), atol=0.1)
    np.testing.assert_allclose(fit.unconstrained.mean, fit.weights @ fit.particles)


def test_quantiles(fit):
    found = fit.quantile([0.05, 0.5, 0.95])
    assert found["b"].shape == (3, 3) and found["tau"].shape == (3,)
    np.testing.assert_allclose(found["tau"], TAU.ppf([0.05, 0.5, 0.95]), rtol=0.06)
    np.testing.assert_allclose(fit.quantile(0.5)["b"], B.mean(), atol=0.15)
    for bad in (1.5, "a", [[0.1]], []):
        with pytest.raises(ValueError, match=r"quantile|could not convert"):
            fit.quantile(bad)


def test_intervals_and_their_errors(fit):
    low, high = found = fit.interval(0.9)
    errors = found.error
    within(low["tau"], TAU.ppf(0.05), errors[0]["tau"])
    within(high["b"], B.ppf(0.95), errors[1]["b"])
    assert np.all(errors[1]["b"] < 0.15 * B.std())
    np.testing.assert_array_equal(found["tau"], [low["tau"], high["tau"]])


def test_highest_density_intervals(fit):
    """Of a log-normal: both ends of equal density, found by root finding."""
    ends = scipy.optimize.root(
        lambda x: [TAU.cdf(x[1]) - TAU.cdf(x[0]) - 0.8, np.log(TAU.pdf(x[1]) / TAU.pdf(x[0]))], [0.4, 1.8]
    ).x
    found = fit.interval(0.8, kind="hdi")
    within(found.low["tau"], ends[0], found.error[0]["tau"])
    within(found.high["tau"], ends[1], found.error[1]["tau"])
    assert found.high["tau"] < fit.interval(0.8).high["tau"]
    with pytest.raises(ValueError, match=r"Did you mean 'hdi'"):
        fit.interval(0.8, kind="hdi ")
    with pytest.raises(ValueError, match="between 0 and 1, got 90"):
        fit.interval(90.0)


def test_expectations_probabilities_and_queries(fit):
    difference = fit.expectation(lambda p: p["b"][0] - p["b"][1])
    assert difference == pytest.approx(3.0, abs=0.05)
    found = fit.probability(lambda p: p["tau"] > 2.0)
    within(float(found), TAU.sf(2.0), found.error)
    assert found.error < 0.02 and "±" in str(found)
    rare = fit.probability(lambda p: p["tau"] > 100.0)
    assert rare == 0.0 and rare.error > 0.0
    asked = fit.query(lambda p: p["b"][0] - p["b"][1])
    assert asked.estimate == pytest.approx(3.0, abs=1e-2) and asked.error < 0.05
    with pytest.raises(ValueError, match="one truth value"):
        fit.probability(lambda p: p["tau"])
    with pytest.raises(ValueError, match="a dict of b, tau"):
        fit.expectation(lambda p: p["nu"])


def test_queries_are_from_all_draws_and_know_what_is_exact(fit):
    """Stein weights make linear functions of normal coordinates exact; others have an error that holds, no larger than
    that of the average.
    """
    linear = fit.query(lambda p: jnp.stack([p["b"][0], 2.0 * p["b"][1] - 1.0, 3.0 + 0.0 * p["tau"]]))
    np.testing.assert_allclose(linear.estimate[:2], [B.mean()[0], 2.0 * B.mean()[1] - 1.0], atol=1e-6)
    assert linear.exact.all() and np.all(linear.error < 1e-6) and linear.estimate[2] == pytest.approx(3.0)
    functions = {
        "square": (lambda p: p["tau"] ** 2, TAU.moment(2)),
        "fourth": (lambda p: p["b"][0] ** 4, 3.0 + 6.0 + 1.0),  # of N(1, 1)
        "tail": (lambda p: jnp.where(p["tau"] > 1.5, 1.0, 0.0), TAU.sf(1.5)),
    }
    for f, truth in functions.values():
        found = fit.query(f)
        assert not found.exact and abs(found.estimate - truth) <= 3.0 * found.error
        spread = fit.query(lambda p, f=f, truth=truth: (f(p) - truth) ** 2).estimate
        assert 0.0 < found.error < 2.0 * np.sqrt(spread / len(fit.particles))  # twice that of independent draws


def test_errors_of_probabilities_hold():
    """Chains of a normal autoregression: the stated error of P(x > 1) against that seen over 200 repetitions."""
    rng, t, groups, rho = np.random.default_rng(0), 40, 32, 0.8
    found = []
    for _ in range(200):
        x = rng.normal(size=groups)
        rows = []
        for _ in range(t):
            x = rho * x + np.sqrt(1.0 - rho**2) * rng.normal(size=groups)
            rows.append(x)
        values = np.concatenate(rows)[:, None]
        draws = Draws(values, np.full(len(values), 1.0 / len(values)), Layout(t, groups, 1))
        found.append(probability(draws, (values[:, 0] > 1.0).astype(float)))
    truth = scipy.stats.norm.sf(1.0)
    seen = np.sqrt(np.mean((np.array(found, float) - truth) ** 2))
    assert np.mean([one.error for one in found]) == pytest.approx(seen, rel=0.15)


def test_errors_of_densest_intervals_hold():
    """Independent exponential draws: the stated error of the upper end against that seen over 60 repetitions."""
    rng, target = np.random.default_rng(1), sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=1)
    ends, errors = [], []
    for _ in range(60):
        values = rng.exponential(size=(1000, 1))
        found = interval(target, Draws(values, np.full(1000, 1e-3), None), 0.5, "hdi")
        ends.append(found.high[0])
        errors.append(found.error[1][0])
    seen = np.sqrt(np.mean((np.array(ends) - np.log(2.0)) ** 2))
    assert 0.6 * seen < np.mean(errors) < 2.0 * seen


def test_summary_selects_and_shows(fit):
    frame = fit.summary(["tau", "b"]).to_frame()
    assert list(frame.index) == ["tau", "b[0]", "b[1]", "b[2]"]
    assert list(frame.columns) == ["mean", "sd", "5%", "50%", "95%", "error", "sd_error"]
    assert frame.loc["tau", "error"] == pytest.approx(fit.error.mean[3] * fit.sd["tau"])
    assert frame.loc["tau", "sd_error"] == pytest.approx(fit.error.sd[3] * fit.sd["tau"])
    assert fit.summary("~b").names == ("tau",)
    assert fit.summary("ta", filter_vars="like").names == ("tau",)
    assert fit.summary("^b$", filter_vars="regex").names == ("b[0]", "b[1]", "b[2]")
    html = fit.summary("b[1]")._repr_html_()
    assert "<th>b[1]</th>" in html and "error of mean" in html and "b[0]" not in html
    with pytest.raises(ValueError, match="no parameter 'nu'; there are b"):
        fit.summary("nu")
    with pytest.raises(ValueError, match='"like" or "regex"'):
        fit.summary("b", filter_vars="glob")


def test_pictures_show_scalars_first(fit, tmp_path):
    titles = [axis.get_title().split(":")[0] for axis in fit.plot().axes if axis.get_title()]
    assert titles == ["tau", "b[0]", "b[1]", "b[2]"]
    for picture in (fit.plot(parameters="b"), fit.plot("b"), fit.plot("b", tmp_path / "b.png")):
        chosen = [axis.get_title().split(":")[0] for axis in picture.axes if axis.get_title()]
        assert chosen == ["b[0]", "b[1]", "b[2]"]
    fit.plot(str(tmp_path / "all.png"))
    fit.plot(tmp_path / "some.svg", ["tau"])
    assert {found.name for found in tmp_path.iterdir()} == {"b.png", "all.png", "some.svg"}


def test_records_show_themselves_as_tables(fit):
    summary = fit.summary("b")
    assert repr(summary) == str(summary) and "error of mean" in repr(summary)
    sharpened = sm.sharpen(fit.particles, fit.target)
    assert "sharpened" in repr(sharpened) and "<pre" in sharpened._repr_html_() and "tau" in sharpened._repr_html_()
    beside = sm.compare(fit, fit.particles)
    assert "of the draws" in repr(beside) and "<pre" in beside._repr_html_()


@pytest.mark.filterwarnings("ignore")
def test_a_fit_beside_another_samplers_draws(fit, tmp_path):
    """Independent exact draws agree; the same with one mean shifted by a fifth of an sd do not."""
    rng = np.random.default_rng(1)
    draws = {"b": B.rvs((4, 500, 3), random_state=rng), "tau": TAU.rvs((4, 500), random_state=rng)}
    beside = sm.compare(fit, az.from_dict(posterior=draws))
    assert beside.agree and beside.apart.shape == (4, 2) and "they agree" in str(beside)
    off = {**draws, "b": draws["b"] + np.array([0.0, 0.4, 0.0])}
    beside = sm.compare(fit, az.from_dict(posterior=off))
    assert not beside.agree and np.argmax(beside.apart.max(axis=1)) == 1 and "DISAGREE" in str(beside)
    beside.report(tmp_path / "beside.html")
    page = (tmp_path / "beside.html").read_text()
    assert "DISAGREE" in page and "mean of the draws" in page and "largest gap in errors" in page


def test_predictions_have_weights_or_are_resampled(fit):
    weighted = fit.predict(lambda p: p["tau"] * p["b"][1])
    resampled = fit.predict(lambda p: p["tau"] * p["b"][1], resample=True)
    truth = TAU.mean() * B.mean()[1]
    assert fit.weights @ weighted == pytest.approx(truth, rel=0.05)
    assert np.mean(resampled) == pytest.approx(float(fit.weights @ weighted), rel=0.02)
    assert set(np.round(resampled, 9)) <= set(np.round(weighted, 9))


@pytest.mark.filterwarnings("ignore")
def test_arviz_says_no_less_than_our_errors(fit):
    """ArviZ's Monte Carlo standard errors know nothing of Stein weights, which take most of the errors away."""
    table = az.summary(fit.to_arviz(resample=True), round_to="none")
    names = list(fit.names)
    mcse = table.loc[names, "mcse_mean"].to_numpy() / table.loc[names, "sd"].to_numpy()
    assert np.all(fit.error.mean <= 2.0 * mcse) and np.all(mcse < 5.0 / np.sqrt(len(fit.particles)))


def test_a_loaded_fit_answers_the_same(fit, tmp_path):
    fit.save(tmp_path / "fit.nc")
    loaded = sm.load(tmp_path / "fit.nc")
    np.testing.assert_array_equal(loaded.mean["b"], fit.mean["b"])
    assert loaded.probability(lambda p: p["tau"] > 2.0) == fit.probability(lambda p: p["tau"] > 2.0)
    assert loaded.interval(0.9).error[0]["tau"] == fit.interval(0.9).error[0]["tau"]
    asked = loaded.query(lambda p: p["tau"])  # without scores: the weighted average, with an error that is larger
    assert asked.estimate == pytest.approx(loaded.mean["tau"]) and asked.error > fit.query(lambda p: p["tau"]).error
    with pytest.raises(ValueError, match="loaded without its target"):
        _ = loaded.certificate


def test_a_vector_stays_a_vector():
    target = sm.Target(lambda x: -0.5 * jnp.sum((x - 1.0) ** 2), dim=2)
    fit = sm.fit(target, 20, kernel="linear", progress=False)
    assert target.names == ("x[0]", "x[1]")
    np.testing.assert_allclose(fit.mean, [1.0, 1.0], atol=1e-8)
    np.testing.assert_allclose(fit.mean, fit.unconstrained.mean)
    low, high = fit.interval(0.5)
    assert low.shape == high.shape == (2,) and fit.interval(0.5).error is None
    assert fit.probability(lambda x: x[0] > 100.0).error is None
