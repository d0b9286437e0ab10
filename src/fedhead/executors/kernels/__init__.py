"""Layers for stacks of clients on a GPU: one kernel for all clients, where `vmap` would launch many."""
