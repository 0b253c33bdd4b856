"""Talks to a server, never starts one: transport, readiness, TLS, reference outputs."""
