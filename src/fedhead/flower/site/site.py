"""Site: replies to the server's requests with its own data, under its policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.stage import Stage
from fedhead.core.system.version import VERSION
from fedhead.core.tree.digest import digest_json, digest_of
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
from fedhead.flower.site.releases import Releases, digest_of_statistics, digest_of_sum, sends_statistics
from fedhead.flower.site.secure_sums import SiteSecureSum
from fedhead.flower.site.site_run import SiteRun
from fedhead.flower.site.site_store import SiteStore
from fedhead.flower.wire.protocol import TRAIN, Request, Response, RunSpec
from fedhead.flower.wire.site_errors import SiteProblem, coded
from fedhead.metrics.registry import NO_METRICS


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

    @property
    def releases(self) -> Releases:
        """Releases of the site's statistics."""
        return Releases(self.name, self.ledger, self.policy)

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
            self.releases.check_statistics(request, site_run, k)
            self.releases.check_budget(request, site_run)
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
            self.name, VERSION, request.spec.experiment, request.round, request.algorithm, None, "", **numbers
        )

    def _table_statistics(self, request: Request, k: int) -> Handled:
        """Return the statistics of the site's table, which count as a release unless the same were sent before."""
        if self.statistics is None:
            raise SiteProblem("request", "this site has no table, whose statistics the server asks for")
        self.policy.check_table_statistics()
        statistics = dataclasses.asdict(self.statistics(request.spec, k))
        release = digest_json(["table", statistics], 16)
        self.releases.check(release)
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
        release = digest_of_statistics(request, downlink, kept, clients) if sends_statistics(algorithm) else ""
        if release and request.secure is not None:
            self.secure.release, release = release, digest_of_sum(release, request.secure.clients)
        if release:
            self.releases.check(release)
        (job,) = clients.work(algorithm, downlink, states, request.round)
        (reply,) = Loop().train(job)
        spent = {}
        if isinstance(algorithm, Stage) and algorithm.protected and algorithm.class_rows:
            spent = self.releases.cost(request, algorithm, clients.experiment.privacy)
            reply = reply._replace(send=algorithm.add_noise(reply.send, k, clients.task_of(k)))
        elif request.algorithm == TRAIN and isinstance(clients.privacy, PrivateSamples):
            spent = self.releases.round_cost(request, clients.privacy, k, response.samples)
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

    def _release_of_sum(self, request: Request) -> str:
        """Return the digest of statistics in a secure sum and of the sites in it, before its masks are revealed."""
        if request.secure is None or request.secure.step != "unmask" or not self.secure.release:
            return ""
        release = digest_of_sum(self.secure.release, map(int, request.secure.messages))
        self.releases.check(release)
        return release

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
