"""Cache keyed by object identity: the latest few results are kept."""

from __future__ import annotations

import gc
import weakref

from fedhead.data.identity_cache import IdentityCache


class Source:
    """Something that others are made of."""


def test_the_latest_are_kept_and_the_one_that_was_asked_for_longest_ago_is_given_up() -> None:
    made: list[str] = []

    def make(name: str) -> str:
        made.append(name)
        return name

    a, b, c = Source(), Source(), Source()
    latest: IdentityCache[str] = IdentityCache(most=2)
    asked = [[a], [b], [a], [c], [a], [b]]
    names = ["a", "b", "a again", "c", "a again", "b again"]
    found = [
        latest.get_or_make(sources, lambda name=name: make(name)) for sources, name in zip(asked, names, strict=True)
    ]
    assert found == ["a", "b", "a", "c", "a", "b again"]
    assert made == ["a", "b", "c", "b again"]


def test_order_and_number_of_the_objects_count() -> None:
    a, b = Source(), Source()
    latest: IdentityCache[int] = IdentityCache(most=4)
    assert [latest.get_or_make(s, lambda n=n: n) for n, s in enumerate([[a, b], [b, a], [a], [a, b, b], (a, b)])] == [
        0,
        1,
        2,
        3,
        0,
    ]


def test_objects_are_held_as_long_as_what_was_made_of_them_and_no_longer() -> None:
    latest: IdentityCache[int] = IdentityCache(most=1)
    source = Source()
    gone = weakref.ref(source)
    latest.get_or_make([source], lambda: 1)
    del source
    gc.collect()
    assert gone() is not None, "another object could get its identity"
    latest.get_or_make([Source()], lambda: 2)
    gc.collect()
    assert gone() is None
