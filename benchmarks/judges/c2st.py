"""The classifier two-sample test, as sbibm defines it: 0.5 where a classifier cannot tell two samples apart."""

import numpy as np
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neural_network import MLPClassifier
from torch import Tensor


def c2st(reference: Tensor, draws: Tensor, seed: int = 1, folds: int = 5) -> float:
    """The accuracy with which a classifier tells draws from the reference, both `(count, d)`, in cross-validation.

    As in `sbibm.metrics.c2st`: both are standardised by the mean and standard deviation of the reference, and the
    classifier has two hidden layers of 10d units.
    """
    mean, std = reference.mean(0), reference.std(0)
    first, second = (((sample - mean) / std).float().numpy() for sample in (reference, draws))
    width = 10 * first.shape[1]
    classifier = MLPClassifier(
        activation="relu", hidden_layer_sizes=(width, width), max_iter=10_000, solver="adam", random_state=seed
    )
    data = np.concatenate([first, second])
    target = np.concatenate([np.zeros(len(first)), np.ones(len(second))])
    parts = KFold(n_splits=folds, shuffle=True, random_state=seed)
    return float(np.mean(cross_val_score(classifier, data, target, cv=parts, scoring="accuracy")))
