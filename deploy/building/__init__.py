"""What a build does around its artefacts: what it needs, what it took, what it made."""
