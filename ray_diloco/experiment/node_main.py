"""The command ``ray-diloco-node``: one node as a plain process, joined to others by the repository
alone. No Ray.
"""

import os
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir

from ray_diloco.errors import ConfigError, UsageError
from ray_diloco.experiment.complaints import report
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.main import find_user_modules
from ray_diloco.experiment.names import all_groups, nearest_setting
from ray_diloco.experiment.plain_block import override_value, read_plain_block
from ray_diloco.experiment.reading import read_config, refuse_token_words
from ray_diloco.experiment.resuming import continued, run_folder
from ray_diloco.experiment.schema import Config
from ray_diloco.experiment.words import as_meant
from ray_diloco.timing.wall import WallClock
from ray_diloco.unread import say, until_unread

PROGRAM = "ray-diloco-node"
HELP = """\
ray-diloco-node: one node as a plain process; the others are reached through the repository alone.

  ray-diloco-node distributed_yaml=node.yaml run.max_steps=1000
  ray-diloco-node run.role=worker hub.repo_id=me/run node_id=laptop run.max_seconds=3600

distributed_yaml=FILE  the plain protocol's `distributed:` block: role, node_id, repo_id, ...
node_id=ID             this node's id, when there is no such file
run_dir=FOLDER         the run folder; outputs/node-ID/<time> without it
run.resume=FOLDER      go on with the run in that folder, with its configuration
any other override     as for ray-diloco; see `ray-diloco --help`

Model, data and seed must be those of the master's run: give the same overrides, such as
experiment=quickstart. cluster.node_ids=[a,b,c] deals the data to so many nodes. Role master trains
and leads the run.
The token comes from HF_TOKEN or `hf auth login`.
"""

_DEFAULTS = ("hub=huggingface", "engine=inproc", "cluster=single", "time.emulate_profile=false")
_OWN = ("distributed_yaml", "node_id", "run_dir")


def main() -> None:
    """Run one node; exits with 0, 1 (failed), 2 (wrong use) or 130 (Ctrl-C)."""
    words = sys.argv[1:]
    find_user_modules()
    try:
        with until_unread():
            code = _node(words)
    except (Exception, KeyboardInterrupt) as error:
        debug = "HYDRA_FULL_ERROR" in os.environ
        code = report(error, program=PROGRAM, debug=debug, own=_OWN)
    sys.exit(code)


def _node(words: list[str]) -> int:
    if not words or {"-h", "--help"} & set(words):
        print(HELP, end="")
        return 0 if words else 2
    refuse_token_words(words)
    config, run_dir, notes = read_command(words)
    for note in notes:
        say(note)
    from ray_diloco.experiment.following import follow  # brings torch, which help and typos spare

    code, _ = follow(config, run_dir, overrides=tuple(words))
    return code


def read_command(words: list[str]) -> tuple[Config, Path, tuple[str, ...]]:
    """Configuration, run folder, and a line for each field of the block that has no meaning here.

    The block overrides defaults, the command line overrides the block.
    """
    own = dict(word.split("=", 1) for word in words if word.split("=", 1)[0] in _OWN)
    others = as_meant(word for word in words if word.split("=", 1)[0] not in _OWN)
    node_id, from_block, notes = own.get("node_id"), (), ()
    if "distributed_yaml" in own:
        block = read_plain_block(Path(own["distributed_yaml"]).expanduser())
        node_id, from_block, notes = node_id or block.node_id, block.overrides, block.notes
    if node_id is None:
        _refuse_unknown(others)
        raise ConfigError("node_id", None, "expected an id that no other node has")
    one = f"[{override_value(node_id)}]"
    node = (f"cluster.node_ids={one}", f"cluster.run_here={one}")
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        composed = compose("config", [*_DEFAULTS, *node, *from_block, *others])
    composed = continued(composed, [*from_block, *others])
    if len(composed.cluster.node_ids) != composed.cluster.nodes:
        composed.cluster.nodes = len(composed.cluster.node_ids)
    stamp = WallClock().utc()[:19].replace(":", "-")
    usual = own.get("run_dir") or f"outputs/node-{node_id}/{stamp}"
    run_dir = Path(run_folder(composed.run.resume, usual))
    return read_config(composed), run_dir, notes


def _refuse_unknown(words: list[str]) -> None:
    """UsageError for a word that is neither a group nor one of ours, such as ``node_di=laptop``."""
    for name in (word.partition("=")[0].lstrip("+~") for word in words):
        if "." not in name and name not in all_groups():
            raise UsageError(f"{name}: {nearest_setting(name, _OWN)}")


if __name__ == "__main__":
    main()
