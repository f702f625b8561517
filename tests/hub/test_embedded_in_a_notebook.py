import asyncio

from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.transport import make_client


def test_a_hub_opens_and_closes_where_an_event_loop_runs_already(tmp_path):
    async def cell() -> int:
        with EmbeddedHub(tmp_path) as hub, make_client() as client:
            return client.get(f"{hub.endpoint}/api/models/local/none").status_code

    assert asyncio.run(cell()) in (401, 404)


def test_a_hub_that_was_never_started_closes(tmp_path):
    hub = EmbeddedHub(tmp_path)
    hub.close()
    hub.close()
