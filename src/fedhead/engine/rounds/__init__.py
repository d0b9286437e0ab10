"""Round loop, exchanges with the clients, and transports."""
