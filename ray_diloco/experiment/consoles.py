"""Consoles whose reader may go away (``| head``)."""

from rich.console import Console

from ray_diloco.unread import discard_output


class PatientConsole(Console):
    """Of a command that works: says nothing more once nobody reads, instead of ending the run."""

    def on_broken_pipe(self) -> None:
        """Called by rich in place of its own, which exits."""
        self.quiet = True
        discard_output()


class ShowingConsole(Console):
    """Of a command that only shows something: the error comes up, for `until_unread`."""

    def on_broken_pipe(self) -> None:
        """Called by rich while it handles the error."""
        raise
