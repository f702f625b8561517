"""Sets of local steps as sorted, disjoint, inclusive ranges: the words of the range-sum oracle."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TEXT = re.compile(r"(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True, slots=True)
class StepRanges:
    """Which local steps something covers: ``((1, 20), (25, 40))`` is steps 1 to 20 and 25 to 40,
    ends included.
    """

    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, first: int, last: int) -> "StepRanges":
        """The steps from first to last; empty when last is before first."""
        return cls(((first, last),)) if first <= last else cls()

    @classmethod
    def parse(cls, text: str) -> "StepRanges":
        """Read "1-20,25-40"; "" is empty. ValueError unless sorted, disjoint, not touching and
        canonical.
        """
        if not text:
            return cls()
        spans: list[tuple[int, int]] = []
        for part in text.split(","):
            match = _TEXT.fullmatch(part)
            if match is None:
                raise ValueError(f"{part!r} is not a range of steps such as '1-20'")
            spans.append((int(match[1]), int(match[2])))
        ranges = cls(tuple(spans))
        if ranges != cls().union(ranges) or any(a > b for a, b in spans):
            raise ValueError(f"{text!r} is not sorted, disjoint and merged")
        return ranges

    def __str__(self) -> str:
        return ",".join(f"{first}-{last}" for first, last in self.spans)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.spans)

    def __bool__(self) -> bool:
        return bool(self.spans)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.spans:
            yield from range(first, last + 1)

    def union(self, other: "StepRanges") -> "StepRanges":
        merged: list[tuple[int, int]] = []
        for first, last in sorted(self.spans + other.spans):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return StepRanges(tuple(merged))

    def minus(self, other: "StepRanges") -> "StepRanges":
        left = list(self.spans)
        for first, last in other.spans:
            cut: list[tuple[int, int]] = []
            for a, b in left:
                cut += [
                    (x, y) for x, y in ((a, min(b, first - 1)), (max(a, last + 1), b)) if x <= y
                ]
            left = cut
        return StepRanges(tuple(left))

    def overlap(self, other: "StepRanges") -> "StepRanges":
        return self.minus(self.minus(other))

    @property
    def last(self) -> int:
        """The highest step. IndexError when empty."""
        return self.spans[-1][1]


NO_STEPS = StepRanges()
