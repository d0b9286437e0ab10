"""The examples in the docstrings run where what they import is there."""

from importlib.util import find_spec

# What Flower itself starts imports it at once; the rest of fedhead does without.
_FLOWER = [
    "fedhead/flower/server_app.py",
    "fedhead/flower/node.py",
    "fedhead/flower/worker.py",
    "fedhead/testing/inprocess.py",
    "fedhead/testing/over_flower.py",
]
collect_ignore_glob = [] if find_spec("flwr") else _FLOWER
