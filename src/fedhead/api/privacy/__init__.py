"""Privacy of a run: the messages of its clients, and attacks on them."""
