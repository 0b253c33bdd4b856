"""The only code that starts or stops servers, and the supervisor beside each."""
