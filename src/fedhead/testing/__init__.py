"""Checks for user-defined components, similar to scikit-learn's `check_estimator`.

```python
import fedhead as fh

def test_fedmine():
    fh.testing.check_method(FedMine)
```

Each check trains a small federation of uneven clients, one of them empty, and raises `CheckFailed` with one line that
states the problem and the fix. It returns the list of its named parts; `skip=["over_flower"]` skips some.
"""

from fedhead.testing.algorithms import check_method, check_stage
from fedhead.testing.checks import Check, CheckFailed
from fedhead.testing.models import check_model
from fedhead.testing.small import small_federation, small_model

__all__ = [
    "Check",
    "CheckFailed",
    "check_method",
    "check_model",
    "check_stage",
    "small_federation",
    "small_model",
]
