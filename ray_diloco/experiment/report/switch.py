"""The switch that says what losses are drawn over; the page's script listens to it."""

_CHOICES = {"time": "time", "outer_step": "outer step", "tokens": "tokens", "bytes": "bytes"}


def axis_switch() -> str:
    """Radio buttons, so that arrow keys work."""
    choices = "".join(
        f'<label><input type="radio" name="axis" value="{value}"'
        f"{' checked' if value == 'time' else ''}><span>{text}</span></label>"
        for value, text in _CHOICES.items()
    )
    return f'<fieldset class="switch"><legend>Draw the loss over</legend>{choices}</fieldset>'
