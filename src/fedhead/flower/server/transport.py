"""Flower transport of the round loop: messages to sites on other machines over a Flower grid.

It maps nodes to sites, sends requests with a deadline, and reports missing and invalid responses. As in a simulation,
the round loop selects the cohort, accepts replies and records metrics. The sites store the client states; the transport
only tracks which version of a state is valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.system.text import printable
from fedhead.core.tree.digest import digest_of
from fedhead.core.tree.schema import Schema, schema
from fedhead.core.tree.tree import Tree
from fedhead.data.pool import Pool
from fedhead.engine.clients import evaluation
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.evaluation import ClientTest, ClientTests
from fedhead.engine.clients.server import global_model, initial_server, make_downlink
from fedhead.engine.policies import secure_sums
from fedhead.engine.policies.reply_check import Refused
from fedhead.engine.rounds.transport import Context, Quorum, Received, SecureStep, Transport
from fedhead.executors.client.reply_set import ClientReply, ReplySet
from fedhead.flower.ledger import Ledger
from fedhead.flower.server.connections import SiteConnections, where
from fedhead.flower.server.dry_run import DryRun
from fedhead.flower.server.messaging import Answer, Failure, Outgoing
from fedhead.flower.server.node_keys import from_pem
from fedhead.flower.server.secure_sums import read_answers, with_step
from fedhead.flower.server.timeouts import Timeouts
from fedhead.flower.server.validation import Validation
from fedhead.flower.site.site_metrics import computed_at_sites, not_at_sites, reported
from fedhead.flower.wire.protocol import TRAIN, Request, Response, RunSpec, exchanges
from fedhead.metrics.records import Row
from fedhead.metrics.registry import NO_METRICS, Metric
from fedhead.privacy.secure_sum.session import Message, Session

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from fedhead.privacy.secure_sum.identity import PublicKey

GRACE = 5.0  # seconds added to the sites' deadline for the network


class SiteStates(dict[int, int | str]):
    """Version of each site's valid state: the round number or stage name after which it was stored."""

    def __missing__(self, client: int) -> int:
        return 0  # the initial state

    @property
    def kept(self) -> SiteStates:
        """States other than the initial ones."""
        return self

    def keep(self, clients: Sequence[int], kept: Sequence[int | str]) -> None:
        """Set the valid state of these sites."""
        self.update(zip(clients, kept, strict=True))

    def copy(self) -> SiteStates:
        """Return a copy."""
        return SiteStates(self)


class FlowerTransport(SiteConnections, Transport):
    """Sites behind a Flower grid.

    Args:
        grid: Flower's grid.
        spec: Specification of the run.
        dry_run: Server-side clients.
        timeouts: Timeouts and quorum.
        test: Test samples of the server.
        log: Called with each message for the operator.
        keys: Public keys by site; a node with another key is refused. Empty: no authentication.
        ledger: Counterpart of the sites' ledgers.
    """

    name = "flower"
    remote = True

    def __init__(
        self,
        grid: Grid,
        spec: RunSpec,
        dry_run: DryRun,
        timeouts: Timeouts,
        test: Pool | None = None,
        log: Callable[[str], None] = print,
        keys: Mapping[str, bytes] | None = None,
        ledger: Ledger | None = None,
    ):
        super().__init__(grid, spec, timeouts, log, keys, None if ledger is None else ledger.append)
        self.dry_run, self.test = dry_run, test
        self.quorum = Quorum(timeouts.quorum, timeouts.attempts)
        self.server = initial_server(self.experiment.method, self.clients.initial[0], self.clients.task)
        self.states = SiteStates()
        self._metrics = computed_at_sites(spec.recipe.get("metrics") or (), spec.objective)  # reported by sites
        self._tested: dict[int, Answer] = {}  # answers of the last test, which hold the results of the validation too
        self._left_out: set[int] = set()  # sites whose metrics on validation samples lack classes, logged once
        self._exchanges = exchanges(self.experiment.method, self.experiment.stages)
        self._left_out_site = spec.number(spec.leave_out_site) if spec.leave_out_site else None
        self._lost: set[int] = set()  # sites that reported that they lost the frozen parameters

    @property
    def clients(self) -> Clients:
        """Server-side clients: architectures and tasks, without data."""
        return self.dry_run.clients

    def client_name(self, client: int) -> str:
        """Return the name of a client's site."""
        return self.spec.sites[client]

    def check(self, stage: Stage) -> None:
        """Check that a stage needs no central data and is compatible with the models."""
        if stage.oracle:
            raise BadInput(f"stage {stage.name} needs all clients' data in one place: it is for simulations only")
        self.dry_run.check(stage)

    # -- connected sites --------------------------------------------------------------------------
    def begin(self) -> None:
        """Check what callbacks watch; wait for all sites, or for a quorum after `join_seconds`."""
        self._validation.check(self.context(0), self.experiment)
        if self._left_out_site is not None and self._global_model(self.context(0)) is None:
            raise BadInput(f"leave_out_site: {self.experiment.method.name} has no global model for that site to test")
        if secure_sums.find(self.experiment.uploads) is not None and not self.nodes.keys:
            raise BadInput("secure_sum needs the sites' keys: name their folder as 'keys' in server.yaml, and use TLS")
        present = self._gather()
        name = self.spec.leave_out_site
        if name and self._left_out_site not in present:
            raise FedheadError(f"leave_out_site: {name} is not there to test the model: {self._why_absent(name)}")
        if self._left_out_site is not None and not self.nodes.tests(self._left_out_site):
            raise BadInput(f"leave_out_site: {name} has no test samples; set 'client_test' there")
        if self._validates and not any(map(self.nodes.validations, present)):
            raise FedheadError("validation: no site has validation samples; set 'validation' in site.yaml")

    def present(self) -> list[int]:
        """Return the connected sites with data; wait for a quorum if necessary."""
        present = self._training(self._connected())
        return present if len(present) >= self.timeouts.quorum else self._training(self._gather())

    def sizes(self, present: Sequence[int]) -> dict[int, int]:
        """Return the numbers of training samples that these sites reported when joining."""
        return {k: self.nodes.hellos[self.spec.sites[k]].samples for k in present}

    def why_absent(self, present: Sequence[int]) -> dict[int, str]:
        """Return the reasons of absent sites: not connected, or refused when joining."""
        names = {k: name for k, name in enumerate(self.spec.sites) if k not in (*present, self._left_out_site)}
        return {k: self._why_absent(name) for k, name in names.items()}

    def _why_absent(self, name: str) -> str:
        refused = {failure.site: failure.reason for failure in self.nodes.refused.values() if failure.site}
        return refused.get(name, "it is not connected")

    def _admit(self, response: Response) -> None:
        if response.model and secure_sums.find(self.experiment.uploads) is not None:
            raise BadInput("it has its own architecture, and secure_sum needs one for all sites")
        self.dry_run.assign(self.spec.number(response.site), response.model)

    # -- exchanges --------------------------------------------------------------------------------
    def exchange(self, context: Context, cohort: list[int]) -> Received:
        """Send each site of a cohort its request and wait for the responses."""
        expected = {k: self.dry_run.reply(context.algorithm, k, context.server) for k in cohort}
        return self._exchange(context, self._outgoing("work", context, cohort), expected)

    def _exchange(self, context: Context, outgoing: Mapping[int, Outgoing], expected: Mapping[int, Tree]) -> Received:
        label = self._label(context.algorithm)
        down = sum(tree.nbytes for message in outgoing.values() for tree in message.trees.values())
        outgoing = {k: replace(message, expected={"send": expected[k]}) for k, message in outgoing.items()}
        answers, refused = self._ask(outgoing)
        replies: dict[int, ClientReply] = {}
        for k, (response, trees) in answers.items():
            loss = None if response.train_loss is None else torch.tensor(response.train_loss, dtype=torch.float64)
            kept = context.round if label == TRAIN else label
            replies[k] = ClientReply(trees["send"], kept, float(response.samples), response.left_out, loss)
        self._lost -= replies.keys()
        return Received(ReplySet.of(replies), down, {k: Refused(why) for k, why in refused.items()})

    # -- secure sums ------------------------------------------------------------------------------
    def public_keys(self) -> Mapping[int, PublicKey]:
        """Return the registered public keys of the sites."""
        return {k: from_pem(self.nodes.keys[name]) for k, name in enumerate(self.spec.sites)}

    def secure_step(
        self, context: Context, session: Session, step: SecureStep, messages: Mapping[int, Message]
    ) -> tuple[dict[int, Message], dict[int, FedheadError]]:
        """Ask sites to take a step of a secure sum."""
        label, seconds = self._label(context.algorithm), self.timeouts.round_seconds
        request = Request("secure", self.spec, seconds, context.round, label)
        outgoing = {
            k: Outgoing(self.nodes.nodes[self.spec.sites[k]], with_step(request, session, step, message))
            for k, message in messages.items()
        }
        return read_answers(step, *self._ask(outgoing))

    def masked_exchange(self, context: Context, session: Session, messages: Mapping[int, Message]) -> Received:
        """Send each site its work and the shares of the others, and wait for the masked vectors."""
        outgoing = {
            k: replace(message, request=with_step(message.request, session, "mask", messages[k]))
            for k, message in self._outgoing("work", context, list(messages)).items()
        }
        # All sites have one architecture.
        secure = self.experiment.secure_exchange(context.algorithm, self.clients.task)
        assert secure is not None, "called only with secure sums"
        form = self.dry_run.reply(context.algorithm, min(messages), context.server)
        received = self._exchange(context, outgoing, dict.fromkeys(messages, secure.masked_form(form)))
        return replace(received, form=form)

    def schema(self, context: Context, client: int) -> Schema | None:
        """Return the schema of a site's reply, from the dry run."""
        return schema(self.dry_run.reply(context.algorithm, client, context.server))

    def evaluate(
        self, context: Context, deliver: bool = False, metrics: Mapping[str, Metric] = NO_METRICS
    ) -> ClientTests | None:
        """Ask the sites to test their models, and with `deliver` to store them."""
        label = self._label(context.algorithm)
        validate = label == TRAIN and self._validates
        tested = [
            k for k in self._connected() if deliver or self.nodes.tests(k) or (validate and self.nodes.validations(k))
        ]
        outgoing, left_out = self._outgoing("test", context, tested, deliver, validate), self._left_out_site
        if left_out in outgoing:
            outgoing[left_out] = _testing(outgoing[left_out], "global", self._global_model(context))
        each: list[ClientTest | None] = [None] * len(self.spec.sites)
        samples, computed = [0] * len(each), {name: self._metrics[name] for name in metrics if name in self._metrics}
        steps: dict[str, list[float | None]] = {}
        answers, refused = self._ask(outgoing)
        self._tested = answers
        for k, (response, _) in answers.items():
            if response.left_out and k not in self._left_out:
                self._left_out.add(k)
                self.log(
                    f"validation: site {self.spec.sites[k]} leaves classes {response.left_out} out of its metrics, "
                    "with fewer validation samples than its min_class_count"
                )
        for k, why in refused.items():
            self.log(f"{where(label, context.round)}: site {self.spec.sites[k]} was not tested: {why}")
        global_row: Row = {}
        if left_out in answers:
            response, _ = answers.pop(left_out)
            measured = reported(computed, response.metrics).values
            global_row = {"accuracy": response.accuracy, "test_loss": response.loss, "metrics": measured}
        for k, (response, _) in answers.items():
            samples[k] = response.tests
            if samples[k]:
                each[k] = ClientTest(response.accuracy, response.loss, reported(computed, response.metrics))
            for name, value in response.steps.items():
                steps.setdefault(name, [None] * len(each))[k] = value
        if not any(self.nodes.tests(k) for k in range(len(each))):
            return None
        tests = evaluation.client_tests(each, samples, steps)
        notes = tests.notes | not_at_sites(metrics, self.spec.objective)
        return replace(tests, notes=notes, global_row=global_row)

    def delivered_models(self, context: Context) -> tuple[dict[int, Answer], dict[int, str]]:
        """Ask the sites for their final models; return the answers, and the reasons of sites that refuse."""
        label, seconds = self._label(context.algorithm), self.timeouts.round_seconds
        request = Request("model", self.spec, seconds, context.round, label)
        outgoing = {}
        for k in self._connected():
            expected = self.dry_run.personal_model(context.algorithm, k, context.server)
            outgoing[k] = Outgoing(self.nodes.nodes[self.spec.sites[k]], request, expected={"model": expected})
        return self._ask(outgoing)

    def test_model(
        self, context: Context, sites: list[int], kind: Literal["", "global", "site"] = "", model: Tree | None = None
    ) -> tuple[dict[int, Answer], dict[int, str]]:
        """Ask sites to test a model, or each its own; return the answers, and the reasons of missing ones."""
        messages = self._outgoing("test", context, sites)
        return self._ask({k: _testing(message, kind, model) for k, message in messages.items()})

    def _global_model(self, context: Context) -> Tree | None:
        return global_model(context.algorithm, context.server, self.clients.task)

    def validate(self, context: Context) -> Row | None:
        """Combine the validation results that the sites sent with their last test results.

        There is no result if more sites are missing than a round may lack.
        """
        sites = range(len(self.spec.sites))
        missing = [k for k in sites if self.nodes.validations(k) and k not in self._tested]
        if not self._validates or len(self.nodes.hellos) - len(missing) < self.timeouts.quorum:
            return None
        results = [self._tested.get(k) if self.nodes.validations(k) else None for k in sites]
        personal = any(map(self.nodes.tests, sites))
        return self._validation.row(context, results, self.experiment.metrics, personal)

    @property
    def _validates(self) -> bool:
        return self.clients.federation.validation is not None

    @property
    def _validation(self) -> Validation:
        return Validation(self.clients, self._metrics)

    def _outgoing(
        self,
        kind: Literal["work", "test"],
        context: Context,
        clients: list[int],
        deliver: bool = False,
        validate: bool = False,
    ) -> dict[int, Outgoing]:
        """Return the message to each client; a site that has the frozen parameters gets empty tensors in their place.

        A site stores them before it replies, so it has them after its first accepted reply.
        """
        broadcast, per_client = make_downlink(context.algorithm, context.server, clients, self.clients.task_of)
        frozen, short = self.clients.frozen_part(broadcast), broadcast
        if frozen:
            short = broadcast.replace(model=broadcast["model"].replace(frozen.map(lambda t: t.new_empty(0))))
        digest = digest_of(frozen, 16) if frozen else ""
        validated, sums = self._validation.message(context) if validate else ({}, {})
        messages = {}
        for k, tree in per_client.items():
            kept, has_frozen = context.states[k], k in context.states and k not in self._lost
            request = Request(
                kind,
                self.spec,
                self.timeouts.round_seconds,
                context.round,
                self._label(context.algorithm),
                accepted=kept if isinstance(kept, int) else 0,
                staged=isinstance(kept, str),
                deliver=deliver,
                validate=validate,
                best=self.best.get(k, 0),
                frozen=digest if has_frozen else "",
            )
            trees = {"broadcast": short if has_frozen else broadcast, "per_client": tree, **validated}
            messages[k] = Outgoing(self.nodes.nodes[self.spec.sites[k]], request, trees, sums)
        return messages

    def _ask(self, outgoing: Mapping[int, Outgoing]) -> tuple[dict[int, Answer], dict[int, str]]:
        """Send requests to sites; return the valid answers, and the reasons of missing or invalid ones."""
        answers, refused = dict[int, Answer](), dict[int, str]()
        seconds = self.timeouts.round_seconds + GRACE
        for k, answer in self._send(outgoing, seconds).items():
            if isinstance(answer, Failure):
                refused[k] = answer.reason
                if answer.problem == "frozen":
                    self._lost.add(k)
            elif (why := self._mismatch(k, outgoing[k].request, *answer)) is not None:
                refused[k] = printable(why)
            else:
                answers[k] = answer
        return answers, refused

    def _mismatch(self, k: int, request: Request, response: Response, trees: Mapping[str, Tree]) -> str | None:
        """Return why a response does not match its request; None if it does.

        A site whose data has changed is removed from the registry, so that it joins again.
        """
        if (why := super()._mismatch(k, request, response, trees)) is not None or request.kind == "hello":
            return why
        hello = self.nodes.hellos[response.site]
        counts, before = (
            f"{each.samples} samples to train, {each.validations} to validate and {each.tests} to test on"
            for each in (response, hello)
        )
        if counts != before:
            self.nodes.forget(response.site)
            change = f"it has {counts}, but reported {before} when it joined"
            return f"{change}: its data has changed, it is asked again"
        if (response.correct or 0) > response.validations:
            return "it reports more correct predictions than validation samples"
        known = self._exchanges[request.algorithm]
        if response.steps.keys() - (known.steps() if isinstance(known, Stage) else {}).keys():
            return "it reports steps that the stage does not have"
        if (response.metrics.keys() | response.personal_metrics.keys()) - self._metrics.keys():
            return "it reports metrics that it was not asked for"
        if any(c >= self.spec.classes for c in response.left_out) or len(response.left_out) > self.spec.classes:
            return "it left out classes that there are not"
        return None

    def _label(self, algorithm: Algorithm) -> str:
        """Return the name of an algorithm in requests."""
        if isinstance(algorithm, Method):
            return TRAIN
        known: Iterable[tuple[str, Algorithm]] = self._exchanges.items()
        match = next((label for label, exchange in known if exchange == algorithm), None)
        if match is None:
            raise BadInput(f"no site knows the stage {algorithm.name} with these parameters: set it in the recipe")
        return match


def _testing(message: Outgoing, kind: Literal["", "global", "site"], model: Tree | None) -> Outgoing:
    """Return a request to test a model that is sent along."""
    sent = {} if model is None else {"model": model}
    request = replace(message.request, given=kind, deliver=False, validate=False)
    return replace(message, request=request, trees={**message.trees, **sent})
