"""Policy of a site: what a server may ask of it, checked before anything of a request is executed."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fedhead.algorithm.stage import Stage
from fedhead.core.components.ranges import Above, AtLeast
from fedhead.data.sources.datasets import DATASETS
from fedhead.flower.wire.site_errors import SiteProblem
from fedhead.methods import METHODS
from fedhead.models import MODELS
from fedhead.recipes import components
from fedhead.recipes.recipe import Recipe
from fedhead.stages import STAGES


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Keys of site.yaml that decide what a server may ask of the site."""

    methods: tuple[str, ...] | None = None  # that the server may run; null: all that are fedhead's or allowed
    stages: tuple[str, ...] | None = None  # likewise
    models: tuple[str, ...] | None = None  # likewise; the site's own `model` is its own decision
    paths: tuple[str, ...] = ()  # files and folders that the server may name as data set, with data: recipe
    allow: tuple[str, ...] = ()  # code besides fedhead's own that the server may name here: modules and files
    min_class_count: Annotated[int, AtLeast(1)] = 1  # smaller classes are left out of statistics and prototypes
    max_seconds: Annotated[float, Above(0)] | None = None  # the longest that a request may take
    max_memory_mb: Annotated[int, AtLeast(1)] | None = None  # of the process that carries requests out, without a GPU's
    report_train_loss: bool = True  # tell the server the mean loss of each round's training
    report_metrics: bool = True  # tell it the run's further metrics of the site's model on its own test samples

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

    def check_earlier(self, stages: Sequence[Stage]) -> None:
        """Refuse stages that the run's stages begin with, which a recipe does not name."""
        earlier = [one for stage in stages if (one := stage.prerequisite()) is not None]
        if self.stages is not None:
            _check_names([stage.name for stage in earlier], self.stages, "stage")

    def check_data(self, recipe: Recipe, folder: Path) -> None:
        """Refuse paths that are not allowed, whether or not anything is there: the server must not learn which.

        Args:
            recipe: The server's recipe, whose data set and public samples the site takes.
            folder: Folder that relative `paths` begin in.

        Raises:
            SiteProblem: With the code `policy`.
        """
        allowed = [(folder / os.path.expanduser(place)).resolve() for place in self.paths]
        for name in filter(None, (recipe.dataset, recipe.public)):
            if DATASETS.known(name) or (":" in name and DATASETS.permits(name, self.allow)):
                continue
            if not any(Path(name).resolve().is_relative_to(place) for place in allowed):
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
