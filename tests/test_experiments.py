"""Small versions of the paper's experiments: tables, figures, resume."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from steinmatch import experiments
from steinmatch.experiments import condition, exactness, gaussian, methods, mixture, rate, rbm, sweep
from steinmatch.experiments.methods import Settings
from steinmatch.experiments.store import Cell, Store, to_json
from steinmatch.experiments.workers import compute_in_processes
from steinmatch.targets import Gaussian

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
    patch.setattr(methods, "RATES", (0.5,))
    for module in (gaussian, condition, rbm):
        patch.setattr(module, "DIM", 5)
        patch.setattr(module, "QUICK_GRID", (3, 12) if module is rbm else (3, 4, 12))
    patch.setattr(condition, "QUICK_CONDITIONS", (10.0, 100.0))
    patch.setattr(rbm, "HIDDEN", 3)
    patch.setattr(mixture, "SIZES", {mixture.SMALL: (3, 12)})
    patch.setattr(rate, "QUICK_GRID", (4, 8))
    patch.setattr(rate, "QUICK_PARTICLES", 24)
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

    def counted(*args, **given):
        calls.append(args)
        return measure(*args, **given)

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
    monkeypatch.setattr(methods, "RATES", (0.5,))
    measure, calls = sweep.measure, []

    def interrupted(*args, **given):
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measure(*args, **given)

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


def test_the_rate_of_descent_is_the_best_of_those_tried(monkeypatch):
    """A narrow target, on which large rates do not settle."""
    monkeypatch.setattr(methods, "RATES", (1e-6, 0.5))
    monkeypatch.setattr(methods, "DESCENT_STEPS", 200)
    target = Gaussian(np.zeros(2), np.eye(2))
    assert methods.tuned_rate(lambda value, trial: target, [(1.0, 6)], methods.LINEAR, Settings()) == 0.5


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
