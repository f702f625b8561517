import json

import pytest
from lane_driver import HandClock
from node_scene import net, scripted_weights
from safetensors.torch import save

from ray_diloco.errors import ConfigError
from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.repository import Addition
from ray_diloco.node.exchange import Exchange
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.paths import CARD_PATH, MODEL_PATH

PEERS_CARD = {
    "algorithm": "dumb_diloco",
    "bootstrap": "true",
    "model_file": MODEL_PATH,
    "outer_step": 0,
    "updated_at": "2026-01-01T00:00:00+00:00",
}


@pytest.mark.parametrize("codec", ["fp32", "int4"])
def test_in_a_run_that_a_plain_peer_leads_only_fp32_is_sent(codec, tmp_path):
    repository, clock = MemoryRepository(), HandClock()
    for path, data in (
        (MODEL_PATH, save(scripted_weights(0))),
        (CARD_PATH, json.dumps(PEERS_CARD).encode()),
    ):
        repository.commit("a peer's", additions=[Addition(path=path, source=data)])
    exchange = Exchange(
        node_id="n0",
        nonce="abc",
        run_id="",
        inner_steps=4,
        repository=repository,
        weights=Weights(net(), codec=codec, mismatch="error"),
        retry=clock.retry(),
        clock=clock,
        state_dir=tmp_path,
    )
    poll = exchange.poll(seen=(0, -1), anew=False)
    if codec == "fp32":
        assert clock.finish(poll).card.outer_step == 0
        assert exchange.peer_led
        return
    with pytest.raises(ConfigError, match="expected fp32: a plain peer leads this run"):
        clock.finish(poll)
