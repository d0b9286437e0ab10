"""From a CSV table with categories and gaps to an ONNX file, and its scores without fedhead.

pip install 'fedhead[export]'
"""

# %% A table, and a schema of its columns.
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd

import fedhead as fh

rng = np.random.default_rng(0)
table = pd.DataFrame({"age": rng.normal(60, 10, 400).round(), "sex": rng.choice(["f", "m"], 400)})
table["outcome"] = np.where(table["age"] > 60, "dead", "alive")
table.loc[::7, "age"] = np.nan
table.loc[::9, "sex"] = np.nan
table[:200].to_csv("north.csv", index=False)
table[200:].to_csv("south.csv", index=False)
Path("schema.yaml").write_text("""\
label: outcome
columns:
  age: {unit: years, range: [0, 120]}
  sex: {type: category}
""")

# %% Train and export; a deployment's run folder is exported alike, by fedhead export.
sites = {"north": "north.csv", "south": "south.csv"}
federation = fh.Federation.from_clients(
    sites, schema="schema.yaml", client_test=0.2, missing="mean", normalize="standard"
)
result = fh.run(federation, "mlp(hidden=[16])", rounds=3, lr=0.1, batch_size=16)
result.export("model.onnx", normalize=True)

# %% The file without fedhead: one column of the input per name in the metadata, "age", "sex=f" or "sex missing".
patients = pd.read_csv("north.csv", dtype={"sex": str})  # categories are texts
session = onnxruntime.InferenceSession("model.onnx")
metadata = session.get_modelmeta().custom_metadata_map
features = {}
for name in json.loads(metadata["columns"]):
    column, _, category = name.partition("=")
    if name.endswith(" missing"):
        features[name] = patients[name.removesuffix(" missing")].isna()
    else:
        features[name] = patients[column] == category if category else patients[column]  # empty numbers stay NaN
x = pd.DataFrame(features).to_numpy(np.float32)
(scores,) = session.run(["scores"], {"x": x})
classes = json.loads(metadata["classes"])
print([classes[best] for best in scores.argmax(1)[:5]])
np.testing.assert_allclose(scores, result.scores(patients), atol=1e-5)
