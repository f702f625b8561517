from dataclasses import replace

from scripted import master_report, node_report

from ray_diloco.experiment.range_sum import check_range_sum


def violations(node, account=None, rejected=()):
    accounts = {node.node_id: {node.nonce: account or {}}}
    return check_range_sum((node,), master_report(accounts=accounts, rejected=list(rejected)))


def test_every_step_merged_is_well():
    assert violations(node_report(local_steps=40), {"merged": "1-40", "rejected": ""}) == []


def test_steps_count_on_from_an_earlier_incarnation():
    node = node_report(local_steps=10, first_step=30)
    assert violations(node, {"merged": "31-40"}) == []
    assert violations(node, {"merged": "30-40"}) != []


def test_each_loss_on_the_books_counts():
    node = node_report(local_steps=50, dropped="21-25", unsent="41-45", unresolved="46-50")
    assert violations(node, {"merged": "1-20,26-30", "rejected": "31-40"}) == []


def test_a_step_that_is_nowhere_is_told():
    told = violations(node_report(local_steps=40), {"merged": "1-19,21-40"})
    assert told == ["node n0: steps 20-20 were trained and are nowhere"]


def test_a_step_that_was_merged_and_dropped_is_told():
    told = violations(node_report(local_steps=20, dropped="20-20"), {"merged": "1-20"})
    assert told == ["node n0: steps 20-20 count as merged and as dropped"]


def test_a_step_that_nobody_trained_is_told():
    told = violations(node_report(local_steps=20), {"merged": "1-21"})
    assert told == ["node n0: steps 21-21 count although nobody trained them"]


def test_the_masters_account_resolves_a_fate_that_the_node_did_not_learn():
    node = node_report(local_steps=20, unresolved="11-20")
    assert violations(node, {"merged": "1-20"}) == []
    assert violations(node, {"merged": "1-10"}) == []


def test_a_refused_delta_without_a_readable_header_is_counted_from_the_nodes_side():
    told = replace(node_report(local_steps=20), rejected={"11-20": "not safetensors"})
    assert violations(told, {"merged": "1-10"}) == []
    untold = replace(node_report(local_steps=20), awaiting={"20": "11-20"})
    refusal = {"node": "n0", "local_step": 20, "path": "p", "reason": "not safetensors"}
    assert violations(untold, {"merged": "1-10"}, [refusal]) == []
    assert violations(untold, {"merged": "1-10"}) != []


def test_nodes_without_an_account_have_merged_nothing():
    assert check_range_sum((node_report(local_steps=0),), master_report()) == []
    assert check_range_sum((node_report(local_steps=3),), master_report()) != []
