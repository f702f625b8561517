"""What is said of a Ray that cannot be joined, without one."""

from ray_diloco.cluster.ray_session import AUTH, unanswered


def test_a_ray_that_does_not_answer_may_want_a_token_that_nobody_sent(monkeypatch):
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379\nand more")
    monkeypatch.delenv(AUTH, raising=False)
    told = str(unanswered("10.0.0.1:6379", error))
    assert told == (
        "ray.address='10.0.0.1:6379': expected a Ray that answers: Failed to connect to Ray "
        "cluster at 10.0.0.1:6379; one that asks for a token needs RAY_AUTH_MODE=token"
    )
    monkeypatch.setenv(AUTH, "token")
    assert "RAY_AUTH_MODE" not in str(unanswered("10.0.0.1:6379", error))


def test_where_nobody_listens_no_token_helps(monkeypatch):
    monkeypatch.delenv(AUTH, raising=False)
    told = str(unanswered("127.0.0.1:9", ConnectionRefusedError(111, "Connection refused")))
    assert told.endswith("expected a Ray that answers: [Errno 111] Connection refused")
