"""What starts servers."""
