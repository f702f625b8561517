import logging

import yaml

from ray_diloco.cluster.endings import Endings
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.run import run
from ray_diloco.logs import FORMAT, MOST_BYTES, OLD_FILES, log_handler


def test_a_log_that_goes_on_for_ever_fills_no_disk(tmp_path):
    handler = log_handler(tmp_path / "run.log")
    line = logging.LogRecord("ray_diloco", logging.INFO, "", 0, "x" * 100_000, None, None)
    for _ in range((OLD_FILES + 2) * MOST_BYTES // 100_000):
        handler.emit(line)
    handler.close()
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert sizes.keys() == {"run.log", "run.log.1", "run.log.2", "run.log.3"}
    assert max(sizes.values()) <= MOST_BYTES


def test_the_log_of_the_command_line_is_kept_within_the_same_bounds():
    told = yaml.safe_load((conf_dir() / "hydra/job_logging/run_folder.yaml").read_text())
    file = told["handlers"]["file"]
    assert file["class"] == "logging.handlers.RotatingFileHandler"
    assert (file["maxBytes"], file["backupCount"]) == (MOST_BYTES, OLD_FILES)
    formatter = told["formatters"]["simple"]
    assert formatter == {"class": "ray_diloco.logs.MaskingFormatter", "format": FORMAT}


SECRET = "hf_abcdefghijklmnopqrstuvwx"


def test_a_token_in_an_error_of_the_users_own_stands_in_no_log(tmp_path):
    log, handler = logging.Logger("ray_diloco"), log_handler(tmp_path / "run.log")
    log.addHandler(handler)
    try:
        raise OSError(f"https://user:{SECRET}@host is not there")
    except OSError:
        log.exception("the data of %s", SECRET)
    handler.close()
    written = (tmp_path / "run.log").read_text()
    assert SECRET not in written
    assert written.count("hf_***") == 2


def test_a_token_in_an_error_of_the_users_own_stands_in_no_result():
    endings = Endings()
    endings.fail("n0", OSError(f"no {SECRET} here"))
    assert endings.ending().failures == {"n0": "OSError: no hf_*** here"}


def test_events_take_a_few_kilobytes_for_each_delta(small, tmp_path):
    folder = tmp_path / "run"
    done = run(small("run.max_steps=64", "diloco.inner_steps=8", "time=virtual"), folder)
    size = (folder / "events.jsonl").stat().st_size
    assert done.numbers["deltas_merged"] >= 8
    assert size < 3000 * done.numbers["deltas_merged"]
