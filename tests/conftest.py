"""Strict settings for all tests: float64, no silent promotion, types and shapes checked at every call."""

import os
from pathlib import Path

# Compiled code is shared by the workers and by the processes that tests start: most of a test's time is compiling.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
# ... and it is quicker without XLA's optimisations, which cost more than they gain at the sizes of tests.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import hypothesis
import jax
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile("steinmatch", deadline=None)  # no test is timed
hypothesis.settings.load_profile("steinmatch")

with install_import_hook("steinmatch", "beartype.beartype"):
    import steinmatch  # noqa: F401
