"""The README's code and commands, as a user runs them: in processes of their own, JAX in its default mode."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()

# What the README's examples take as given, and each of its statements after that.
SCRIPT = """
import ast, warnings
from pathlib import Path
import arviz, jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
import steinmatch as sm
warnings.simplefilter("ignore")
assert not jax.config.jax_enable_x64
rng = np.random.default_rng(0)

def regression(X, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("row", len(X)):
        numpyro.sample("y", dist.Normal(X @ b, tau), obs=y)

X = rng.normal(size=(30, 2))
y, y_new = X.T + rng.normal(size=(2, 30))
draws = rng.normal(size=(400, 2)) * [1.0, 2.0]
own = {"model": regression, "X": X, "X_new": X[:5], "y_new": y_new, "draws": draws, "az": arviz}
own["mcmc"] = {"a": draws[:, 0], "b": draws[:, 1]}
own["target"] = sm.Target(lambda x: -0.5 * jnp.sum(x**2 / jnp.array([1.0, 4.0])), dim=2, names=["a", "b"])
for block in Path("blocks.txt").read_text().split("\\0"):
    if "from_numpyro" in block:
        own["y"] = y
    for statement in ast.parse(block).body:
        code = ast.unparse(statement)
        own["fit_a"] = own["fit_b"] = own.get("fit")
        print(">>>", code, flush=True)
        exec(compile(ast.Module([statement], []), "README", "exec"), own)
exact = own["fit"].query(own["cubic"]).exact, own["fit"].refine_for(own["cubic"]).query(own["cubic"]).exact
assert own["query"].exact and exact == (False, True), exact
"""


def run(command, folder):
    settings = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout[-9000:] + done.stderr[-3000:]


def test_python_blocks(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 5
    (tmp_path / "blocks.txt").write_text("\0".join(blocks))
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    code, text = run([sys.executable, "script.py"], tmp_path)
    assert code == 0, text
    # The table that is shown is the one that is printed, to three standard errors on another machine.
    for name in ("mu", "tau"):
        shown, printed = (re.search(rf"^ *. {name} .*$", part, re.MULTILINE) for part in (README, text))
        assert shown is not None and printed is not None, text
        (mean, sd), (other, _) = (re.findall(r"-?\d+\.\d+", found[0])[:2] for found in (shown, printed))
        assert abs(float(mean) - float(other)) < 0.03 * float(sd)


@pytest.mark.parametrize("kind", ["py", "stan"])
def test_fit_commands(kind, tmp_path):
    if kind == "stan" and shutil.which("g++") is None:
        pytest.skip("a Stan program needs a C++ compiler")
    (line,) = re.findall(rf"^    steinmatch (fit examples/eight_schools\.{kind}.*)$", README, re.MULTILINE)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    code, text = run([sys.executable, "-m", "steinmatch", *line.split()], tmp_path)
    assert code == 0 and "tau" in text, text
