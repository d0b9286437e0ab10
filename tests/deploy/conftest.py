"""These tests are of what runs on Flower: without it (`pip install 'fedhead[flower]'`) there is nothing to test."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["*"]
