"""Federated classification that survives non-IID data.

The public names are those of `fedhead.public`, imported at their first use: torch takes a second or two to import, and
the command line has answers that do not need it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedhead.public import *

__version__ = "0.1.0"

__all__ = [
    "ANALYSES",
    "CCVR",
    "DATASETS",
    "EXECUTORS",
    "HEADS",
    "METHODS",
    "METRICS",
    "MODELS",
    "PARTITIONS",
    "PARTS",
    "SGD",
    "STAGES",
    "UPLOADS",
    "Above",
    "Adam",
    "AnalysisOptions",
    "AnalysisReport",
    "AtLeast",
    "AtMost",
    "BadInput",
    "Batch",
    "Below",
    "Between",
    "Body",
    "Client",
    "Clip",
    "ClsProx",
    "Dataset",
    "Ditto",
    "Diverged",
    "Executor",
    "FedAvg",
    "FedAvgM",
    "FedClassAvg",
    "FedDyn",
    "FedETF",
    "FedNH",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedRoDHyper",
    "Federation",
    "FedheadError",
    "FineTune",
    "FineTuneCCVR",
    "FineTuneETF",
    "Half",
    "Job",
    "KTpFL",
    "Lanes",
    "LocalOnly",
    "LocalTraining",
    "Loop",
    "Matches",
    "Method",
    "Moon",
    "Optimizer",
    "Output",
    "Partition",
    "Phase",
    "Recalibrate",
    "Replies",
    "Reply",
    "Result",
    "Samples",
    "Scaffold",
    "Snapshot",
    "SplitModel",
    "Stack",
    "Stage",
    "StageResult",
    "Statistics",
    "Task",
    "Trained",
    "Transform",
    "Tree",
    "Upload",
    "Weights",
    "analysis",
    "build",
    "calibrate",
    "class_sums",
    "dataset",
    "executor",
    "head",
    "load_statistics",
    "losses",
    "make_optimizer",
    "merge_files",
    "method",
    "methods",
    "metric",
    "model",
    "partition",
    "random",
    "run",
    "save_statistics",
    "split",
    "stage",
    "stages",
    "statistics_of",
    "testing",
    "tune_malloc",
    "upload",
    "with_head",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("fedhead.public"), name)
    raise AttributeError(f"module 'fedhead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
