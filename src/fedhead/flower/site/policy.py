"""A site's policy: what a server may ask of it, decided at the site before anything of the request is carried out."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhead.algorithm.stage import Stage
from fedhead.data.sources.datasets import DATASETS
from fedhead.flower.wire.site_errors import SiteProblem
from fedhead.methods import METHODS
from fedhead.models import MODELS
from fedhead.recipes import components
from fedhead.recipes.recipe import Recipe
from fedhead.stages import STAGES


@dataclass(frozen=True)
class Policy:
    """What a server may ask of a site; site.yaml says it (`fedhead.flower.config.SiteFile`).

    Args:
        methods: The methods that it may run, as recipes name them; None: all that there are or `allow` names.
        stages: The stages, likewise.
        models: The models that a server may name, likewise; a site's own `model` is its own decision.
        paths: Files and folders that a recipe may name as its data set, for a site that takes its share of it.
        allow: Code besides fedhead's own, as `Registry.permits` takes it.
        reads_recipe_data: Whether the site takes its share of the recipe's data set.
        report_train_loss: Whether the server learns the mean loss of the site's local training.
        report_metrics: Whether it learns the run's further metrics of the site's own model.
        min_class_count: Rows of classes with fewer samples are left out of statistics and prototypes that leave.
        max_seconds: The longest that a request may take; its process is ended then.
        max_memory_mb: The most memory that the process which carries out requests may have, without a GPU's.
    """

    methods: tuple[str, ...] | None = None
    stages: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    paths: tuple[Path, ...] = ()
    allow: tuple[str, ...] = ()
    reads_recipe_data: bool = False
    min_class_count: int = 1
    max_seconds: float | None = None
    max_memory_mb: int | None = None
    report_train_loss: bool = True
    report_metrics: bool = True

    def check(self, recipe: Recipe, own: Mapping[str, Any]) -> None:
        """Refuse a run that the site does not allow.

        Args:
            recipe: The server's recipe.
            own: The recipe keys that the site replaces.

        Raises:
            SiteProblem: With the code `policy`, and with what is refused for the site's own log.
        """
        named = components.named(recipe)
        for registry, key in ((METHODS, "methods"), (STAGES, "stages"), (MODELS, "models")):
            allowed: Sequence[str] | None = getattr(self, key)
            if allowed is None or (registry is MODELS and "model" in own):
                continue
            _check_names([name for kind, name in named if kind is registry], allowed, registry.kind)
        if self.reads_recipe_data:
            for name in filter(None, (recipe.dataset, recipe.public)):
                self._check_data(name)

    def check_earlier(self, stages: Sequence[Stage]) -> None:
        """Refuse stages that the run's stages begin with, which a recipe does not name."""
        earlier = [one for stage in stages if (one := stage.prerequisite()) is not None]
        if self.stages is not None:
            _check_names([stage.name for stage in earlier], self.stages, "stage")

    def _check_data(self, name: str) -> None:
        """Refuse a path that is not allowed, whether or not anything is there: the server must not learn which."""
        if DATASETS.known(name) or (":" in name and DATASETS.permits(name, self.allow)):
            return
        path = Path(name).resolve()
        if not any(path.is_relative_to(allowed.resolve()) for allowed in self.paths):
            raise SiteProblem("policy", f"the run's data set {name!r} is not among 'paths' in site.yaml")

    def seconds(self, asked: float | None) -> float | None:
        """Return after how long a request is ended, from the server's limit; None: never."""
        return min((limit for limit in (asked, self.max_seconds) if limit is not None), default=None)

    @contextmanager
    def within_memory(self) -> Iterator[None]:
        """Let this process have no more memory than allowed, as long as the context lasts.

        The limit is the kernel's (RLIMIT_DATA): it holds for all that the process has allocated, torch and data
        included. An allocation beyond it fails, and the request with it.
        """
        if self.max_memory_mb is None:
            yield
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (self.max_memory_mb * 2**20, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _check_names(names: Sequence[str], allowed: Sequence[str], kind: str) -> None:
    for name in names:
        if name not in allowed:
            what = f"the {kind} {name!r} is not among '{kind}s' in site.yaml"
            raise SiteProblem("policy", f"{what}: {', '.join(allowed)}")
