"""What Prometheus reads: the names and labels of every metric, which alerts and dashboards ask for."""

import re

from api.jobs.job import Outcome
from api.jobs.job_metrics import GAPS, SECONDS, JobMetrics
from api.service.metrics import Metrics, render_gauges

REQUEST_BOUNDS = ("0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "60.0", "+Inf")


def lines_of(text: bytes) -> list[str]:
    """All but what explains a metric."""
    return [line for line in text.decode().splitlines() if not line.startswith("# HELP ")]


def histogram(name: str, labels: str = "") -> list[str]:
    """The lines of a histogram without its buckets."""
    return [f"# TYPE {name} histogram", f"{name}_count{labels} 1.0", f"{name}_sum{labels} 0.5"]


def test_requests_are_counted_by_route():
    """Tests that a request counts under its names, labels and bounds, and that no time of creation is listed."""
    metrics = Metrics()
    metrics.observe("GET", "/v1/plans", status=200, seconds=0.5)
    metrics.cache_hits.inc()
    bucket = 'pipeplan_request_seconds_bucket{le="%s",route="/v1/plans"} %s'
    assert lines_of(metrics.render()) == [
        "# TYPE pipeplan_requests_total counter",
        'pipeplan_requests_total{method="GET",route="/v1/plans",status="200"} 1.0',
        "# TYPE pipeplan_request_seconds histogram",
        *(bucket % (bound, float(bound == "+Inf" or float(bound) >= 0.5)) for bound in REQUEST_BOUNDS),
        'pipeplan_request_seconds_count{route="/v1/plans"} 1.0',
        'pipeplan_request_seconds_sum{route="/v1/plans"} 0.5',
        "# TYPE pipeplan_cache_hits_total counter",
        "pipeplan_cache_hits_total 1.0",
        "# TYPE pipeplan_jobs_submitted_total counter",
        "pipeplan_jobs_submitted_total 0.0",
    ]


def test_jobs_are_counted_by_their_end():
    """Tests that a worker that solved one job and crashed on one says so."""
    metrics = JobMetrics()
    metrics.ended(Outcome(state="succeeded", gap=0.5), seconds=0.5)
    metrics.given_back(is_crash=True)
    lines = [line for line in lines_of(metrics.render()) if "_bucket{" not in line]
    assert lines == [
        "# TYPE pipeplan_jobs_ended_total counter",
        'pipeplan_jobs_ended_total{state="succeeded",stopped_by="none"} 1.0',
        "# TYPE pipeplan_solver_crashes_total counter",
        "pipeplan_solver_crashes_total 1.0",
        "# TYPE pipeplan_jobs_given_back_total counter",
        "pipeplan_jobs_given_back_total 0.0",
        "# TYPE pipeplan_leases_lost_total counter",
        "pipeplan_leases_lost_total 0.0",
        "# TYPE pipeplan_job_wait_seconds histogram",
        "pipeplan_job_wait_seconds_count 0.0",
        "pipeplan_job_wait_seconds_sum 0.0",
        *histogram("pipeplan_solve_seconds"),
        *histogram("pipeplan_gap"),
    ]


def test_bounds_of_histograms_stay():
    """Tests that buckets end where rules and dashboards expect them."""
    bounds = dict.fromkeys(re.findall(r'(\w+)_bucket\{le="([^"]+)"', JobMetrics().render().decode()))
    ends = {name: [bound for each, bound in bounds if each == name] for name, _ in bounds}
    assert ends["pipeplan_gap"] == [*map(str, GAPS), "+Inf"]
    assert ends["pipeplan_solve_seconds"] == ends["pipeplan_job_wait_seconds"] == [*map(str, SECONDS), "+Inf"]


def test_gauges_of_one_name_stand_together():
    """Tests that a gauge has its labels, and one without labels its value."""
    measured = [("jobs", "Jobs.", {"state": "queued"}, 2), ("ready", "Whether.", {}, True)]
    measured.append(("jobs", "Jobs.", {"state": "failed"}, 1))
    assert lines_of(render_gauges(measured)) == [
        "# TYPE jobs gauge",
        'jobs{state="queued"} 2.0',
        'jobs{state="failed"} 1.0',
        "# TYPE ready gauge",
        "ready 1.0",
    ]
