"""Layers made for stacks of clients on a GPU: one kernel for all clients where `vmap` would make many."""
