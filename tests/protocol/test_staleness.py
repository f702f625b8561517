from ray_diloco.protocol.staleness import staleness


def test_a_delta_from_the_present_global_is_fresh():
    assert staleness(outer_step=7, base_outer_step=7) == 0


def test_staleness_counts_the_outer_steps_since_the_base():
    assert staleness(outer_step=7, base_outer_step=4) == 3


def test_a_delta_that_never_had_a_global_is_as_old_as_the_run():
    assert staleness(outer_step=7, base_outer_step=-1) == 7
    assert staleness(outer_step=0, base_outer_step=-1) == 0
