"""Version of fedhead, which the package, run folders and messages to sites have."""

VERSION = "0.1.0"
