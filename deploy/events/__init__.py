"""From files of events to tensors, to labels, to files of results. Knows no engine."""
