"""The command validate."""

from __future__ import annotations

from fedhead.cli.app import app
from fedhead.cli.options import Assignments, RecipeName


@app.command()
def validate(recipe: RecipeName, assignments: Assignments = None) -> None:
    """Check a recipe before any compute: names, types, ranges, and that data set and model fit.

    \b
    Examples:
      fedhead validate digits
      fedhead validate my.yaml method=fedprox method.mu=0.1
    """
    from fedhead.recipes.experiment import build_experiment
    from fedhead.recipes.recipe import load

    r = load(recipe, assignments or [])
    sizes = [sum(p.numel() for p in model.parameters()) for model in build_experiment(r).models]
    names = [r.model] if isinstance(r.model, str) else r.model
    models = ", ".join(f"{name} of {size:,} parameters" for name, size in zip(names, sizes, strict=True))
    stages = "".join(f" + {stage}" for stage in r.stages)
    print(f"ok: {r.method}{stages} on {r.dataset}, {r.clients} clients by {r.partition}, {r.rounds} rounds, {models}")
