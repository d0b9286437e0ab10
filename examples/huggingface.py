"""A Hugging Face data set: any with an image and a label column; here one is made, so that nothing is downloaded.

pip install datasets
"""

from __future__ import annotations

import datasets
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import fedhead as fh


def main() -> None:
    """Train on a data set of images; `datasets.load_dataset(...)["train"]` gives one of the hub's."""
    digits = load_digits()
    images = [Image.fromarray((image * 15).astype(np.uint8)) for image in digits.images]
    columns = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)})
    train = datasets.Dataset.from_dict({"image": images, "label": digits.target}, features=columns)
    federation = fh.Federation.from_dataset(train, "dirichlet(0.5)", clients=5, client_test=0.2)
    run = fh.run(federation, "mlp", "fedavg", rounds=2, local_epochs=2, lr=0.05)
    print(f"mean accuracy on the clients' own test samples: {run.personal:.1f} %")


if __name__ == "__main__":
    main()
