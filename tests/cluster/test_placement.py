"""Which machine each actor goes to, and why there is none for it."""

import pytest

from ray_diloco.cluster.asks import placement_of
from ray_diloco.cluster.misplacement import GIB, require_places
from ray_diloco.cluster.placement import Ask, Machine, NoPlace, Placement, Strategy, place
from ray_diloco.cluster.settings import ClusterSettings, RaySettings
from ray_diloco.errors import ConfigError
from ray_diloco.timing.profile import NodeProfile

JOINED = RaySettings(address="auto")


def machine(key: str, *, here: bool = False, labels: dict | None = None, **resources: float):
    return Machine(
        key=key, address=f"10.0.0.{key}", resources=resources, labels=labels or {}, here=here
    )


THREE = [
    machine("1", here=True, CPU=4),
    machine("2", CPU=4, GPU=1, labels={"kind": "gpu"}),
    machine("3", CPU=8, memory=8 * GIB, labels={"kind": "big", "zone": "a"}),
]


def ask(resources: dict | None = None, **fields) -> Ask:
    return Ask(prefix="cluster.profiles[0].", resources=resources or {}, **fields)


def nodes(*asks: Ask, strategy: Strategy = Strategy.spread) -> Placement:
    named = {f"n{number}": each for number, each in enumerate(asks)}
    return Placement(asks=named, strategy=strategy)


def refusal(wanted: Placement, **options) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        require_places(wanted, THREE, **options)
    return refused.value


def test_nodes_are_spread_evenly():
    found = place(nodes(*[ask()] * 6), THREE)
    assert sorted(found.values()) == ["1", "1", "2", "2", "3", "3"]
    assert list(found) == [f"n{number}" for number in range(6)]


def test_nodes_are_packed_on_few_machines():
    found = place(nodes(*[ask({"CPU": 3})] * 2, strategy=Strategy.pack), THREE)
    assert len(set(found.values())) == 2
    assert set(place(nodes(*[ask()] * 5, strategy=Strategy.pack), THREE).values()) == {"1"}


def test_who_needs_a_gpu_gets_it_before_those_that_need_none():
    found = place(nodes(ask(), ask(), ask({"GPU": 1.0})), THREE)
    assert found["n2"] == "2"
    assert len(set(found.values())) == 3


def test_parts_of_a_gpu_are_shared():
    assert place(nodes(*[ask({"GPU": 0.25})] * 4), THREE) == {f"n{n}": "2" for n in range(4)}


def test_room_that_spreading_wastes_is_found_by_packing():
    small, large = ask({"CPU": 2}), ask({"CPU": 6})
    assert place(nodes(small, small, large), [machine("1", CPU=4), machine("2", CPU=6)])


def test_strictly_spread_nodes_share_no_machine_wherever_an_arrangement_exists():
    wanted = nodes(
        ask(labels={"kind": "in(gpu,big)"}),
        ask(labels={"kind": "gpu"}),
        ask(),
        strategy=Strategy.strict_spread,
    )
    assert place(wanted, THREE) == {"n0": "3", "n1": "2", "n2": "1"}


def test_the_master_may_share_a_machine_with_a_node():
    wanted = nodes(ask(), ask(), ask(), strategy=Strategy.strict_spread)
    master = Ask(prefix="ray.master_", apart=False, stays=True)
    found = place(
        Placement(asks={**wanted.asks, "n0/master": master}, strategy=wanted.strategy), THREE
    )
    assert found["n0/master"] == "1"


def test_one_that_has_lost_its_machine_goes_where_there_is_room():
    wanted = nodes(ask(), ask(), ask({"CPU": 3}), strategy=Strategy.strict_spread)
    assert place(wanted, THREE, placed={"n0": "1", "n1": "2"})["n2"] == "3"
    with pytest.raises(NoPlace):
        place(wanted, THREE[:2], placed={"n0": "1", "n1": "2"})
    with pytest.raises(NoPlace):
        place(nodes(ask({"CPU": 3}), ask({"CPU": 3})), THREE[:1], placed={"n0": "1"})


def test_a_label_that_no_machine_has_is_named_with_those_that_there_are():
    error = refusal(nodes(ask(labels={"kind": "tpu"})))
    assert error.setting == "cluster.profiles[0].label_selector"
    assert str(error).endswith("that a machine of this Ray cluster has: kind is big, gpu")
    assert "cannot place n0" in str(error)
    assert "none has rack" in str(refusal(nodes(ask(labels={"rack": "1"}))))


def test_labels_that_no_machine_has_together_are_named():
    error = refusal(nodes(ask(labels={"kind": "gpu", "zone": "a"})))
    assert error.expected.endswith("labels that one machine has together")


@pytest.mark.parametrize(
    ("resources", "setting", "words"),
    [
        ({"GPU": 2.0}, "num_gpus", "expected 1 GPUs at most"),
        ({"CPU": 9.0}, "num_cpus", "expected 8 CPUs at most"),
        ({"memory": 16.0 * GIB}, "memory_gb", "expected 8 GiB of memory at most"),
        ({"tape": 1.0}, "resources.tape", "expected 0 tape at most"),
    ],
)
def test_more_than_the_largest_machine_has_is_refused(resources, setting, words):
    error = refusal(nodes(ask(resources)))
    assert error.setting == f"cluster.profiles[0].{setting}"
    assert words in error.expected


def test_what_no_single_machine_has_together_is_refused():
    error = refusal(nodes(ask({"GPU": 1.0, "CPU": 6.0})))
    assert (error.setting, error.value) == ("cluster.profiles[0]", "num_gpus=1, num_cpus=6")


def test_more_than_all_machines_have_is_refused():
    error = refusal(nodes(*[ask({"GPU": 1.0})] * 2))
    assert "cannot place n1" in error.expected
    assert "1 of 3 machines suit it" in error.expected


def test_more_strictly_spread_nodes_than_machines_are_refused():
    error = refusal(nodes(*[ask()] * 4, strategy=Strategy.strict_spread))
    assert (error.setting, error.value) == ("ray.strategy", "strict_spread")
    assert "cannot place n3" in error.expected


def test_nodes_ask_for_what_their_profiles_and_overrides_say():
    cluster = ClusterSettings(
        nodes=2,
        profiles=[NodeProfile(num_cpus=2, memory_gb=1.5, resources={"tape": 1})],
        overrides={"n1": {"num_gpus": 0.5, "label_selector": {"kind": "gpu"}}},
    )
    wanted = placement_of(cluster, JOINED, nodes=("n0", "n1"), leader="n0", device="cuda")
    own = {"CPU": 2, "memory": 1.5 * GIB, "tape": 1}
    assert wanted.asks["n0"] == Ask(prefix="cluster.profiles[0].", resources=own | {"GPU": 1.0})
    assert wanted.asks["n1"] == Ask(
        prefix="cluster.overrides.n1.", resources=own | {"GPU": 0.5}, labels={"kind": "gpu"}
    )
    assert wanted.asks["n0/master"] == Ask(prefix="ray.master_", apart=False, stays=True)


def test_a_master_with_labels_of_its_own_goes_there():
    ray = RaySettings(address="auto", master_label_selector={"kind": "gpu"}, master_num_gpus=0.5)
    wanted = placement_of(ClusterSettings(), ray, nodes=(), leader="n0", device="cuda")
    assert require_places(wanted, THREE) == {"n0/master": "2"}
    refused = RaySettings(address="auto", master_label_selector={"kind": "x"})
    wanted = placement_of(ClusterSettings(), refused, nodes=(), leader="n0", device="cpu")
    assert refusal(wanted).setting == "ray.master_label_selector"


def test_on_a_ray_that_is_started_here_nobody_asks_for_anything():
    cluster = ClusterSettings(nodes=1, profiles=[NodeProfile(num_cpus=64)])
    wanted = placement_of(cluster, RaySettings(), nodes=("n0",), leader=None, device="cuda")
    assert wanted.asks["n0"].resources == {}


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"master_label_selector": {"kind": "in()"}}, "ray.master_label_selector"),
        ({"master_num_gpus": 1.5}, "ray.master_num_gpus"),
        ({"start_seconds": 0.0}, "ray.start_seconds"),
        ({"autoscales": True, "strategy": Strategy.strict_spread}, "ray.strategy"),
        ({"address": "nonsense://x"}, "ray.address"),
        ({"address": "ray://head"}, "ray.address"),
        ({"address": "head"}, "ray.address"),
        ({"address": "head:x"}, "ray.address"),
        ({"address": ""}, "ray.address"),
    ],
)
def test_settings_that_cannot_be_are_named(changes, setting):
    with pytest.raises(ConfigError) as refused:
        RaySettings(**changes).check()
    assert refused.value.setting == setting


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "[::1]:6379", "ray://head:10001"])
def test_addresses_of_a_ray_are_taken(address):
    RaySettings(address=address).check()
