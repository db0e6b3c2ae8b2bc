"""Publish a model: judge it, embed every face with it, move the pointers, and wait until every process serves it."""

from typing import Any

from app.queue.messages import Publish
from workers.context import JobContext
from workers.publishing.gate import judge_publication
from workers.publishing.publication import embed_and_move, find_move, read_champions
from workers.publishing.readiness import wait_until_served


def publish_model(message: Publish, context: JobContext) -> dict[str, Any]:
    """Continue a publication where an earlier run stopped: {"model", "tasks", "version", "verdict", "served"}.

    Once the pointers have moved, a further run only waits until they are served.
    Raises Later, Interrupted, NotFound, Stale, Conflict (archived; GateRefused or NotMeasured with their reasons).
    """
    move = find_move(context, message)
    if move is None:
        champions = read_champions(context, message)
        verdict = judge_publication(context, message, champions)
        move = embed_and_move(context, message, champions, verdict)
    context.resources.notifier.notify("changes")
    is_served = wait_until_served(context, message, move)
    return {
        "model": message.model,
        "tasks": list(message.tasks),
        "version": move["version"],
        "verdict": move["verdict"],
        "served": is_served,
    }
