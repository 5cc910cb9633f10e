"""What an audit leaves behind, by file name."""

from api.auditing.audit_flags import files_of
from api.auditing.configuration_audit import Audit
from planner.document import render_plan
from profiles.documents.canonical_json import to_plain
from profiles.workload import Workload, dump_workload


def audit_files(audit: Audit) -> dict[str, str]:
    """The workload, the configuration as a plan, the better plan with its certificate, and what its program reads."""
    problem = audit.audited.problem
    workload = Workload(
        profile=problem.profile,
        cluster=problem.cluster,
        num_microbatches=problem.num_microbatches,
        options=to_plain(problem.options),
    )
    texts = {"workload.json": dump_workload(workload)}
    if audit.played is not None:
        texts["audited.json"] = render_plan(audit.played.plan)
    if audit.better is not None:
        texts |= {"plan.json": render_plan(audit.better), **files_of(audit.audited, audit.better)}
    return texts
