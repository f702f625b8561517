import pytest

from ray_diloco.errors import NodeInUseError
from ray_diloco.node.locking import sole_use


def test_a_state_folder_has_one_user_at_a_time(tmp_path):
    with (
        sole_use(tmp_path, node_id="n0"),
        pytest.raises(NodeInUseError, match=r"'n0' is in use: another process on this machine"),
        sole_use(tmp_path, node_id="n0"),
    ):
        pass


def test_a_state_folder_is_free_after_its_user_failed(tmp_path):
    with pytest.raises(ZeroDivisionError), sole_use(tmp_path, node_id="n0"):
        raise ZeroDivisionError
    with sole_use(tmp_path, node_id="n0"):
        pass


def test_the_lock_is_readable_by_nobody_else(tmp_path):
    with sole_use(tmp_path, node_id="n0"):
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
