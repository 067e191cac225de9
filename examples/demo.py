"""The demonstration of `make demo`: a hierarchical model, draws of NUTS sharpened, the paper's first figure, quickly.

python examples/demo.py --out out/demo
"""

import argparse
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent


def run(shown: str, *arguments: str) -> None:
    """A command, shown and run."""
    print(f"\n$ {shown}", flush=True)
    code = subprocess.run([sys.executable, *arguments], check=False).returncode
    if code not in (0, 3):
        raise SystemExit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    out = parser.parse_args().out
    groups = ("--out", str(out / "hierarchical"))
    run("python examples/hierarchical.py", str(EXAMPLES / "hierarchical.py"), *groups)
    gaussian = ("reproduce", "gaussian", "--quick", "--out", str(out / "reproduce"))
    run(f"steinmatch {' '.join(gaussian)}", "-m", "steinmatch", *gaussian)
    print(
        f"""
Where to look next:
  {out / "reproduce" / "index.html"}             the paper's Figure 1 and its claims, checked
  {out / "hierarchical" / "particles.png"}       the posterior in pairs
  {out / "hierarchical" / "fit.nc"}              the same for ArviZ: az.from_netcdf, or steinmatch.load
  steinmatch fit --help                          your own model: Python, NumPyro, PyMC or Stan
  steinmatch play banana                         solvers at work, to watch
The report page of the fit, with NUTS beside it, for your browser:
  {out / "hierarchical" / "report.html"}"""
    )


if __name__ == "__main__":
    main()
