"""Your own PyTorch module and your own arrays: train, calibrate the classifier, and get the module back."""

from __future__ import annotations

from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import fedhead as fh


class Net(nn.Module):
    """Any module that ends in a linear layer will do."""

    def __init__(self, features: int, classes: int):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 32), nn.ReLU())
        self.fc = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.fc(self.body(x))


def main() -> None:
    """Train over 5 clients whose classes differ."""
    x, y = load_wine(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.3, random_state=0)
    federation = fh.Federation.from_arrays(x, y, "dirichlet(0.3)", clients=5, test=(x_test, y_test), seed=0)
    model = fh.split(Net(13, 3), classifier="fc")  # the name of its last linear layer
    run = fh.run(federation, model, fh.FedAvg(), rounds=5, local_epochs=2, batch_size=16, lr=0.05)
    print(f"FedAvg {run.accuracy:.1f} %, with CCVR {run.calibrate(fh.CCVR(samples=200)).accuracy:.1f} %")


if __name__ == "__main__":
    main()
