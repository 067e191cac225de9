"""The demonstration of `make demo`: eight schools by the command line, then the paper's first figure, quickly.

python examples/demo.py --out out/demo
"""

import argparse
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent


def run(*arguments: str) -> None:
    """`steinmatch ...`, shown and run."""
    print("\n$ steinmatch", *arguments, flush=True)
    code = subprocess.run([sys.executable, "-m", "steinmatch", *arguments], check=False).returncode
    if code not in (0, 3):
        raise SystemExit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    out = parser.parse_args().out
    run("fit", str(EXAMPLES / "eight_schools.py"), "--out", str(out / "eight_schools"))
    run("reproduce", "gaussian", "--quick", "--out", str(out / "reproduce"))
    print(
        f"""
Where to look next:
  {out / "eight_schools" / "report.html"}     the report page: open it in a browser
  {out / "eight_schools" / "particles.png"}   the particles in pairs
  {out / "eight_schools" / "fit.nc"}          the same for ArviZ: az.from_netcdf, or steinmatch.load
  {out / "reproduce" / "index.html"}          the paper's Figure 1 and its claims, checked
  steinmatch fit --help                       your own model: Python, NumPyro, PyMC or Stan
  steinmatch reproduce all --quick            all experiments of the paper"""
    )


if __name__ == "__main__":
    main()
