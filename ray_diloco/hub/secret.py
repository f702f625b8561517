"""A token that does not show itself."""


class Secret:
    """Wraps a token: masked in every text, comparable, and readable only by asking.

    It can be pickled, so that it can be handed to an actor; a pickle of it holds the token.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The token itself, for the header of a request and nothing else."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)
