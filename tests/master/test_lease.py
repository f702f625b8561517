from ray_diloco.master.lease import Lease
from ray_diloco.protocol.clock import Micros

SIGN = (1, "p", 0)


def expiries(*answers: tuple[int, tuple[int, str, int]]) -> list[bool]:
    lease = Lease(Micros(30), look_every=Micros(10))
    return [lease.answered(sign, Micros(at)) for at, sign in answers]


def test_a_lease_runs_out_when_the_sign_stays_the_same():
    assert expiries((0, SIGN), (10, SIGN), (20, SIGN), (30, SIGN)) == [False, False, False, True]


def test_a_publication_an_epoch_and_a_beat_each_renew_it():
    for other in ((1, "q", 0), (2, "p", 0), (1, "p", 1)):
        assert not any(expiries((0, SIGN), (20, SIGN), (29, other), (50, other)))


def test_time_without_an_answer_does_not_count():
    assert not any(expiries((0, SIGN), (1000, SIGN), (2000, SIGN)))
    assert expiries((0, SIGN), (1000, SIGN), (1010, SIGN), (1020, SIGN))[-1]
