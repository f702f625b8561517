"""What the Hub says of a model card before it is committed."""

import yaml
from aiohttp import web

FENCE = "---"


async def validate_card(request: web.Request) -> web.Response:
    """400 and why when the header of a README.md cannot be read."""
    given = await request.json()
    problem = problem_of(given.get("content", ""))
    errors = [{"message": problem}] if problem else []
    return web.json_response({"errors": errors, "warnings": []}, status=400 if errors else 200)


def problem_of(text: str) -> str | None:
    """What is wrong with the YAML between the first two fences; a card may do without."""
    if not text.startswith(f"{FENCE}\n"):
        return None
    header, fence, _ = text.removeprefix(f"{FENCE}\n").partition(f"\n{FENCE}")
    if not fence:
        return "the header has no end"
    try:
        found = yaml.safe_load(header)
    except yaml.YAMLError as error:
        return f"the header is no YAML: {' '.join(str(error).split())}"
    return None if isinstance(found, dict | None) else "the header is no mapping"
