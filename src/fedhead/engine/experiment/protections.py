"""Protections of an experiment: binding to its stages, and checks."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.modules.batchnorm import _BatchNorm

from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.algorithm.upload import Upload
from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import warn_once
from fedhead.data.federation.federation import Federation
from fedhead.data.federation.preprocessing import FITTED
from fedhead.models.split_model import SplitModel, weights
from fedhead.privacy.base import Protection
from fedhead.privacy.client_dp import ClientDP
from fedhead.privacy.sample_dp import SampleDP
from fedhead.samplers.base import Sampler
from fedhead.samplers.poisson import PoissonSampler


def protect(stages: Sequence[Stage], privacy: Sequence[Protection]) -> tuple[Stage, ...]:
    """Return the stages with the differential privacy of what their clients send.

    Raises:
        BadInput: If a stage can't be protected.
    """
    releases = sum(any(step.class_rows for step in stage.chain()) for stage in stages)
    for protection in privacy:
        if protection.covers == "stages":
            stages = [stage.protect(protection, releases) for stage in stages]
    return tuple(stages)


def check(
    privacy: Sequence[Protection], method: Method, stages: Sequence[Stage], uploads: Sequence[Upload], rounds: int
) -> None:
    """Check that each protection has something to protect; warn if others than the protected replies leave clients.

    Raises:
        BadInput: If a protection has no effect, two protect the same, or an upload changes what is protected.
    """
    covered = [protection.covers for protection in privacy]
    for protection in privacy:
        if covered.count(protection.covers) > 1:
            raise BadInput(f"privacy: two protections of the {protection.covers}: name one")
        if protection.covers == "rounds" and not isinstance(protection, ClientDP | SampleDP):
            raise BadInput(f"privacy: {protection.name} adds no noise to rounds: inherit from ClientDP or SampleDP")
        if protection.covers == "stages" and not any(step.class_rows for stage in stages for step in stage.chain()):
            raise BadInput(f"privacy: {protection.name} needs a stage that sends class statistics: add stages=[ridge]")
        if protection.covers == "rounds" and not rounds:
            raise BadInput(f"privacy: {protection.name} protects rounds, and there is none: set rounds")
    for step in uploads if "stages" in covered else ():
        if not step.spares_sums and step.min_clients(2) == 1:
            raise BadInput(f"privacy: the upload {step.name} may change statistics before their noise: leave it out")
    if privacy and rounds and "rounds" not in covered:
        warn_once(f"privacy protects the stages only: the updates of {method.name}'s rounds are sent without noise")
    if privacy and stages and "stages" not in covered:
        warn_once(f"privacy protects the rounds only: stage {stages[0].name} sends its replies without noise")


def check_client_dp(
    privacy: Sequence[Protection],
    method: Method,
    models: Sequence[SplitModel],
    sampler: Sampler | None,
    others: Sequence[str],
    clients: int,
    cohort: int,
) -> None:
    """Check that `client_dp`, if it is among the protections, covers all that clients send in the rounds.

    Args:
        privacy: Protections of the run.
        method: Method.
        models: Architectures.
        sampler: Sampler of the cohorts.
        others: Keys of components that need single replies, or hide them.
        clients: Number of clients.
        cohort: Number of clients in a round.

    Raises:
        BadInput: If a component needs more than the noisy mean, or δ is too large for the number of clients.
    """
    protection = next((each for each in privacy if isinstance(each, ClientDP)), None)
    if protection is None:
        return
    if not (method.adds_up and method.shared and "model" in method.broadcast) or method.sums:
        raise BadInput(
            f"privacy: client_dp protects the mean of models, and the server of {method.name} uses other entries too: "
            "use a method such as fedavg, or sample_dp"
        )
    for key in others:
        raise BadInput(f"privacy: the server clips each update for client_dp and takes their mean: leave {key} out")
    if not isinstance(sampler, PoissonSampler) and (cohort < clients or sampler is not None):
        raise BadInput("privacy: client_dp accounts for independent cohorts or all clients: set sampler=poisson")
    if any(weights(model).part(*method.shared).stats for model in models):
        raise BadInput("privacy: client_dp can't protect BatchNorm's running statistics: use norm=group")
    _check_delta(protection, clients, "clients")


def check_sample_dp(privacy: Sequence[Protection], models: Sequence[SplitModel], local: LocalTraining) -> None:
    """Raise `BadInput` if gradients of single samples, which `sample_dp` needs, depend on other samples."""
    if not any(isinstance(protection, SampleDP) for protection in privacy):
        return
    if any(isinstance(layer, _BatchNorm) for model in models for layer in model.modules()):
        raise BadInput("privacy: sample_dp needs gradients of single samples, and BatchNorm mixes them: use norm=group")
    if local.class_weights is not None:
        raise BadInput("privacy: sample_dp takes the gradient of each sample alone: leave class_weights out")


def check_preprocessing(normalize: str | None, fill: bool) -> None:
    """Raise `BadInput` if the preprocessing of a run with privacy is fitted to the samples.

    Args:
        normalize: Normalization.
        fill: Whether missing values are filled by means.
    """
    if normalize in FITTED or fill:
        raise BadInput(
            "privacy: normalize (standard, quantiles) and missing=mean compute means of these samples without noise: "
            "give fixed means and deviations, or leave them out"
        )


def check_samples(privacy: Sequence[Protection], federation: Federation) -> None:
    """Raise `BadInput` if preprocessing is exact, or a δ so large that releasing a random sample would satisfy it."""
    if privacy:
        check_preprocessing(federation.fitted, bool(federation.missing))
    samples = sum(len(indices) for indices in federation.indices)
    for protection in privacy:
        if not isinstance(protection, ClientDP):
            _check_delta(protection, samples, "training samples")


def _check_delta(protection: Protection, count: int, units: str) -> None:
    if protection.delta * count >= 1:
        raise BadInput(
            f"privacy: {protection.name}: delta is {protection.delta:g}, it must be below 1/n = {1 / count:.2g}, "
            f"for n = {count} {units}"
        )
