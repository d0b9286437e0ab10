"""The round loop, and what one exchange with the clients consists of."""
