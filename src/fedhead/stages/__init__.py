"""Stages, what happens after the rounds, one file each; `STAGES` finds them by name."""

from fedhead.algorithm.stage import STAGES

__all__ = ["STAGES"]
