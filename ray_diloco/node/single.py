"""Role single: plain local training with the same trainer, the baseline to compare with."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray_diloco.node.account import Account, Origin
from ray_diloco.node.trainer import Trainer
from ray_diloco.protocol.clock import Micros, Port
from ray_diloco.protocol.limits import reason_to_stop
from ray_diloco.protocol.run import NodeReport, NodeStatus, Recorder, RunLimits
from ray_diloco.tensors.safetensors_writer import write_state
from ray_diloco.workload.evaluation import evaluate


class SingleNode:
    """Trains alone, without hub or master. Used once: `run` until it gives the report."""

    def __init__(
        self,
        *,
        origin: Origin,
        window: int,
        limits: RunLimits,
        trainer: Trainer,
        eval_batches: Sequence[Any],
        port: Port,
        record: Recorder,
        state_dir: Path,
    ) -> None:
        """``window``: local steps over which the reported training loss is averaged."""
        self._limits = limits
        self._trainer = trainer
        self._eval_batches = eval_batches
        self._port = port
        self._record = record
        self._model_file = state_dir / "model.safetensors"
        self._account = Account(origin, window=window)
        self._stop_asked: str | None = None

    def stop(self, reason: str) -> None:
        """Ask the node to end."""
        self._stop_asked = self._stop_asked or reason
        self._port.interrupt()

    def status(self) -> NodeStatus:
        return self._account.status

    def run(self) -> NodeReport:
        """Evaluate, train until a limit, evaluate, and keep the final model."""
        try:
            initial = self._evaluate()
            self._record("evaluation", outer_step=0, loss=initial, tokens_total=0)
            while (reason := self._reason()) is None:
                self._step()
            final = self._evaluate()
            self._record("evaluation", outer_step=0, loss=final, tokens_total=self._trainer.tokens)
            write_state(self._model_file, self._trainer.model.state_dict(), {"format": "pt"})
            self._say("done")
            return replace(
                self._account.report(reason=reason, trainer=self._trainer),
                initial_eval_loss=initial,
                eval_loss=final,
                model_file=str(self._model_file),
            )
        except BaseException:
            self._say("failed")
            raise
        finally:
            self._port.close()

    def _step(self) -> None:
        began = self._port.now()
        self._port.before_step(1, Micros(0))
        report = self._trainer.step()
        self._port.after_step()
        self._account.stepped(report, began=began, ended=self._port.now())
        self._say("training")

    def _reason(self) -> str | None:
        return self._stop_asked or reason_to_stop(
            self._limits,
            steps=self._trainer.local_step,
            tokens=self._trainer.tokens,
            now=self._port.now(),
        )

    def _evaluate(self) -> float:
        return evaluate(self._trainer.model, self._eval_batches)

    def _say(self, state: str) -> None:
        self._account.say(state, now=self._port.now(), trainer=self._trainer, coordinator=None)
