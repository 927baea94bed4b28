"""Ray's own validator of cluster files: what `ray up` checks before it starts anything, without starting anything."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import jsonschema
import ray
from ray._private.label_utils import validate_node_label_syntax
from ray.autoscaler._private.util import prepare_config, validate_config

from hetero.errors import PlanError

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def check_cluster_config(raw: Mapping[str, Any], *, source: str) -> str:
    """Let Ray's validator look at a cluster file, as read. Returns the version of Ray that found nothing to say.

    Raises PlanError with the place in the file and what Ray says of it. No cloud is asked anything.
    """
    provider = raw.get("provider")
    if not isinstance(provider, dict) or "type" not in provider:
        raise PlanError(f"{source}: provider.type is missing; it says who has the machines, such as `aws` or `local`")
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            prepared = prepare_config(deepcopy(dict(raw)))
            validate_config(prepared)
    except jsonschema.ValidationError as error:
        raise PlanError(f"{source}: Ray {ray.__version__} refuses {_place(error)}: {error.message}") from None
    except Exception as error:
        reason = str(error) or _last_line(said.getvalue()) or type(error).__name__
        raise PlanError(f"{source}: Ray {ray.__version__} refuses it: {reason}") from None
    for name, node_type in (raw.get("available_node_types") or {}).items():
        check_labels(node_type.get("labels") or {}, where=f"{source}: node type `{name}`")
    return str(ray.__version__)


def check_labels(labels: Mapping[str, str], *, where: str) -> None:
    """Raises PlanError for a label that Ray would not give to a node."""
    try:
        validate_node_label_syntax(dict(labels))
    except ValueError as error:
        raise PlanError(f"{where}: {error}") from None


def _place(error: jsonschema.ValidationError) -> str:
    path = ".".join(str(part) for part in error.absolute_path)
    return f"`{path}`" if path else "the file"


def _last_line(text: str) -> str:
    lines = [line for line in _COLOURS.sub("", text).splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
