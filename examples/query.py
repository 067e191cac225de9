"""One question: P(mu > 5) in eight schools, with an error, and particles refined for it."""

import jax
from eight_schools import target

import steinmatch as sm


def question(x):
    """A smooth version of mu > 5; mu is the ninth unconstrained coordinate."""
    return jax.nn.sigmoid(4.0 * (x[8] - 5.0))


if __name__ == "__main__":
    fit = sm.fit(target)
    print("before:", fit.query(question))
    print("after: ", fit.refine_for(question, max_seconds=30.0).query(question))
