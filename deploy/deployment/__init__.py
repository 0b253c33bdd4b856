"""What is wanted, as frozen data; the plan of a launch; the state of what is running."""
