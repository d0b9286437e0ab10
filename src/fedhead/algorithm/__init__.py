"""Interfaces of federated algorithms: methods, stages, clients, replies and uploads."""
