"""Part of a site in a secure sum, kept in the worker between requests: a restart is a dropout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedhead.core.tree.tree import Tree
from fedhead.engine.policies.secure_sums import SecureExchange
from fedhead.flower.wire import secure_messages
from fedhead.flower.wire.protocol import Request, RunSpec, SecureRequest
from fedhead.flower.wire.site_errors import SiteProblem, coded
from fedhead.privacy.secure_sum.client import SecureSumClient
from fedhead.privacy.secure_sum.session import Message

if TYPE_CHECKING:
    from fedhead.privacy.secure_sum.identity import PrivateKey, PublicKey

Keys = Callable[[RunSpec], tuple["PrivateKey", Mapping[int, "PublicKey"]]]


def no_keys(spec: RunSpec) -> tuple[PrivateKey, Mapping[int, PublicKey]]:
    """Refuse a secure sum: the site has no keys."""
    raise SiteProblem("secure", "the run has secure sums: set key and site_keys in site.yaml")


@dataclass
class SiteSecureSum:
    """Current session of a site.

    Args:
        keys: Returns the site's private key and the public keys of all sites, by client number.
        min_sites: Smallest number of sites in a sum that the site's policy permits.
    """

    keys: Keys = no_keys
    min_sites: int = 0
    release: str = ""  # digest of the statistics in the masked vector
    _member: SecureSumClient | None = None
    _exchange: tuple[str, int, str] = ("", 0, "")  # algorithm, round and identity of the session

    def answer(self, request: Request, secure: SecureExchange | None, k: int) -> dict[str, str]:
        """Take a step without tensors.

        Args:
            request: Request of the server.
            secure: Exchange of the request; None: it has no secure sum.
            k: Number of the site.
        """
        asked = _asked(request)
        with coded("secure"):
            message = secure_messages.unpack(asked.messages)
            if asked.step == "advertise":
                self._begin(request, asked, secure, k)
            member = self._current(request, asked)
            steps: dict[str, Callable[[], Message]] = {
                "advertise": lambda: {k: member.advertise()},
                "share": lambda: member.share(message),
                "unmask": lambda: member.unmask(message.keys()),
            }
            if asked.step not in steps:
                raise SiteProblem("request", f"step {asked.step} of a secure sum has tensors")
            return secure_messages.pack(steps[asked.step]())

    def mask(self, request: Request, secure: SecureExchange, send: Tree, samples: int) -> Tree:
        """Check, encode and mask the site's reply.

        Args:
            request: Request of the server.
            secure: Exchange of the request.
            send: Reply of the site.
            samples: Number of its training samples.
        """
        asked = _asked(request)
        with coded("secure"):
            shares = secure_messages.unpack(asked.messages)
            return secure.mask(self._current(request, asked), shares, send, samples)

    def _begin(self, request: Request, asked: SecureRequest, secure: SecureExchange | None, k: int) -> None:
        self._member, self.release = None, ""
        invited, sites = asked.clients, range(len(request.spec.sites))
        if secure is None or sorted(set(invited)) != invited or not {k} <= set(invited) <= {*sites}:
            raise SiteProblem("request", "the run has no such secure sum")
        session = secure.session(bytes.fromhex(asked.id), invited)
        if len(invited) >= 2 * session.threshold:
            raise SiteProblem("request", "two groups of these sites could each reveal one of a site's two secrets")
        if session.threshold < self.min_sites:
            raise SiteProblem(
                "policy",
                f"a secure sum of this run may cover {session.threshold} sites, 'min_sum_sites' in site.yaml requires "
                f"{self.min_sites}",
            )
        self._member = SecureSumClient(session, k, *self.keys(request.spec))
        self._exchange = (request.algorithm, request.round, asked.id)

    def _current(self, request: Request, asked: SecureRequest) -> SecureSumClient:
        if self._member is None or self._exchange != (request.algorithm, request.round, asked.id):
            raise SiteProblem("secure", "the site is not in this secure sum: it was restarted, or another one began")
        return self._member


def _asked(request: Request) -> SecureRequest:
    if request.secure is None:
        raise SiteProblem("policy", "the run has secure sums, and the server asks for an open reply")
    return request.secure
