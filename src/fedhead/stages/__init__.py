"""Stages that follow the rounds, one file each, and their registry `STAGES`."""

from fedhead.algorithm.stage import STAGES

__all__ = ["STAGES"]
