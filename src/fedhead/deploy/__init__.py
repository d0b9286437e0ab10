"""Deployments: project files, certificates, and a federation of local processes."""
