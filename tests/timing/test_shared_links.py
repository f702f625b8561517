import threading
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_diloco.protocol.clock import Access, Micros, Transfer, micros
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.timing.shared_links import Flow, SharedLinks, fair_rates
from ray_diloco.timing.virtual import VirtualClock

HUB = (("hub up", 1.0),)
"""One byte per microsecond: 8 megabits per second."""


def test_transfers_that_overlap_share_a_link_and_one_alone_has_all_of_it():
    links = SharedLinks()
    links.begin("a", Flow(1_000_000, None, HUB), Micros(0))
    assert links.end("a") == micros(1.0)
    links.begin("b", Flow(500_000, None, HUB), micros(0.5))
    assert (links.end("a"), links.end("b")) == (micros(1.5), micros(1.5))
    links.begin("c", Flow(100_000, None, HUB), micros(1.2))
    assert links.end("c") == micros(1.5)
    assert links.end("a") == links.end("b") == micros(1.6)


def test_what_a_slow_machine_leaves_goes_to_the_others():
    rates = fair_rates({"slow": Flow(1, 0.1, HUB), "x": Flow(1, None, HUB), "y": Flow(1, 5.0, HUB)})
    assert rates == pytest.approx({"slow": 0.1, "x": 0.45, "y": 0.45})


def test_a_region_and_the_hub_each_bound_what_goes_over_both():
    region = (("eu", 0.5), *HUB)
    rates = fair_rates(
        {"a": Flow(1, None, region), "b": Flow(1, None, region), "c": Flow(1, None, HUB)}
    )
    assert rates == pytest.approx({"a": 0.25, "b": 0.25, "c": 0.5})


FLOWS = st.lists(
    st.tuples(st.integers(0, 5_000), st.integers(0, 3_000), st.sampled_from([None, 0.3, 2.0])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(FLOWS)
def test_an_end_only_moves_away_and_no_byte_is_carried_twice(flows):
    links, ends = SharedLinks(), {}
    for key, (at, size, own) in enumerate(sorted(flows, key=lambda flow: flow[0])):
        links.begin(key, Flow(size, own, HUB), Micros(at))
        for known, end in ends.items():
            assert links.end(known) >= end
        ends = {each: links.end(each) for each in range(key + 1)}
    first, last = min(at for at, *_ in flows), max(ends.values())
    assert last - first >= sum(size for _, size, _ in flows) * 1.0 - 1
    assert all(
        ends[k] - at >= size - 1
        for k, (at, size, _) in enumerate(sorted(flows, key=lambda f: f[0]))
    )


def transfers(plan, disturb=None):
    """Runs one thread a node: ``{name: [(starts at, bytes), ...]}``. Gives when each one ended."""
    shared = NodeProfile(shared_up={"hub": 8.0}, seconds_per_step=0.25)
    clock = VirtualClock(plan, yield_to_others=disturb)
    ended = {name: [] for name in plan}

    def lane(name, size):
        yield Transfer("up", size)
        yield Access(lambda: ended[name].append(clock.now()))

    def node(name):
        with closing(clock.port(name, profile=shared)) as port:
            for at, size in plan[name]:
                while port.now() < at:
                    port.before_step(1)
                    port.after_step()
                port.collect()
                port.start(f"upload{at}", lane(name, size))
            while len(ended[name]) < len(plan[name]):
                port.wait()
                port.collect()

    threads = [threading.Thread(target=node, args=(name,), daemon=True) for name in plan]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return ended, clock.trace_hash()


def test_nodes_share_the_hubs_link_to_the_microsecond_while_they_train():
    plan = {"a": [(0, 1_000_000)], "b": [(micros(0.5), 500_000)]}
    ended, _ = transfers(plan)
    assert ended == {"a": [micros(1.5)], "b": [micros(1.5)]}


def test_shared_links_repeat_however_threads_are_disturbed():
    plan = {
        "a": [(0, 700_001), (micros(1), 300_000)],
        "b": [(micros(0.25), 123_457), (micros(0.75), 999_999)],
        "c": [(0, 31), (micros(0.5), 400_000)],
    }
    pause = threading.Event()
    runs = [transfers(plan)] + [transfers(plan, lambda k=k: pause.wait(k * 2e-4)) for k in (1, 2)]
    assert runs[0] == runs[1] == runs[2]
