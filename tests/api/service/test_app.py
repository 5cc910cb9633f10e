"""The application: tests of api/service/app.py."""

from pathlib import Path

from api.service.app import make_app
from api.service.openapi import make_document
from api.settings import Settings


def test_the_document_names_every_route(tmp_path: Path):
    """Tests that the document and the routes have the same paths and methods, the page's own files aside."""
    app = make_app(Settings(data=tmp_path, needs_keys=False))
    app.state.service.close()
    routes = {
        (route.path, method.lower())
        for router in app.routes
        for route in getattr(getattr(router, "original_router", None), "routes", [router])
        for method in getattr(route, "methods", ()) or ()
        if method != "HEAD"
    }
    stated = {(path, method) for path, item in make_document()["paths"].items() for method in item}
    assert routes - {("/", "get"), ("/static/{folder}/{name:path}", "get")} == stated
