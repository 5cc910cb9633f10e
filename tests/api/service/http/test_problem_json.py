"""What went wrong, as `application/problem+json` (RFC 9457): tests of api/service/http/problem_json.py."""

from api.service.http.problem_json import ServiceError
from tests.api.service.test_fair_queue import Site, run, settle


def test_each_tenant_has_its_limit():
    """Tests that beyond its limit a tenant is told so, beyond that of all everybody, but for a tenant's only one."""

    async def codes(site: Site, *tenants: str) -> list[str]:
        found = []
        for tenant in tenants:
            site.come(tenant)
            await settle()
            failure = site.tasks[-1].done() and site.tasks[-1].exception()
            found.append(failure.code if isinstance(failure, ServiceError) else "waits")
        return found

    async def work() -> None:
        site = Site(num_slots=2, most=4, most_of_tenant=3)
        assert await codes(site, *"aaaa") == ["waits"] * 3 + ["too_many_checks"]
        assert await codes(site, *"bb") == ["waits", "busy"]
        assert await codes(site, *"cdefg") == ["waits"] * 4 + ["busy"]
        await site.end_one("a")
        assert await codes(site, "a") == ["busy"]

    run(work())
