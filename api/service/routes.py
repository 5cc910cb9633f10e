"""Every route of the service, by the modules that answer."""

from api.service.handlers import (
    artefact_handlers,
    health,
    notice_handlers,
    picture_handlers,
    plan_handlers,
    playback,
    webhook_handlers,
)

ROUTERS = tuple(
    handlers.router
    for handlers in (
        plan_handlers,
        artefact_handlers,
        picture_handlers,
        playback,
        webhook_handlers,
        notice_handlers,
        health,
    )
)
"""The first that fits a path answers."""
