import pytest

from ray_diloco.cluster.settings import ClusterSettings, node_profiles
from ray_diloco.errors import ConfigError
from ray_diloco.timing.profile import NodeProfile

TRACE = "node,from,until\nn0,0,10\nn1,5,8\nn1,12,20\nn0,15,40\n"


def written(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return str(path)


def test_a_trace_says_when_each_machine_joins_and_is_away(tmp_path):
    settings = ClusterSettings(nodes=3, availability=written(tmp_path, TRACE))
    settings.check()
    found = dict(node_profiles(settings))
    assert (found["n0"].join_at, found["n0"].away) == (0.0, [[10.0, 15.0], [40.0, float("inf")]])
    assert found["n1"].join_at == 5.0
    assert found["n1"].away == [[8.0, 12.0], [20.0, float("inf")]]
    assert found["n2"] == NodeProfile()


@pytest.mark.parametrize(
    "text",
    [
        "node,since\nn0,1\n",
        "node,from,until\nn0,5,1\n",
        "node,from,until\nn0,soon,9\n",
        "node,from,until\nn0,0,5\nn0,nan,9\n",
        "node,from,until\nn0,nan,9\n",
        "",
        "node,from,until\nsomebody,1,2\n",
    ],
)
def test_a_trace_that_says_something_else_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match=r"cluster\.availability"):
        ClusterSettings(nodes=1, availability=written(tmp_path, text)).check()


def test_all_nodes_share_the_hubs_link_beside_their_own():
    settings = ClusterSettings(
        nodes=2, hub_up_mbps=100.0, profiles=[NodeProfile(shared_up={"eu": 30.0})]
    )
    settings.check()
    for _, profile in node_profiles(settings):
        assert profile.shared_up == {"eu": 30.0, "hub": 100.0}
        assert profile.shared_down == {}


def test_a_hub_without_a_link_is_refused():
    with pytest.raises(ConfigError, match=r"cluster\.hub_down_mbps"):
        ClusterSettings(hub_down_mbps=0.0).check()
