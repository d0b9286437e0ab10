"""Releases of a site: the statistics and private replies in its ledger, how many there may be, and what they spend.

A release is identified by a digest of everything that the sums depend on. The same sums sent again are no new release.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.stage import Stage
from fedhead.core.tree.digest import digest_json, digest_of
from fedhead.core.tree.inputs import tensors_of
from fedhead.core.tree.tree import Tree
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.private_rounds import PrivateSamples
from fedhead.engine.clients.server import Downlink
from fedhead.flower.ledger import Ledger
from fedhead.flower.site.policy import Policy
from fedhead.flower.site.site_run import SiteRun
from fedhead.flower.wire.protocol import TRAIN, Request, to_json
from fedhead.flower.wire.site_errors import SiteProblem
from fedhead.privacy import gaussian
from fedhead.privacy.base import Protection


@dataclass(frozen=True)
class Releases:
    """Releases in a site's ledger, checked against the limits of its policy.

    Args:
        site: Name of the site.
        ledger: Its ledger.
        policy: Its policy.
    """

    site: str
    ledger: Ledger
    policy: Policy

    # -- statistics -------------------------------------------------------------------------------
    def _earlier(self) -> dict[str, dict[str, Any]]:
        """Return the first ledger entry of each earlier release of statistics, by its digest."""
        releases = dict[str, dict[str, Any]]()
        for entry in self.ledger.entries():
            if entry["site"] == self.site and entry.get("release"):
                releases.setdefault(entry["release"], entry)
        return releases

    def check(self, release: str) -> None:
        """Check that statistics may be sent once more, or were sent before."""
        if release not in (earlier := self._earlier()):
            self.policy.check_releases(len(earlier))

    def check_statistics(self, request: Request, site_run: SiteRun, k: int) -> None:
        """Check a run's statistics before its first round, so that no training is lost."""
        names = [name for name, algorithm in site_run.algorithms.items() if sends_statistics(algorithm)]
        table = request.spec.schema
        values = len(table.columns) if table else sum(t[0].numel() for t in tensors_of(request.spec.blank()))
        self.policy.check_features(names, site_run.clients.task_of(k).model.features, values)
        if names and request.kind == "hello" and self.site != request.spec.leave_out_site:
            run, earlier = request.spec.experiment, self._earlier().values()
            # A resumed run may have sent the statistics of its stages, which then need no other release.
            self.policy.check_releases(sum(entry["run"] != run or entry["kind"] == "statistics" for entry in earlier))

    # -- differential privacy ---------------------------------------------------------------------
    def _private_replies(self) -> Iterator[dict[str, Any]]:
        return (entry for entry in self.ledger.entries() if entry["site"] == self.site and entry.get("privacy"))

    def _spent(self) -> dict[tuple[str, str, str], float]:
        """Return μ of each earlier release with differential privacy, by its run, exchange and secure sum."""
        return {
            (entry["run"], entry["algorithm"], (entry.get("secure") or {}).get("id", "")): float(entry["privacy"]["mu"])
            for entry in self._private_replies()
            if "mu" in entry["privacy"]
        }

    def check_budget(self, request: Request, site_run: SiteRun) -> None:
        """Check before the first round that the releases of earlier runs and of this one fit into the budget."""
        experiment, run = site_run.clients.experiment, request.spec.experiment
        planned, open_replies = dict[tuple[str, str, str], float](), list[str]()
        for label, algorithm in site_run.algorithms.items():
            if isinstance(algorithm, Stage) and algorithm.protected and algorithm.class_rows:
                planned[run, label, ""] = algorithm.mu
            elif algorithm.aggregates and (label != TRAIN or experiment.schedule.rounds):
                open_replies.append(f"the exchange {label}")
        earlier = {} if self.policy.max_epsilon is None else self._spent()  # reads the whole ledger
        planned = {key: mu for key, mu in planned.items() if not any(key[:2] == old[:2] for old in earlier)}
        self.policy.check_privacy(experiment.privacy, [*planned.values(), *earlier.values()], open_replies)

    def cost(self, request: Request, stage: Stage, privacy: Sequence[Protection]) -> dict[str, float]:
        """Return the privacy budget that a reply costs; another reply to the same exchange would cost it twice."""
        earlier = self._spent()
        if request.secure is not None:  # a sum that failed may be repeated, and costs as much again
            self.policy.check_privacy(privacy, [*earlier.values(), stage.mu], [])
        elif (request.spec.experiment, request.algorithm, "") in earlier:
            raise SiteProblem(
                "budget",
                f"statistics of {request.algorithm} were sent before in this run: with new noise they would cost the "
                "privacy budget again; start a new run, or leave this site out",
            )
        assert stage.release is not None, "called only with differential privacy"
        delta = stage.release.protection.delta
        return {"epsilon": gaussian.epsilon_of(delta, stage.mu), "delta": delta, "mu": stage.mu}

    def round_cost(self, request: Request, private: PrivateSamples, k: int, samples: int) -> dict[str, float]:
        """Return ε and δ of all rounds that the site has sent in this run, including this one."""
        run = (request.spec.experiment, TRAIN)
        earlier = [entry for entry in self._private_replies() if (entry["run"], entry["algorithm"]) == run]
        # These determine the noise and the steps, of which the account assumes that all rounds have the same.
        if any((entry["spec"], entry["numbers"]["samples"]) != (request.spec.digest, samples) for entry in earlier):
            raise SiteProblem(
                "budget",
                "this run's specification, or the number of this site's samples, changed after a private round, so its "
                "ε can't be computed: start a new run",
            )
        epsilon = private.epsilon(k, samples, [*(entry["round"] for entry in earlier), request.round])
        return {"epsilon": epsilon, "delta": private.protection.delta}


# -- digests ------------------------------------------------------------------------------------------
def sends_statistics(algorithm: Algorithm) -> bool:
    """Return whether an exchange sends statistics of the samples, and not once per round as a method does."""
    return isinstance(algorithm, Stage) and bool(algorithm.class_rows)


def digest_of_statistics(request: Request, downlink: Downlink, kept: Tree, clients: Clients) -> str:
    """Return the digest of a release of statistics.

    It covers everything that the sums depend on, except the kind of statistics: all stages of a run that start from the
    same weights are one release.
    """
    asked = to_json(dataclasses.replace(request, kind="work", seconds=1.0, algorithm="", frozen="", secure=None))
    (k,) = downlink.per_client
    samples = clients.federation.train.take(clients.federation.indices[k])
    tensors = {str(i): t for i, t in enumerate((*tensors_of(samples.x), samples.y))}
    trees = [digest_of(tree.leaves(), 16) for tree in (downlink.broadcast, downlink.per_client[k], kept)]
    return digest_json([asked, *trees, digest_of(tensors, 16)], 16)


def digest_of_sum(release: str, clients: Iterable[int]) -> str:
    """Return the digest of statistics in a secure sum over these clients.

    Two sums of the same statistics over different sites are two releases: their difference may be one site's.
    """
    return digest_json([release, sorted(clients)], 16)
