"""Messages between server and sites."""
