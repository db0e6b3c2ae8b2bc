"""Find the methods of a path, for the header `Allow`."""

import re
from collections.abc import Iterable

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

METHODS_OF_FILES = frozenset({"GET", "HEAD"})
"""Of a path that no route has: it is that of a static file."""


def find_methods(routes: Iterable[BaseRoute], scope: Scope) -> frozenset[str]:
    """Return the methods of the path of a request.

    Several routes may have the same path. A path such as `/v1/jobs/7:cancel` also matches the template
    `/v1/jobs/{job_id}`; the template with more text of its own is meant.
    """
    matching = [route for route in routes if isinstance(route, Route) and route.matches(scope)[0] != Match.NONE]
    meant = max((route.path for route in matching), key=_count_text, default=None)
    methods = {method for route in matching if route.path == meant for method in route.methods or ()}
    return frozenset(methods) or METHODS_OF_FILES


def _count_text(template: str) -> int:
    return len(re.sub(r"{.*?}", "", template))
