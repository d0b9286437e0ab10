"""Site: replies to the server's requests with its own data, under its policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.stage import Stage
from fedhead.core.system.errors import unknown
from fedhead.core.tree.digest import digest_json, digest_of
from fedhead.core.tree.inputs import tensors_of
from fedhead.core.tree.schema import schema
from fedhead.core.tree.tree import Tree
from fedhead.data.inputs.table_statistics import TableStatistics
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.private_rounds import PrivateSamples
from fedhead.engine.clients.server import Downlink, make_downlink
from fedhead.engine.policies import reply_check, secure_sums
from fedhead.engine.states.client_states import ClientStates
from fedhead.executors.loop import Loop
from fedhead.flower.ledger import LEDGER, Ledger
from fedhead.flower.site.model_tests import ModelTests, finite
from fedhead.flower.site.policy import Policy
from fedhead.flower.site.secure_sums import SiteSecureSum
from fedhead.flower.site.site_store import SiteStore
from fedhead.flower.wire.protocol import TRAIN, Request, Response, RunSpec, exchanges, to_json, version
from fedhead.flower.wire.site_errors import SiteProblem, coded
from fedhead.metrics.registry import NO_METRICS, Metric
from fedhead.privacy import gaussian
from fedhead.privacy.base import Protection


@dataclass(frozen=True)
class SiteRun:
    """Run at a site: its client, with its number in the federation, and its metrics."""

    clients: Clients
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def algorithms(self) -> dict[str, Algorithm]:
        """Algorithms of all exchanges, by their labels on the wire."""
        return exchanges(self.clients.method, self.clients.experiment.stages)

    def algorithm(self, name: str) -> Algorithm:
        """Return the algorithm of an exchange, given its label on the wire."""
        if name not in self.algorithms:
            raise unknown("algorithm", name, self.algorithms)
        return self.algorithms[name]


class Handled(NamedTuple):
    """Reply of a site before it is packed."""

    response: Response
    trees: Mapping[str, Tree] = MappingProxyType({})
    commit: Callable[[], object] | None = None  # stores the state once the response is packed
    release: str = ""  # digest of the request, the samples and the weights, if statistics are sent
    privacy: Mapping[str, float] = MappingProxyType({})  # ε, δ and μ that statistics spend; ε and δ of rounds so far


FROZEN = "frozen"  # file of the frozen parameters


@dataclass(frozen=True)
class Site:
    """Site with its name, its factory of runs and its state folder."""

    name: str
    site_run: Callable[[RunSpec, int], SiteRun]  # factory, from the run's spec and the site's number
    state: Path
    model: Mapping[str, Any] = field(default_factory=dict)  # recipe keys of the site's architecture
    policy: Policy = field(default_factory=Policy)  # limits of the server's requests
    statistics: Callable[[RunSpec, int], TableStatistics] | None = None  # of its table, from spec and number
    secure: SiteSecureSum = field(default_factory=SiteSecureSum)
    _permitted: set[str] = field(default_factory=set, init=False, compare=False)  # digests of specifications

    @property
    def ledger(self) -> Ledger:
        """Ledger of the site's requests."""
        return Ledger(self.state / LEDGER)

    def handle(self, request: Request, trees: Mapping[str, Tree]) -> Handled:
        """Execute a request; the state is stored by the caller, once the reply is packed."""
        with coded("name"):
            k = request.spec.number(self.name)
        with coded("setup"):
            if request.spec.digest not in self._permitted:
                self.policy.check(request.spec.recipe_of_run(), self.model)
                self._permitted.add(request.spec.digest)
            if self.name == request.spec.leave_out_site and request.kind not in ("hello", "test"):
                raise SiteProblem("left-out", f"the run leaves {self.name} out of the training: it only tests")
            if request.kind == "statistics":
                self.policy.check_secure(False)
                return self._table_statistics(request, k)
            site_run = self.site_run(request.spec, k)
            self.policy.check_secure(secure_sums.find(site_run.clients.experiment.uploads) is not None)
            self.policy.check_earlier(site_run.clients.experiment.stages)
            self._check_statistics(request, site_run, k)
            self._check_privacy(request, site_run)
            site_run.clients.leave_out_classes_below(self.policy.min_class_count)
        federation = site_run.clients.federation
        indices, local, held_out = federation.indices[k], federation.client_test, federation.validation
        if not len(indices):
            raise SiteProblem(
                "no-samples",
                f"site {self.name} holds no training samples: give it some, or take it out of the server's list",
            )
        response = self._response(
            request,
            samples=len(indices),
            tests=0 if local is None else len(local[k]),
            validations=0 if held_out is None else len(held_out[k]),
            model=dict(self.model),
        )
        if request.kind == "hello":
            if request.spec.table and self.statistics is not None and self.name != request.spec.leave_out_site:
                self.statistics(request.spec, k)  # a table with too few rows for them does not train either
            return Handled(response)
        return self._work(request, trees, site_run, response, k)

    def _response(self, request: Request, **numbers: Any) -> Response:
        return Response(
            self.name, version(), request.spec.experiment, request.round, request.algorithm, None, "", **numbers
        )

    def _table_statistics(self, request: Request, k: int) -> Handled:
        """Return the statistics of the site's table, which count as a release unless the same were sent before."""
        if self.statistics is None:
            raise SiteProblem("request", "this site has no table, whose statistics the server asks for")
        self.policy.check_table_statistics()
        statistics = dataclasses.asdict(self.statistics(request.spec, k))
        release = digest_json(["table", statistics], 16)
        self._check_release(release)
        return Handled(self._response(request, samples=statistics["rows"], statistics=statistics), release=release)

    def _work(
        self, request: Request, trees: Mapping[str, Tree], site_run: SiteRun, response: Response, k: int
    ) -> Handled:
        clients = site_run.clients
        with coded("request"):
            algorithm = site_run.algorithm(request.algorithm)
        if request.algorithm == TRAIN and request.kind in ("work", "secure"):
            _check_round(request.round, clients.experiment.schedule.rounds)
        secure = clients.experiment.secure_exchange(algorithm, clients.task_of(k))
        if request.kind == "secure":
            release = self._release_of_sum(request)
            answer = self.secure.answer(request, secure, k)
            return Handled(dataclasses.replace(response, secure=answer), release=release)
        if request.kind == "work" and (secure is None) != (request.secure is None):
            raise SiteProblem(
                "policy", "the server asks for an open reply in a run with secure sums, or for the reverse"
            )
        store = SiteStore(self.state, request.spec.experiment, self.name)
        if request.kind == "model":
            return Handled(response, {"model": self._delivered(request, store)})
        broadcast = _with_frozen(trees["broadcast"], request.frozen, store)
        downlink = Downlink(broadcast.to(clients.device), {k: trees["per_client"].to(clients.device)})
        with coded("tensors"):
            _check_downlink(downlink, algorithm, clients, k, request.round)
        with coded("state"):
            kept = self._state(request, store, clients.initial_state(k)).to(clients.device)
        states = ClientStates(clients.initial_state, {k: kept})
        if request.kind == "test":
            metrics = site_run.metrics if self.policy.report_metrics else NO_METRICS
            tests = ModelTests(clients, algorithm, downlink, states, request.round, k, metrics)
            if request.given and response.tests:
                with coded("tensors"):
                    return Handled(tests.test_given(response, trees["model"], request.given))
            return self._test(request, tests, trees.get("model"), response, store)
        release = self._release(request, downlink, kept, clients) if _sends_statistics(algorithm) else ""
        if release and request.secure is not None:
            self.secure.release, release = release, _of_sum(release, request.secure.clients)
        if release:
            self._check_release(release)
        (job,) = clients.work(algorithm, downlink, states, request.round)
        (reply,) = Loop().train(job)
        spent = {}
        if isinstance(algorithm, Stage) and algorithm.protected and algorithm.class_rows:
            spent = self._spend(request, algorithm, clients.experiment.privacy)
            reply = reply._replace(send=algorithm.add_noise(reply.send, k, clients.task_of(k)))
        elif request.algorithm == TRAIN and isinstance(clients.privacy, PrivateSamples):
            spent = self._spend_round(request, clients.privacy, k, response.samples)
        for tree in (reply.send, reply.keep):  # a diverged state is neither sent nor kept
            reply_check.check_finite(tree, f"client {k}, round {request.round}")
        send = reply.send
        if secure is not None:  # the server can unmask the sum without this site
            send = self.secure.mask(request, secure, send, response.samples)
        elif send and secure_sums.find(clients.experiment.uploads) is not None:
            raise SiteProblem("policy", f"{request.algorithm} would send openly an entry that is no sum")
        frozen = Tree() if request.frozen else clients.frozen_part(broadcast)

        def commit() -> None:
            if frozen:
                store.save(FROZEN, frozen)
            if request.algorithm == TRAIN:
                store.keep_state(request.round, reply.keep, request.accepted, request.best)
            else:
                store.save(f"stage-{request.algorithm}", reply.keep)

        loss = reply.losses.get("train") if self.policy.report_train_loss else None
        response = dataclasses.replace(
            response,
            left_out=clients.small_classes(algorithm, k) if secure is None else [],
            train_loss=None if loss is None else finite(float(loss)),
        )
        return Handled(response, {"send": send}, commit, release, spent)

    def _test(
        self, request: Request, tests: ModelTests, model: Tree | None, response: Response, store: SiteStore
    ) -> Handled:
        """Test the site's model, validate it and the global model, and store the site's model, as requested."""
        sums, commit = dict[str, Tree](), None
        if response.tests:
            response = tests.test(response)
        if response.validations and request.validate:
            response = tests.validate(response)
            if model is not None:
                with coded("tensors"):
                    response, sums = tests.validate_global(response, model, self.policy.min_class_count)
        if request.deliver:
            commit = partial(store.save, f"model-{request.algorithm}", tests.personal_model())
        return Handled(response, sums, commit)

    def _delivered(self, request: Request, store: SiteStore) -> Tree:
        """Return the site's final model, if its policy permits that it leaves the site."""
        self.policy.check_share()
        with coded("state"):
            model = store.load(f"model-{request.algorithm}")
        if model is None:
            raise SiteProblem("state", f"the final model of this run is not in {store.path}: put it back")
        reply_check.check_finite(model, "the site's final model")
        return model

    def _releases(self) -> dict[str, dict[str, Any]]:
        """Return the first ledger entry of each earlier release of statistics, by its digest."""
        releases = dict[str, dict[str, Any]]()
        for entry in self.ledger.entries():
            if entry["site"] == self.name and entry.get("release"):
                releases.setdefault(entry["release"], entry)
        return releases

    def _check_statistics(self, request: Request, site_run: SiteRun, k: int) -> None:
        """Check a run's statistics before its first round, so that no training is lost."""
        names = [name for name, algorithm in site_run.algorithms.items() if _sends_statistics(algorithm)]
        table = request.spec.schema
        values = len(table.columns) if table else sum(t[0].numel() for t in tensors_of(request.spec.blank()))
        self.policy.check_features(names, site_run.clients.task_of(k).model.features, values)
        if names and request.kind == "hello" and self.name != request.spec.leave_out_site:
            run, earlier = request.spec.experiment, self._releases().values()
            # A resumed run may have sent the statistics of its stages, which then need no other release.
            self.policy.check_releases(sum(entry["run"] != run or entry["kind"] == "statistics" for entry in earlier))

    def _private_releases(self) -> dict[tuple[str, str, str], float]:
        """Return μ of each earlier release with differential privacy, by its run, exchange and secure sum."""
        return {
            (entry["run"], entry["algorithm"], (entry.get("secure") or {}).get("id", "")): float(entry["privacy"]["mu"])
            for entry in self._private_replies()
            if "mu" in entry["privacy"]
        }

    def _private_replies(self) -> Iterator[dict[str, Any]]:
        return (entry for entry in self.ledger.entries() if entry["site"] == self.name and entry.get("privacy"))

    def _check_privacy(self, request: Request, site_run: SiteRun) -> None:
        """Check before the first round that the releases of earlier runs and of this one fit into the budget."""
        experiment, run = site_run.clients.experiment, request.spec.experiment
        planned, open_replies = dict[tuple[str, str, str], float](), list[str]()
        for label, algorithm in site_run.algorithms.items():
            if isinstance(algorithm, Stage) and algorithm.protected and algorithm.class_rows:
                planned[run, label, ""] = algorithm.mu
            elif algorithm.aggregates and (label != TRAIN or experiment.schedule.rounds):
                open_replies.append(f"the exchange {label}")
        earlier = {} if self.policy.max_epsilon is None else self._private_releases()  # reads the whole ledger
        planned = {key: mu for key, mu in planned.items() if not any(key[:2] == old[:2] for old in earlier)}
        self.policy.check_privacy(experiment.privacy, [*planned.values(), *earlier.values()], open_replies)

    def _spend(self, request: Request, stage: Stage, privacy: Sequence[Protection]) -> dict[str, float]:
        """Return the budget that a reply spends; another reply to the same exchange would spend it twice."""
        earlier = self._private_releases()
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

    def _spend_round(self, request: Request, private: PrivateSamples, k: int, samples: int) -> dict[str, float]:
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

    def _release(self, request: Request, downlink: Downlink, kept: Tree, clients: Clients) -> str:
        """Return the digest of a release of statistics.

        It covers everything that the sums depend on, except the kind of statistics: all stages of a run that start from
        the same weights are one release.
        """
        asked = to_json(dataclasses.replace(request, kind="work", seconds=1.0, algorithm="", frozen="", secure=None))
        (k,) = downlink.per_client
        samples = clients.federation.train.take(clients.federation.indices[k])
        tensors = {str(i): t for i, t in enumerate((*tensors_of(samples.x), samples.y))}
        trees = [digest_of(tree.leaves(), 16) for tree in (downlink.broadcast, downlink.per_client[k], kept)]
        return digest_json([asked, *trees, digest_of(tensors, 16)], 16)

    def _release_of_sum(self, request: Request) -> str:
        """Return the digest of statistics in a secure sum and of the sites in it, before its masks are revealed.

        Two sums of the same statistics over different sites are two releases: their difference may be one site's.
        """
        if request.secure is None or request.secure.step != "unmask" or not self.secure.release:
            return ""
        release = _of_sum(self.secure.release, map(int, request.secure.messages))
        self._check_release(release)
        return release

    def _check_release(self, release: str) -> None:
        """Check that statistics may be sent once more, or were sent before."""
        if release not in (earlier := self._releases()):
            self.policy.check_releases(len(earlier))

    def _state(self, request: Request, store: SiteStore, initial: Tree) -> Tree:
        """Return the stored client state after the round or stage that the request names."""
        if request.kind == "test" and request.staged:
            state = store.load(f"stage-{request.algorithm}")
        elif request.accepted == 0:
            return initial
        else:
            state = store.load(f"state-{request.accepted}")
        if state is None and initial:
            after = f"stage {request.algorithm}" if request.staged else f"round {request.accepted}"
            raise SiteProblem(
                "state",
                f"the state of site {self.name} after {after} is not in {store.path}: put it back or start anew",
            )
        return initial if state is None else state


def _check_round(round: int, planned: int) -> None:
    """Check that the server asks for a round that the run has."""
    if round > planned:
        raise SiteProblem("request", f"the server asks for round {round} of a run of {planned} rounds")


def _of_sum(release: str, clients: Iterable[int]) -> str:
    """Return the digest of statistics in a secure sum over these clients."""
    return digest_json([release, sorted(clients)], 16)


def _sends_statistics(algorithm: Algorithm) -> bool:
    """Return whether an exchange sends statistics of the samples, and not once per round as a method does."""
    return isinstance(algorithm, Stage) and bool(algorithm.class_rows)


def _with_frozen(broadcast: Tree, digest: str, store: SiteStore) -> Tree:
    """Fill in stored frozen parameters that the server left out of the broadcast.

    Raises:
        SiteProblem: If they are not stored, or have another digest than the server's.
    """
    if not digest:
        return broadcast
    with coded("frozen"):
        stored, model = store.load(FROZEN) or Tree(), broadcast["model"]
    frozen = {name: t for name, t in stored.items() if name in model and not model[name].numel()}
    if digest_of(frozen, 16) != digest:
        raise SiteProblem("frozen", f"the server's frozen parameters are not in {store.path}: it sends them again")
    return broadcast.replace(model=model.replace(frozen))


def _check_downlink(downlink: Downlink, algorithm: Algorithm, clients: Clients, k: int, round: int) -> None:
    """Check that the server's tensors match the schema of the recipe's model."""
    server = clients.method.init_server(clients.initial[clients.assign[k]], clients.task_of(k))
    known = schema(make_downlink(algorithm, server, [k], clients.task_of).broadcast)
    received = schema(downlink.broadcast)
    for name in known.keys() & received.keys():
        if known[name] != received[name]:
            raise reply_check.Refused(
                f"the server sent {name!r} as {received[name]}, this site's model has {known[name]}: "
                "the two were set up with different models, classes or inputs"
            )
    for tree in (downlink.broadcast, *downlink.per_client.values()):
        reply_check.check_finite(tree, f"client {k}, round {round}")
