"""Small versions of the paper's experiments: tables, resume, and claims that can fail."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steinmatch import experiments
from steinmatch.experiments import condition, exactness, gaussian, methods, mixture, rate, rbm, sweep
from steinmatch.experiments.claims import Claim, markdown
from steinmatch.experiments.methods import LINEAR, LINEAR_RANDOM, MONTE_CARLO, RBF_SVGD, Settings
from steinmatch.experiments.store import Cell, Results, Store, to_json
from steinmatch.experiments.workers import compute_in_processes

OUTPUTS = {
    "gaussian": ("gaussian",),
    "condition": ("condition", "condition_n"),
    "mixture": ("mixture",),
    "rbm": ("rbm",),
    "rate": ("rate",),
    "exactness": ("exactness",),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """All experiments in 5 dimensions, one trial, few steps; the folder and the claims."""
    patch = pytest.MonkeyPatch()
    patch.setattr(methods, "DESCENT_STEPS", 100)
    for module in (gaussian, condition, rbm):
        patch.setattr(module, "DIM", 5)
        patch.setattr(module, "QUICK_GRID", (3, 12))
    patch.setattr(condition, "QUICK_CONDITIONS", (1.0, 10.0))
    patch.setattr(rbm, "HIDDEN", 3)
    patch.setattr(mixture, "SIZES", {mixture.SMALL: (3, 12)})
    patch.setattr(rate, "QUICK_GRID", (4, 8))
    out = tmp_path_factory.mktemp("experiments")
    claims = experiments.run("all", out, quick=True, progress=False)
    yield out, claims
    patch.undo()


def read(path: Path) -> list[dict]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", list(OUTPUTS))
def test_tables_and_figures(small, name):
    out, _ = small
    rows = read(out / f"{name}.csv")
    assert tuple(rows[0]) == tuple(experiments.EXPERIMENTS[name].columns) and len(rows) > 4
    for stem in OUTPUTS[name]:
        for kind in ("png", "svg"):
            assert (out / f"{stem}.{kind}").stat().st_size > 5000
    assert not list(out.rglob("*.part*"))


def test_every_claim_is_evaluated(small):
    out, claims = small
    assert {claim.number for claim in claims} == set(range(1, 17))
    text = (out / "claims.md").read_text()
    page = (out / "index.html").read_text()
    for claim in claims:
        assert claim.measured in text
        assert "nan" not in claim.measured
    assert "gaussian.png" in page and page.count("<tr>") == len(claims)


def test_finished_cells_are_not_run_again_and_the_numbers_stay(small, monkeypatch):
    out, _ = small
    before = (out / "rbm.csv").read_text()
    lost = sorted((out / "cells" / "rbm").glob("*.json"))[:2]
    (kept,) = [path for path in lost[1:]]
    lost[0].unlink()
    kept.write_text(kept.read_text()[:40])  # as a crash without atomic writes would leave it
    calls = []
    measure = sweep.measure

    def counted(*args):
        calls.append(args)
        return measure(*args)

    monkeypatch.setattr(sweep, "measure", counted)
    rbm.run(out, quick=True, progress=False)
    assert len(calls) == 2
    drop = len(sweep.COLUMNS) - 1  # the last column is the seconds
    numbers = [line.rsplit(",", 1)[0] for line in before.splitlines()]
    again = [line.rsplit(",", 1)[0] for line in (out / "rbm.csv").read_text().splitlines()]
    assert sweep.COLUMNS[drop] == "seconds" and numbers == again
    assert "(Gaussian, all n)" in (out / "claims.md").read_text()  # the other experiments' claims are still there


def test_an_interrupted_run_keeps_what_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(gaussian, "DIM", 3)
    monkeypatch.setattr(gaussian, "QUICK_GRID", (2, 6))
    monkeypatch.setattr(methods, "DESCENT_STEPS", 50)
    measure, calls = sweep.measure, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measure(*args)

    monkeypatch.setattr(sweep, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gaussian.run(tmp_path, quick=True, progress=False)
    assert len(list((tmp_path / "cells" / "gaussian").glob("*.json"))) == 3
    gaussian.run(tmp_path, quick=True, progress=False)
    # Left at n = 2 <= d + 1: linear by our solver, and linear again for linear+random by descent; at n = 6: all six.
    assert len(calls) == 4 + 2 + 6


def test_other_settings_are_other_cells(tmp_path):
    store = Store(tmp_path)
    store.write(Cell("a", {"seed": 0}, list), [{"x": 1.5}])
    assert store.rows(Cell("a", {"seed": 0}, list)) == [{"x": 1.5}]
    assert store.rows(Cell("a", {"seed": 1}, list)) is None


def planted(change) -> list[dict]:
    """A table on which all claims of Figure 1 hold, and what `change` makes of its rows."""
    rows = []
    for n in (gaussian.DIM - 1, gaussian.DIM + 1, gaussian.DIM + 50):
        above = n > gaussian.DIM
        for method, solver in (
            (MONTE_CARLO, "exact draws"),
            (RBF_SVGD, "descent"),
            (LINEAR, "newton"),
            (LINEAR_RANDOM, "newton"),
        ):
            exact = above and method in (LINEAR, LINEAR_RANDOM)
            row = {
                "panel": "gaussian",
                "value": n,
                "method": method,
                "solver": solver,
                "trial": 0,
                "mse_mean": 1.0 / n if method == MONTE_CARLO else 1e-30,
                "mse_second": 1e-28 if exact else 0.5,
                "variance": 1.0 if exact else 0.4,
            }
            rows.append(change(row))
    return rows


def broken(number, method, **values):
    def change(row):
        return {**row, **values} if row["method"] == method and row["value"] > gaussian.DIM else row

    return pytest.param(number, change, id=f"claim {number}")


def test_claims_hold_on_a_true_result():
    assert all(claim.holds for claim in gaussian.claims(Results(planted(lambda row: row))))


@pytest.mark.parametrize(
    ("number", "change"),
    [
        broken(1, RBF_SVGD, mse_mean=0.01),
        broken(2, LINEAR_RANDOM, mse_second=0.4),
        broken(3, LINEAR, mse_second=1e-15),
        broken(4, RBF_SVGD, variance=0.99),
        pytest.param(5, lambda row: {**row, "variance": 1.01} if row["value"] < gaussian.DIM else row, id="claim 5"),
        broken(6, LINEAR, variance=1.001),
    ],
)
def test_claims_fail_on_a_planted_false_result(number, change):
    verdicts = {claim.number: claim.holds for claim in gaussian.claims(Results(planted(change)))}
    assert not verdicts[number]


def test_slopes_are_those_of_a_power_law():
    rows = [{"m": m, "ksd": 3.0 * m**-0.7, "target": "t"} for m in (4, 8, 16, 32)]
    slope, half = rate.slope(Results(rows), "ksd", target="t")
    assert slope == pytest.approx(-0.7, abs=1e-12) and half < 1e-10


def test_rate_claim_fails_for_a_flat_discrepancy(small):
    out, _ = small
    rows = [
        {**row, **{k: float(v) for k, v in row.items() if k not in ("target", "method", "converged") and v}}
        for row in read(out / "rate.csv")
    ]
    flat = [{**row, "ksd": 0.1, "bound_ksd": float(row["bound_ksd"] or 1.0)} for row in rows]
    verdicts = [claim for claim in rate.claims(Results(flat)) if "KSD falls" in claim.text]
    assert len(verdicts) == 1 and not verdicts[0].holds


def test_exactness_claims_fail_for_large_averages_and_lost_rank(small):
    out, _ = small
    rows = [
        {
            **row,
            "error": 0.1 if row["error"] else None,
            "residual": float(row["residual"]),
            "rank_condition": False,
        }
        for row in read(out / "exactness.csv")
    ]
    assert not any(claim.holds for claim in exactness.claims(Results(rows)))


def test_failed_claims_are_explained():
    text = markdown([Claim(3, "a", "1e-3", False, "because"), Claim(1, "b", "2", True)], "Claims")
    assert text.index("| 1 |") < text.index("| 3 |") and "**does not hold**" in text and "(3) a: because" in text


def test_the_command_names_what_it_does_not_know():
    command = [str(Path(sys.executable).parent / "steinmatch"), "reproduce", "gausian"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "gaussian" in result.stderr


def test_processes_compute_the_same_cells(tmp_path):
    """Two cells in two processes, against the same cells here."""
    settings = Settings(trials=1, quick=True)
    cells = exactness.EXPERIMENT.cells(settings)[:2]
    work = [("exactness", 0), ("exactness", 1)]
    assert sorted(compute_in_processes(work, settings, tmp_path, 2)) == work
    assert "NPROC" not in os.environ
    for cell in cells:
        here = json.loads(to_json(cell.compute()))
        there = Store(tmp_path / "cells" / "exactness").rows(cell)
        assert there is not None and len(there) == len(here) > 0
        for a, b in zip(here, there, strict=True):
            for name, value in a.items():
                if isinstance(value, float) and abs(value) > 1e-6 and name != "seconds":
                    assert b[name] == pytest.approx(value, rel=1e-6), name
                elif not isinstance(value, float):
                    assert b[name] == value, name
