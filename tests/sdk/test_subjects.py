"""What is stored for two different things never has one name.
Method: properties over any two pairs of ids, drawn so that hyphens fall together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treadle.sdk.identifier import is_id
from treadle.sdk.subjects import MAIN_DOMAIN, Subjects

_NAMES = Subjects("ns")
_ids = st.one_of(
    st.just(MAIN_DOMAIN), st.text("ab-_", min_size=1, max_size=6).filter(is_id), st.just("main-a")
)


@given(st.tuples(_ids, _ids), st.tuples(_ids, _ids))
def test_workers_of_two_domains_or_two_types_share_no_consumer(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    names = [_NAMES.worker_consumer(task_type, domain) for domain, task_type in (one, other)]
    assert (names[0] == names[1]) == (one == other)


@given(_ids, _ids, _ids, _ids)
def test_a_register_is_found_by_its_subject(domain: str, run: str, step: str, type_: str) -> None:
    address = _NAMES.parse_register(_NAMES.register(run, step, type_, domain))
    assert (address.domain, address.run, address.step) == (domain, run, step)


def test_domains_whose_hyphens_fall_together_have_consumers_of_their_own() -> None:
    assert _NAMES.worker_consumer("b-c", "a") != _NAMES.worker_consumer("c", "a-b")
