"""The package itself: what an import brings, and that it tells one version."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import steinmatch as sm

ROOT = Path(__file__).parents[1]
HEAVY = ("numpyro", "matplotlib", "arviz", "typer", "blackjax", "pymc", "pyarrow")


def test_an_import_brings_no_more_than_it_needs():
    code = f"import sys, steinmatch; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_there_is_one_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [sm.__version__]


@pytest.mark.slow
def test_a_wheel_holds_what_the_package_needs(tmp_path):
    """Code, pages and Stan's C++ parts: all that stands under src."""
    hatchling = pytest.importorskip("hatchling.builders.wheel")
    built = next(hatchling.WheelBuilder(str(ROOT)).build(directory=str(tmp_path)))
    import zipfile

    inside = {name for name in zipfile.ZipFile(built).namelist() if name.startswith("steinmatch/")}
    source = ROOT / "src"
    there = {str(p.relative_to(source)) for p in source.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert inside == there
