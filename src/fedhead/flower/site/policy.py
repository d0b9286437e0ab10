"""Policy of a site: limits of a server's requests, checked before execution."""

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
from fedhead.privacy import gaussian
from fedhead.privacy.base import Protection
from fedhead.recipes import components
from fedhead.recipes.recipe import Recipe
from fedhead.stages import STAGES

DELTA = 1e-5  # δ of `max_epsilon`: the server may not choose it


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Keys of site.yaml that limit the requests of a server."""

    methods: tuple[str, ...] | None = None  # permitted methods; null: all of fedhead and of `allow`
    stages: tuple[str, ...] | None = None  # permitted stages
    models: tuple[str, ...] | None = None  # permitted models; the site's own `model` is always permitted
    paths: tuple[str, ...] = ()  # permitted paths of the recipe's data set, if data is `recipe`
    allow: tuple[str, ...] = ()  # permitted modules and files outside fedhead
    min_class_count: Annotated[int, AtLeast(1)] = 1  # smaller classes are excluded from statistics and prototypes
    max_releases: Annotated[int, AtLeast(0)] | None = None  # how often statistics may be sent; null: unlimited
    max_epsilon: Annotated[float, Above(0)] | None = None  # total ε of all statistics; null: unlimited, or no noise
    allow_wide_features: bool = True  # permit statistics of features that may contain whole samples
    max_seconds: Annotated[float, Above(0)] | None = None  # time limit of a request
    max_memory_mb: Annotated[int, AtLeast(1)] | None = None  # memory limit of the worker, without GPU memory
    report_train_loss: bool = True  # send the mean training loss of each round
    report_metrics: bool = True  # send metrics on the site's test samples
    require_secure_sum: bool = False  # refuse runs without secure sums
    min_sum_sites: Annotated[int, AtLeast(3)] = 3  # smallest number of sites in a secure sum
    share_model: bool = False  # send the site's final model, to be tested at the other sites

    def check(self, recipe: Recipe, overrides: Mapping[str, Any]) -> None:
        """Check that the site permits a run.

        Args:
            recipe: Recipe of the server.
            overrides: Recipe keys that the site overrides.

        Raises:
            SiteProblem: With the code `policy`, and the reason for the site's log.
        """
        names = components.named(recipe)
        for registry, key in ((METHODS, "methods"), (STAGES, "stages"), (MODELS, "models")):
            allowed: Sequence[str] | None = getattr(self, key)
            if allowed is None or (registry is MODELS and "model" in overrides):
                continue
            _check_names([name for kind, name in names if kind is registry], allowed, registry.kind)

    def check_earlier(self, stages: Sequence[Stage]) -> None:
        """Check that prerequisites of the run's stages, which a recipe does not name, are permitted."""
        earlier = [first for stage in stages for first in stage.chain()[:-1] if first.name in STAGES]
        if self.stages is not None:
            _check_names([stage.name for stage in earlier], self.stages, "stage")

    def check_features(self, stages: Sequence[str], features: int, values: int) -> None:
        """Check that statistics of a model's features can't contain whole samples.

        The server chooses the weights. With as many features as values of a sample, weights can copy the values.

        Args:
            stages: Names of the run's stages that send statistics.
            features: Number of the model's features.
            values: Number of values of a sample.
        """
        if stages and not self.allow_wide_features and features >= values:
            raise SiteProblem(
                "policy",
                f"stage {stages[0]}: the model has {features} features and a sample {values} values, so its "
                "statistics may reveal samples: use a model with fewer features, or set allow_wide_features: true in "
                "site.yaml",
            )

    def check_releases(self, count: int) -> None:
        """Check that statistics may be sent once more.

        Args:
            count: Earlier releases of statistics.
        """
        if self.max_releases is not None and count >= self.max_releases:
            raise SiteProblem(
                "budget",
                f"statistics of this site's samples were sent {count} times, 'max_releases' in site.yaml permits "
                f"{self.max_releases}: see fedhead ledger, and raise it if you agreed to this run",
            )

    def check_secure(self, secure: bool) -> None:
        """Check that a run has secure sums, if the site requires them."""
        if self.require_secure_sum and not secure:
            raise SiteProblem(
                "policy", "the run sends openly what site.yaml permits in secure sums only (require_secure_sum)"
            )

    def check_share(self) -> None:
        """Check that the site's final model may be sent."""
        if not self.share_model or self.max_epsilon is not None:
            reason = (
                "the server asks for this site's model: set share_model, and no max_epsilon, if it may leave the site"
            )
            raise SiteProblem("consent", reason)

    def check_privacy(self, privacy: Sequence[Protection], mus: Sequence[float], unprotected: Sequence[str]) -> None:
        """Check that the noise of a run comes from this site, and that its budget is left.

        Args:
            privacy: Protections of the run.
            mus: μ of each earlier release of statistics, and of those that the run asks for.
            unprotected: Names of the run's exchanges that send replies without noise.
        """
        if any(protection.test_seed is not None for protection in privacy):
            raise SiteProblem("policy", "privacy: test_seed would take the noise from a seed that the server knows")
        if self.max_epsilon is None:
            return
        if unprotected:
            raise SiteProblem(
                "policy",
                f"{unprotected[0]} would send replies without noise, 'max_epsilon' in site.yaml permits none: ask for "
                "a run with privacy",
            )
        if (epsilon := gaussian.epsilon_of(DELTA, gaussian.compose(mus))) > self.max_epsilon * (1 + 1e-9):
            raise SiteProblem(
                "budget",
                f"statistics of this site's samples would have ε = {epsilon:.3g} in all (δ = {DELTA:g}), 'max_epsilon' "
                f"in site.yaml permits {self.max_epsilon:g}: see fedhead ledger, or raise it if you agreed to the run",
            )

    def check_table_statistics(self) -> None:
        """Check that statistics of the site's table, which have no noise in any run, may be sent."""
        if self.max_epsilon is not None:
            raise SiteProblem(
                "policy",
                "the statistics of a table are sent without noise, also in a run with privacy, and 'max_epsilon' in "
                "site.yaml permits none: remove it if you agree to them, or take this site out of runs with a schema",
            )

    def check_data(self, recipe: Recipe, folder: Path) -> None:
        """Check that paths are permitted; the error is the same for missing ones, so that nothing is leaked.

        Args:
            recipe: Recipe of the server, whose data set and public samples the site uses.
            folder: Base folder of relative `paths`.

        Raises:
            SiteProblem: With the code `policy`.
        """
        allowed = [(folder / os.path.expanduser(place)).resolve() for place in self.paths]
        for name in filter(None, (recipe.dataset, recipe.public)):
            if DATASETS.known(name) or (":" in name and DATASETS.permits(name, self.allow)):
                continue
            if not any(Path(name).resolve().is_relative_to(place) for place in allowed):
                raise SiteProblem("policy", f"the run's data set {name!r} is not among 'paths' in site.yaml")

    def seconds(self, limit_of_server: float | None) -> float | None:
        """Return the time limit of a request, given the server's limit; None: no limit."""
        return min((limit for limit in (limit_of_server, self.max_seconds) if limit is not None), default=None)

    @contextmanager
    def within_memory(self) -> Iterator[None]:
        """Limit the memory of this process inside the block.

        The kernel's limit (RLIMIT_DATA) applies to all allocations of the process, including torch and data. A larger
        allocation fails, and so does the request.
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
            reason = f"the {kind} {name!r} is not among '{kind}s' in site.yaml"
            raise SiteProblem("policy", f"{reason}: {', '.join(allowed)}")
