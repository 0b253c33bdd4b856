"""Write ``scores_of_sklearn.json``: figures of labels by scikit-learn.

Run by hand where scikit-learn is, as in the environment of ``numlkit prepare --full``.
"""

import json
import warnings
from pathlib import Path

import numpy as np
from sklearn import metrics

warnings.simplefilter("ignore")
rng = np.random.default_rng(1)
noisy = rng.integers(0, 5, 80)
CASES = {
    "random": (rng.integers(0, 4, 60), rng.integers(0, 4, 60), 4),
    "mostly right": (noisy, np.where(rng.random(80) < 0.7, noisy, rng.integers(0, 5, 80)), 5),
    "a class absent": (rng.choice([0, 2], 30), rng.choice([0, 1], 30), 3),
    "the same": (noisy, noisy, 5),
    "all one": (np.zeros(9, int), np.zeros(9, int), 2),
    "one against many": (np.zeros(4, int), np.arange(4), 4),
    "each its own": (np.arange(4), np.arange(4)[::-1], 4),
}

found = []
for name, (truth, guess, classes) in CASES.items():
    labels = list(range(classes))
    one = {"labels": labels, "average": None, "zero_division": 0}
    found.append(
        {
            "name": name,
            "classes": classes,
            "truth": truth.tolist(),
            "guess": guess.tolist(),
            "confusion": metrics.confusion_matrix(truth, guess, labels=labels).tolist(),
            "recall": metrics.recall_score(truth, guess, **one).tolist(),
            "precision": metrics.precision_score(truth, guess, **one).tolist(),
            "accuracy": metrics.accuracy_score(truth, guess),
            "adjusted_rand": metrics.adjusted_rand_score(truth, guess),
        }
    )
Path(__file__).with_name("scores_of_sklearn.json").write_text(json.dumps(found) + "\n")
