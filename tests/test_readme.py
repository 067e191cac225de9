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
import ast, shutil, sys, warnings
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
import steinmatch as sm
warnings.simplefilter("ignore")
root, with_stan = Path(sys.argv[1]), sys.argv[2] == "1"
assert not jax.config.jax_enable_x64
rng = np.random.default_rng(0)
data = rng.normal(1.0, 1.0, size=20)

def numpyro_model(y):
    numpyro.sample("y", dist.Normal(numpyro.sample("a", dist.Normal(0.0, 10.0)), 1.0), obs=y)

def regression(X, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("row", len(X)):
        numpyro.sample("y", dist.Normal(X @ b, tau), obs=y)

def pymc_model():
    import pymc as pm
    with pm.Model() as found:
        pm.Normal("y", pm.Normal("a", 0.0, 10.0), 1.0, observed=data)
    return found

def log_density(p):
    return -0.5 * p["mu"] ** 2 - p["tau"] - 0.5 * jnp.sum((p["theta"] - p["mu"]) ** 2)

def tree_density(p):
    return -0.5 * jnp.sum(p["w"] ** 2) - 0.5 * jnp.sum(p["b"] ** 2)

shutil.copy(root / "examples/eight_schools.stan", "model.stan")
shutil.copy(root / "examples/eight_schools.json", "data.json")
own = {"log_density": log_density, "args": (data,), "kwargs": {}, "f": lambda x: x[0], "kernel": sm.Linear()}
own |= {"draws": rng.normal(size=(400, 2)) * [1.0, 2.0], "particles": rng.normal(size=(20, 2)), "sm": sm}
import arviz
X = rng.normal(size=(30, 2))
y, y_new = X.T + rng.normal(size=(2, 30))
own |= {"jnp": jnp, "az": arviz, "X": X, "y": y, "X_new": X[:5], "y_new": y_new}
own |= {"mcmc": {"a": own["draws"][:, 0], "b": own["draws"][:, 1]}}
for block in Path("blocks.txt").read_text().split("\\0"):
    for statement in ast.parse(block).body:
        code = ast.unparse(statement)
        if "from_stan" in code and not with_stan:
            continue
        own["model"] = pymc_model() if "from_pymc" in code else regression if "(model, X" in code else numpyro_model
        own["log_density"] = tree_density if "from_pytree" in code else log_density
        own["fit_a"] = own["fit_b"] = own.get("fit")
        print(">>>", code, flush=True)
        exec(compile(ast.Module([statement], []), "README", "exec"), own)
exact = own["fit"].query(own["cubic"]).exact, own["fit"].refine_for(own["cubic"]).query(own["cubic"]).exact
assert own["query"].exact and exact == (False, True), exact
"""


def run(command, folder):
    settings = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout[-3000:] + done.stderr[-3000:]


def test_python_blocks(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 5
    (tmp_path / "blocks.txt").write_text("\0".join(blocks))
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    code, text = run([sys.executable, "script.py", str(ROOT), "1" if shutil.which("g++") else "0"], tmp_path)
    assert code == 0, text


@pytest.mark.parametrize("kind", ["py", "stan"])
def test_fit_commands(kind, tmp_path):
    if kind == "stan" and shutil.which("g++") is None:
        pytest.skip("a Stan program needs a C++ compiler")
    (line,) = re.findall(rf"^    steinmatch (fit examples/eight_schools\.{kind}.*)$", README, re.MULTILINE)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    code, text = run([sys.executable, "-m", "steinmatch", *line.split()], tmp_path)
    assert code == 0 and "tau" in text, text
