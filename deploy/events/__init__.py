"""From event files to tensors, to labels, to results files. Knows nothing of engines."""
