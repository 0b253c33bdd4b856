"""Asks a server and never starts one: transport, readiness, TLS, reference outputs."""
