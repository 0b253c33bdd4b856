"""Which citations the network has not seen: for train.py, and for client.py to find."""

import numpy as np


def split(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return nine of ten citations, in both directions, and the others, each once."""
    once = np.unique(np.sort(edges, axis=0), axis=1)
    hidden = np.random.default_rng(0).permutation(once.shape[1]) < once.shape[1] // 10
    seen = once[:, ~hidden]
    return np.concatenate([seen, seen[::-1]], axis=1), once[:, hidden]


def found(nearest: np.ndarray, hidden: np.ndarray) -> float:
    """Return the share of hidden citations, in either direction, among a paper's nearest ten."""
    both = np.concatenate([hidden, hidden[::-1]], axis=1)
    return float((nearest[both[0]] == both[1][:, None]).any(axis=1).mean())
