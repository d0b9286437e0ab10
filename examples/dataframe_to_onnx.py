"""From a pandas data frame to an ONNX file that needs neither fedhead nor PyTorch.

pip install 'fedhead[export]'
"""

# %% A table as a user has it: measurements of patients, what they turned out to be, and in which hospital.
from __future__ import annotations

import numpy as np
import onnxruntime
import pandas as pd
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

import fedhead as fh

source = load_breast_cancer(as_frame=True)
table: pd.DataFrame = source.frame.rename(columns={"target": "benign"})
table["hospital"] = pd.cut(table["mean radius"].rank(), 5, labels=list("ABCDE")).astype(str)  # they see different cases
features = list(source.feature_names)


# %% The user's own network.
class Net(nn.Module):
    """Any module that ends in a linear layer will do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(len(features), 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.body(x))


# %% Train over the hospitals, with a run folder and a progress bar, and calibrate the classifier.
federation = fh.Federation.from_arrays(
    table[features].to_numpy(),
    table["benign"].to_numpy(),
    groups=table["hospital"].to_numpy(),
    test=0.25,
    normalize="standard",
    class_names=["malignant", "benign"],
)
result = fh.run(
    federation,
    fh.split(Net(), classifier="head"),
    fh.FedProx(mu=0.01),
    rounds=5,
    batch_size=16,
    lr=0.05,
    stages=[fh.CCVR(samples=200, epochs=5)],
    out="runs/hospitals",
    progress=True,
)
print(result)
print(result.history[["accuracy", "seconds"]])
print(result.clients)

# %% Look at it again some day: the folder has everything but what only Python has.
result = fh.load("runs/hospitals", model=fh.split(Net(), classifier="head"), federation=federation)
print(result.confusion(stage="ccvr"))
assert isinstance(result.module(stage="ccvr"), Net)

# %% And into production: the file takes rows of the table as they are.
result.export("model.onnx", normalize=True, stage="ccvr")
session = onnxruntime.InferenceSession("model.onnx")
rows = table[features].to_numpy(np.float32)
(scores,) = session.run(["scores"], {"x": rows})
expected = result.scores(rows, stage="ccvr")
worst = float(np.abs(scores - expected).max())
print(f"{len(rows)} rows, largest difference to fedhead's scores {worst:.1e}")
assert worst < 1e-5 * max(1.0, float(np.abs(expected).max()))
