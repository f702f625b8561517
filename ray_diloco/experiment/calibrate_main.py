"""The command ``ray-diloco-calibrate``: measure this machine, write a cluster's profile."""

import os
import platform
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.complaints import report
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.folders import require_writable
from ray_diloco.experiment.reading import read_config, refuse_token_words
from ray_diloco.experiment.words import as_meant
from ray_diloco.unread import until_unread

PROGRAM = "ray-diloco-calibrate"
HELP = """\
ray-diloco-calibrate: measure on this machine seconds per local step, the link to a hub, and what a
merge takes the master (with hub=embedded).

  ray-diloco-calibrate model=mlp
  ray-diloco-calibrate at_once=3 nodes=8 out=mine/cluster/measured.yaml
  ray-diloco --config-dir mine cluster=measured

out=FILE      what is written [calibrated/cluster/measured.yaml]
steps=N       local steps that are measured [30]
at_once=N     nodes that train beside each other meanwhile, as they will in the run [1]
nodes=N       nodes of the cluster that is written [4]
any other override as for ray-diloco: model, data and inner settings make the step, hub the link.
"""
_DEFAULTS = ("engine=inproc", "cluster=single", "time=wall", "run.progress=none")
_OWN = {"out": "calibrated/cluster/measured.yaml", "steps": "30", "at_once": "1", "nodes": "4"}


def main() -> None:
    """Measure and write; exits with 0, 1 (failed), 2 (wrong use) or 130 (Ctrl-C)."""
    try:
        with until_unread():
            _tell(sys.argv[1:])
            code = 0
    except (Exception, KeyboardInterrupt) as error:
        debug = "HYDRA_FULL_ERROR" in os.environ
        code = report(error, program=PROGRAM, debug=debug, own=_OWN)
    sys.exit(code)


def _tell(words: list[str]) -> None:
    if {"-h", "--help"} & set(words):
        print(HELP, end="")
        return
    file = _calibrate(words)
    print(f"{file}:\n{file.read_text()}\nray-diloco --config-dir {file.parent.parent} ", end="")
    print(f"cluster={file.stem}")


def _calibrate(words: list[str]) -> Path:
    given = dict(word.split("=", 1) for word in words if word.split("=", 1)[0] in _OWN)
    own = _OWN | given
    refuse_token_words(words)
    others = as_meant(word for word in words if word.split("=", 1)[0] not in _OWN)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = read_config(compose("config", [*_DEFAULTS, *others]))
    file = Path(own["out"]).expanduser()
    if file.is_dir():
        raise ConfigError("out", own["out"], "expected a file")
    require_writable("out", file.parent)
    # Brings torch, which help and typos spare.
    from ray_diloco.experiment.calibrate import as_cluster, calibrate

    found = calibrate(config, steps=_count(own, "steps"), at_once=_count(own, "at_once"))
    about = f"{config.model.name} on {platform.machine()} with {os.cpu_count()} CPUs"
    text = as_cluster(found, nodes=_count(own, "nodes"), about=about)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def _count(own: dict[str, str], name: str) -> int:
    if not own[name].isdecimal() or int(own[name]) < 1:
        raise ConfigError(name, own[name], "expected a whole number above 0")
    return int(own[name])


if __name__ == "__main__":
    main()
