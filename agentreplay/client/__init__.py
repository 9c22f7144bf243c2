"""The way to an endpoint: transport, requests, answers."""
