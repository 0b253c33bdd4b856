"""The only code that starts or stops a server, and the supervisor beside it."""
