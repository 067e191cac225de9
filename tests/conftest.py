"""Strict settings for all tests: float64, no silent promotion, types and shapes checked at every call."""

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
