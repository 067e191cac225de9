"""All code of the documentation runs as a reader would run it: page by page, JAX in its default mode."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "results" not in path.parts)
WITH_CODE = [path for path in PAGES if "```python" in path.read_text()]


def test_all_pages_are_in_the_table_of_contents():
    listed = re.findall(r": (\S+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), re.MULTILINE)
    own = [str(path.relative_to(DOCS)) for path in PAGES]
    assert sorted(listed) == sorted(own) and len(WITH_CODE) >= 10


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.stem)
def test_code(path, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    environment = {name: value for name, value in os.environ.items() if name != "JAX_ENABLE_X64"}
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
