"""Answers that nobody collects: gradio keeps those of the last 2,000 sessions, and the names of
every session's calls.
"""

from gradio.queueing import Queue

from page.identity import visitor_of


def forget(queue: Queue, visitor: str) -> None:
    """Drop what the queue keeps for the sessions of a visitor who has left. From any thread."""
    for event in list(queue.event_ids_to_events.values()):
        if visitor_of(event.session_hash) == visitor:
            event.alive = False  # so that what still runs sends its answer to nobody
    for kept in (queue.pending_messages_per_session, queue.pending_event_ids_session):
        for session in list(kept):
            if visitor_of(session) == visitor:
                kept.pop(session, None)
