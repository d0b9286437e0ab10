"""Secure sums: exact with dropouts, a server's view like noise, liars named, wrong requests refused."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from tiers import quick

from fedhead.core.system.errors import BadInput
from fedhead.privacy.secure_sum import identity, shamir
from fedhead.privacy.secure_sum.client import SecureSumClient
from fedhead.privacy.secure_sum.fixed_point import FixedPoint
from fedhead.privacy.secure_sum.masks import mask
from fedhead.privacy.secure_sum.neighbours import Neighbours
from fedhead.privacy.secure_sum.server import SecureSumServer
from fedhead.privacy.secure_sum.session import SecureSumError, Session

STEPS = ("advertise", "share", "mask", "unmask")


@dataclass
class Federation:
    """Clients and server of one session in this process; what the server receives is recorded."""

    clients: int
    length: int = 50
    neighbours: int = 100
    seen: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        self.vectors = rng.integers(-(2**40), 2**40, (self.clients, self.length)).view(np.uint64)
        numbers = range(self.clients)
        keys = identity.new_keys(numbers)
        self.registered = {k: key.public_key() for k, key in keys.items()}
        self.session = Session(secrets.token_bytes(16), tuple(numbers), -(-2 * self.clients // 3), self.neighbours)
        self.members = {k: SecureSumClient(self.session, k, keys[k], self.registered) for k in numbers}
        self.server = SecureSumServer(self.session, self.registered)

    def run(
        self,
        dropped: Mapping[str, Sequence[int]] | None = None,
        change: Callable[[str, int, Any], Any] = lambda step, k, message: message,
    ) -> np.ndarray:
        """Return the sum; `dropped` miss a step, `change` replaces what a client sends."""
        gone: set[int] = set()

        def ask(step: str, messages: Mapping[int, Any]) -> dict[int, Any]:
            gone.update((dropped or {}).get(step, ()))
            answers = {}
            for k in sorted(messages.keys() - gone):
                given = {"advertise": (), "mask": (messages[k], self.vectors[k])}.get(step, (messages[k],))
                answers[k] = change(step, k, getattr(self.members[k], step)(*given))
                parts = answers[k].values() if isinstance(answers[k], dict) else [bytes(answers[k])]
                self.seen.extend(parts)
            return answers

        outgoing: Any = self.server.advertised(ask("advertise", dict.fromkeys(self.members)))
        outgoing = self.server.shared(ask("share", outgoing))
        for k, vector in ask("mask", outgoing).items():
            self.server.add(k, vector)
        survivors = self.server.masked()
        return self.server.unmasked(ask("unmask", dict.fromkeys(survivors, survivors)))

    def plain(self) -> np.ndarray:
        return self.vectors[sorted(self.server.survivors)].sum(0)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_sums_are_exact_with_dropouts_at_every_step(step: str, share: float) -> None:
    federation = Federation(10)
    count = int(share * 10)
    total = federation.run({step: range(2, 2 + count)})
    assert len(federation.server.survivors) == (10 if step == "unmask" else 10 - count)
    np.testing.assert_array_equal(total, federation.plain())


def test_sums_are_exact_with_one_dropout_at_each_step() -> None:
    federation = Federation(12)
    total = federation.run({step: [place] for place, step in enumerate(STEPS)})
    assert federation.server.survivors == list(range(3, 12))
    np.testing.assert_array_equal(total, federation.plain())


@pytest.mark.parametrize("step", quick(STEPS, "mask"))
def test_sums_are_exact_where_clients_have_few_neighbours(step: str) -> None:
    federation = Federation(60, length=3, neighbours=40)
    total = federation.run({step: range(0, 60, 10)})
    assert not federation.server._neighbours.complete
    np.testing.assert_array_equal(total, federation.plain())


@pytest.mark.slow
def test_100_sites_send_few_more_bytes_than_plain_statistics_of_1280_features() -> None:
    federation = Federation(100, length=1)
    federation.run({"mask": range(10)})
    masked = 90 * 8
    plain = masked * (10 + 10 * 1280 + 1280 * 1281 // 2)  # counts, sums and one second moment of ten classes
    assert sum(map(len, federation.seen)) - masked < 0.01 * plain  # the length of the vectors changes nothing else


def test_neighbours_are_mutual_and_the_same_for_all() -> None:
    adverts = {k: bytes([k]) for k in range(50)}
    session = Session(b"s", tuple(adverts), 34, neighbours=10)
    one, two = Neighbours(session, adverts), Neighbours(session, dict(reversed(adverts.items())))
    for k in adverts:
        holders = one.holders(k)
        assert holders == two.holders(k)
        assert len(holders) == 11
        assert all(k in one.holders(j) for j in holders)
    assert one.holders(0) != Neighbours(Session(b"t", tuple(adverts), 34, neighbours=10), adverts).holders(0)


def test_too_few_clients_for_the_threshold_end_the_session() -> None:
    for step in STEPS:
        with pytest.raises(SecureSumError, match=r"6 of 10 clients .* at least 7|6 shares of client 0's secret"):
            Federation(10).run({step: range(4)})


def test_what_the_server_sees_is_like_noise() -> None:
    federation = Federation(4, length=50_000)
    federation.vectors[:] = 0  # without masks every byte would be 0
    federation.run()
    vectors = [part for part in federation.seen if len(part) == 8 * federation.length]
    assert len(vectors) == 4
    for k in range(4):  # single vectors, and differences and sums of two, none of which is the sum of all
        one, two = (np.frombuffer(vectors[j % 4], np.uint64) for j in (k, k + 1))
        for view in (one, one + two, one - two):
            counts = np.bincount(view.view(np.uint8), minlength=256)
            assert scipy.stats.chisquare(counts).pvalue > 1e-6
    shares = b"".join(part[:-16] for part in federation.seen if len(part) == 2 * shamir.SHARE + 16)
    assert scipy.stats.chisquare(np.bincount(np.frombuffer(shares, np.uint8), minlength=256)).pvalue > 1e-6
    masked = np.frombuffer(b"".join(vectors), np.uint64).reshape(4, -1)
    assert masked.sum(0).all()  # the clients' own masks stay in the sum until they agree to remove them


def test_without_the_survivors_consent_the_sum_stays_masked() -> None:
    federation = Federation(10)
    with pytest.raises(SecureSumError, match="6 shares"):
        federation.run({"unmask": range(4)})


# -- lies ---------------------------------------------------------------------------------------------
def test_a_wrong_signature_is_named_and_left_out() -> None:
    federation = Federation(10)
    flip = lambda step, k, m: m[:-1] + bytes([m[-1] ^ 1]) if (step, k) == ("advertise", 3) else m  # noqa: E731
    total = federation.run(change=flip)
    assert federation.server.liars == {3: "the keys of client 3 are not signed by its registered key"}
    np.testing.assert_array_equal(total, federation.plain())


def test_clients_refuse_keys_that_the_server_has_replaced() -> None:
    federation = Federation(5)
    adverts = {k: member.advertise() for k, member in federation.members.items()}
    intruder = SecureSumClient(federation.session, 2, identity.new_keys([2])[2], {})
    with pytest.raises(SecureSumError, match="keys of client 2 are not signed by its registered key"):
        federation.members[0].share(adverts | {2: intruder.advertise()})


def test_clients_refuse_the_keys_of_an_earlier_session() -> None:
    federation, later = Federation(5), Federation(5)
    old = federation.members[2].advertise()
    later.members[0]._registered = federation.registered | {0: later.registered[0]}
    with pytest.raises(SecureSumError, match="not signed"):
        later.members[0].share({k: member.advertise() for k, member in later.members.items()} | {2: old})


def test_a_client_that_is_not_there_cannot_be_replayed() -> None:
    """The server repeats a session's identity and the signed keys of a client that dropped out of the first one."""
    federation = Federation(5)
    old = federation.members[2].advertise()
    members = {k: federation.members[k] for k in (0, 1, 3, 4)}
    keys = {k: member.advertise() for k, member in members.items()} | {2: old}
    shares = {k: member.share(keys) for k, member in members.items()}
    with pytest.raises(SecureSumError, match="shares of client 2 can't be decrypted"):
        members[0].mask({k: shares[k][0] for k in (1, 3, 4)} | {2: secrets.token_bytes(82)}, federation.vectors[0])


def test_a_client_with_anothers_key_ends_the_session() -> None:
    federation = Federation(5)
    federation.members[4]._masking = federation.members[1]._masking
    with pytest.raises(SecureSumError, match="clients 1 and 4 advertise the same key"):
        federation.run()


def test_an_invalid_key_is_named_and_left_out() -> None:
    class Zero:
        def public_key(self) -> Any:
            return self

        def public_bytes_raw(self) -> bytes:
            return bytes(32)

    federation = Federation(10)
    federation.members[4]._masking = Zero()  # type: ignore[assignment]
    total = federation.run()
    assert federation.server.liars == {4: "client 4 has invalid keys"}
    np.testing.assert_array_equal(total, federation.plain())


def test_missing_shares_are_named_and_left_out() -> None:
    federation = Federation(10)
    fewer = lambda step, k, m: {5: m[5]} if (step, k) == ("share", 3) else m  # noqa: E731
    total = federation.run(change=fewer)
    assert federation.server.liars == {3: "client 3 has not shared its secrets with all of its neighbours"}
    np.testing.assert_array_equal(total, federation.plain())


def test_a_neighbour_names_shares_that_it_cannot_decrypt() -> None:
    federation = Federation(5)
    noise = lambda step, k, m: {j: bytes(82) for j in m} if (step, k) == ("share", 3) else m  # noqa: E731
    with pytest.raises(SecureSumError, match="shares of client 3 can't be decrypted"):
        federation.run(change=noise)


def test_a_wrong_revealed_share_is_named_and_not_used() -> None:
    federation = Federation(10)
    wrong = lambda step, k, m: {j: bytes(33) for j in m} if (step, k) == ("unmask", 1) else m  # noqa: E731
    total = federation.run({"mask": [9]}, wrong)
    assert federation.server.liars == {1: "client 1 revealed a wrong share of client 0's secret"}
    np.testing.assert_array_equal(total, federation.plain())


def test_wrong_shares_of_many_end_the_session() -> None:
    wrong = lambda step, k, m: {j: bytes(33) for j in m} if step == "unmask" and k < 5 else m  # noqa: E731
    with pytest.raises(SecureSumError, match="some revealed wrong shares"):
        Federation(10).run(change=wrong)


def test_shares_split_wrongly_end_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, split = Federation(10), shamir.split
    seed = federation.members[3]._seed
    monkeypatch.setattr(shamir, "split", lambda secret, *rest: split(bytes(32) if secret == seed else secret, *rest))
    with pytest.raises(SecureSumError, match="shares of client 3's secret"):
        federation.run()


# -- requests of the server ---------------------------------------------------------------------------
def _until_unmask(federation: Federation) -> None:
    server, members = federation.server, federation.members
    shares = server.advertised({k: member.advertise() for k, member in members.items()})
    incoming = server.shared({k: members[k].share(message) for k, message in shares.items()})
    for k, message in incoming.items():
        server.add(k, members[k].mask(message, federation.vectors[k]))


def test_a_server_that_asks_for_both_kinds_of_shares_is_refused() -> None:
    federation = Federation(10)
    _until_unmask(federation)
    member = federation.members[0]
    first = member.unmask(range(10))
    assert set(first) == set(range(10))
    assert all(len(share) == shamir.SHARE for share in first.values())
    with pytest.raises(SecureSumError, match="refuses to unmask: each step is taken once"):
        member.unmask(range(7))


@pytest.mark.parametrize("survivors", [range(6), range(1, 10), [*range(9), 77]])
def test_a_wrong_list_of_survivors_is_refused(survivors: Sequence[int]) -> None:
    federation = Federation(10)
    _until_unmask(federation)
    with pytest.raises(SecureSumError, match=r"at least 7 are needed|not one of this session"):
        federation.members[0].unmask(survivors)


def test_clients_that_never_took_part_do_not_count_as_survivors() -> None:
    federation = Federation(10)
    server, members = federation.server, {k: federation.members[k] for k in range(8)}
    shares = server.advertised({k: member.advertise() for k, member in members.items()})
    incoming = server.shared({k: members[k].share(message) for k, message in shares.items()})
    for k, message in incoming.items():
        members[k].mask(message, federation.vectors[k])
    with pytest.raises(SecureSumError, match="not one of this session"):
        members[0].unmask([0, 1, 2, 3, 4, 8, 9])  # five vectors, and two clients that sent nothing


def test_different_lists_of_survivors_give_no_client_away() -> None:
    """The server pretends to half of the clients that client 9 has dropped out: too few shares of each secret."""
    federation = Federation(10)
    _until_unmask(federation)
    revealed = {k: federation.members[k].unmask(range(10 if k < 5 else 9)) for k in range(9)}
    for size in (0, 1):
        shares = [revealed[k][9] for k in range(9) if (k < 5) == bool(size)]
        assert len(shares) < federation.session.threshold


def test_steps_in_another_order_are_refused() -> None:
    member = Federation(5).members[0]
    with pytest.raises(SecureSumError, match="refuses to unmask"):
        member.unmask(range(5))
    with pytest.raises(SecureSumError, match="refuses to advertise"):
        member.advertise()


def test_too_few_adverts_are_refused_by_the_client() -> None:
    federation = Federation(10)
    adverts = {k: federation.members[k].advertise() for k in range(6)}
    with pytest.raises(SecureSumError, match="6 of 10 clients have advertised keys, at least 7"):
        federation.members[0].share(adverts)


# -- encoding -----------------------------------------------------------------------------------------
def test_encoded_sums_are_exact_in_any_order() -> None:
    code = FixedPoint(clients=100, range=1e6)
    rng = np.random.default_rng(1)
    parts = [{"a": torch.from_numpy(rng.uniform(-1e6, 1e6, (3, 4)))} for _ in range(100)]
    vectors = np.stack([code.encode(part) for part in parts])
    total, turned = vectors.sum(0), vectors[::-1].sum(0)
    np.testing.assert_array_equal(total, turned)
    decoded = code.decode(total, {"a": torch.empty(3, 4, dtype=torch.float64, device="meta")})["a"]
    expected = torch.stack([part["a"] for part in parts]).sum(0)
    torch.testing.assert_close(decoded, expected, rtol=0, atol=100 * 2.0 ** -(code.bits + 1))


def test_the_largest_numbers_of_all_clients_fit() -> None:
    code = FixedPoint(clients=1000, range=2.0**24)
    for sign in (-1, 1):
        vector = code.encode({"a": torch.full((1,), sign * 2.0**24, dtype=torch.float64)})
        total = np.repeat(vector, 1000).sum(keepdims=True)
        assert code.decode(total, {"a": torch.empty(1, dtype=torch.float64)})["a"].item() == sign * 1000 * 2.0**24


@pytest.mark.parametrize("value", [2.0**24 * 1.01, -1e300, float("inf"), float("nan")])
def test_numbers_outside_the_range_are_refused_before_they_leave(value: float) -> None:
    with pytest.raises(BadInput, match=r"'outer' holds .* more than the range 1.67772e"):
        FixedPoint(10, 2.0**24).encode({"outer": torch.tensor([0.0, value])})


def test_integers_and_ranges_without_room_are_refused() -> None:
    with pytest.raises(BadInput, match=r"'label' is torch\.int64"):
        FixedPoint(10, 1.0).encode({"label": torch.tensor([1])})
    with pytest.raises(BadInput, match=r"range 1e\+18 is too large for 10 clients"):
        FixedPoint(10, 1e18).encode({"a": torch.zeros(1)})


# -- parts --------------------------------------------------------------------------------------------
def test_shares_give_the_secret_only_at_the_threshold() -> None:
    secret = secrets.token_bytes(32)
    shares = shamir.split(secret, 3, range(5))
    for chosen in ([0, 1, 2], [4, 2, 0], [1, 3, 4]):
        assert shamir.join({k: shares[k] for k in chosen}) == secret
    assert shamir.join({k: shares[k] for k in (0, 1)}) != secret


def test_a_mask_is_the_key_stream_of_rfc_8439() -> None:
    # RFC 8439, appendix A.1, test vector 1: key, nonce and counter are zero
    assert mask(bytes(32), 1).tobytes().hex() == "76b8e0ada0f13d90"
