"""The running digest depends on tokens and text, and on nothing else."""

from __future__ import annotations

import itertools
from array import array

from hypothesis import given
from hypothesis import strategies as st

from streaming.core.digest import RunningDigest

TOKENS = st.lists(st.tuples(st.integers(-1, 2**31 - 1), st.text(max_size=4)), max_size=12)


def digest_of(tokens: list[tuple[int, str]], cuts: list[int]) -> bytes:
    digest = RunningDigest()
    places = [0, *sorted(cut % (len(tokens) + 1) for cut in cuts), len(tokens)]
    for begin, end in itertools.pairwise(places):
        ids = array("i", [token for token, _ in tokens[begin:end]]).tobytes()
        digest.update(ids, "".join(text for _, text in tokens[begin:end]).encode())
    return digest.digest()


@given(TOKENS, st.lists(st.integers(0, 99), max_size=6))
def test_it_does_not_depend_on_the_cuts(tokens, cuts):
    assert digest_of(tokens, cuts) == digest_of(tokens, [])


@given(TOKENS, TOKENS)
def test_other_tokens_or_text_have_another_digest(one, other):
    def content(tokens):
        return [token for token, _ in tokens], "".join(text for _, text in tokens)

    assert (digest_of(one, []) == digest_of(other, [])) == (content(one) == content(other))


def test_a_copy_goes_its_own_way():
    digest = RunningDigest()
    digest.update(b"\1\0\0\0", b"a")
    twin = digest.copy()
    assert twin.digest() == digest.digest()
    twin.update(b"\2\0\0\0", b"b")
    assert twin.digest() != digest.digest()
    assert len(digest.digest()) == 16
