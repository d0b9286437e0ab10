"""FedAvg: the average of locally trained models (McMahan et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from fedhead.algorithm.method import Method, method


@method("fedavg")
@dataclass(frozen=True)
class FedAvg(Method):
    """Weighted average of the models that clients train on their own data (McMahan et al., 2017)."""
