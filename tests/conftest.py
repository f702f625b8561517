"""For tests that call commands, wherever they are."""

import logging
import sys

import pytest


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Call ``ray-diloco`` here, in an empty folder; gives exit code, output and errors."""
    from ray_diloco.experiment.main import main  # brings much that other tests need not

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ray-diloco", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    yield call
    for handler in logging.getLogger().handlers[:]:
        if isinstance(handler, logging.FileHandler):
            logging.getLogger().removeHandler(handler)
            handler.close()
