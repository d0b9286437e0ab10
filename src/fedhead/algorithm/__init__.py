"""The contract of federated algorithms: what a client does, what is sent, and what the server makes of it."""
