"""Checks that you can run on your own components, as scikit-learn's `check_estimator` is.

```python
import fedhead as fh

def test_fedmine():
    fh.testing.check_method(FedMine)
```

Each trains a small federation of uneven clients, one of them empty, and raises `CheckFailed` with one line that says
what is wrong and how to fix it. A check returns the list of its named parts; `skip=["over_flower"]` leaves some out.
"""

from fedhead.testing.algorithms import check_method, check_stage
from fedhead.testing.checks import Check, CheckFailed
from fedhead.testing.models import check_model
from fedhead.testing.partitions import check_partition
from fedhead.testing.small import small_federation, small_model

__all__ = [
    "Check",
    "CheckFailed",
    "check_method",
    "check_model",
    "check_partition",
    "check_stage",
    "small_federation",
    "small_model",
]
