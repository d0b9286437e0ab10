"""Federated classification that survives non-IID data."""

from fedhead import methods, stages
from fedhead.api import run
from fedhead.data.federation import Federation
from fedhead.engine.rounds import Result
from fedhead.errors import BadInput, Diverged, FedheadError
from fedhead.method import METHODS, STAGES, Method, Stage, method, stage
from fedhead.methods.clsprox import ClsProx
from fedhead.methods.ditto import Ditto
from fedhead.methods.fedavg import FedAvg
from fedhead.methods.fedavgm import FedAvgM
from fedhead.methods.fedclassavg import FedClassAvg
from fedhead.methods.feddyn import FedDyn
from fedhead.methods.fedetf import FedETF
from fedhead.methods.fednh import FedNH
from fedhead.methods.fedproto import FedProto
from fedhead.methods.fedprox import FedProx
from fedhead.methods.fedrep import FedRep
from fedhead.methods.fedrod import FedRoD, FedRoDHyper
from fedhead.methods.ktpfl import KTpFL
from fedhead.methods.local import Local
from fedhead.methods.moon import Moon
from fedhead.methods.scaffold import Scaffold
from fedhead.models.registry import build, with_head
from fedhead.models.split import Split
from fedhead.models.wrap import split
from fedhead.stages.ccvr import CCVR
from fedhead.stages.finetune import FineTune, FineTuneCCVR, FineTuneETF
from fedhead.stages.recalibrate import Recalibrate
from fedhead.standalone import calibrate, load_statistics, merge_files, save_statistics, statistics_of
from fedhead.statistics import Statistics
from fedhead.tree import Tree, Weights
from fedhead.types import Batch, Phase, Replies, Reply

__version__ = "0.1.0"

__all__ = [
    "CCVR",
    "METHODS",
    "STAGES",
    "BadInput",
    "Batch",
    "ClsProx",
    "Ditto",
    "Diverged",
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
    "KTpFL",
    "Local",
    "Method",
    "Moon",
    "Phase",
    "Recalibrate",
    "Replies",
    "Reply",
    "Result",
    "Scaffold",
    "Split",
    "Stage",
    "Statistics",
    "Tree",
    "Weights",
    "build",
    "calibrate",
    "load_statistics",
    "merge_files",
    "method",
    "methods",
    "run",
    "save_statistics",
    "split",
    "stage",
    "stages",
    "statistics_of",
    "with_head",
]
