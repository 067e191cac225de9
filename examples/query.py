"""One question: P(x_2 > 1) of a banana, smoothed, with an error; then particles refined for it."""

import jax
from custom_features import fit_features


def question(x):
    """A smooth version of x_2 > 1."""
    return jax.nn.sigmoid(4.0 * (x[1] - 1.0))


if __name__ == "__main__":
    fit = fit_features()
    print("before:", fit.query(question))
    print("after: ", fit.refine_for(question, max_seconds=20.0).query(question))
