"""Deployments: certificates, processes and their supervision."""
