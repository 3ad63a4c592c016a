"""Small version of the simulation of the paper's claims."""

import pytest

from ascl_sweep.reproduction.claims import Claim
from benchmarks.claims import printed_claims, simulate

FALSE_BY_THE_PAPERS_OWN_NUMBERS = (
    "AHCL is always better than Hard",
    "At K = 10, Hard and AHCL fall below MoCo",
    "ASCL is more robust to K than Hard and AHCL (smaller range of scores over K)",
)


@pytest.mark.parametrize("claim", printed_claims(), ids=lambda claim: claim.text)
def test_no_claim_that_is_true_in_the_papers_world_is_contradicted(claim: Claim) -> None:
    for seeds in (3, 10):
        found = simulate(claim, seeds, replications=10)
        assert found.is_true == (claim.text not in FALSE_BY_THE_PAPERS_OWN_NUMBERS)
        if found.is_true:
            assert found.shares["contradicted"] == 0
        else:
            assert found.shares["supported"] == 0
