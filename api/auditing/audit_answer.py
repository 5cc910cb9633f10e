"""The answer to an audit that a service, or an agent, asks for."""

import json
from dataclasses import fields
from typing import Any

from api.auditing.audit_files import audit_files
from api.auditing.audit_report import summarise_audit
from api.auditing.audit_request import AuditRequest
from api.auditing.audited_problem import make_audited_problem
from api.auditing.configuration_audit import audit
from api.auditing.configuration_files import read_configuration
from profiles.configurations.audit_question import AuditQuestion
from profiles.configurations.known_models import find_sheet
from profiles.load import workload_of


def answer_audit(request: AuditRequest) -> dict[str, Any]:
    """What `pipeplan audit --json` says; raises ValueError for what is not understood."""
    model = request.model if request.config is None else json.dumps(request.config)
    given = {each.name: getattr(request, each.name) for each in fields(AuditQuestion)}
    measured = None if request.workload is None else workload_of(request.workload, source="workload").profile
    try:
        found = read_configuration(AuditQuestion(**{**given, "model": model}))
        sheet = find_sheet(request.gpu, memory_gib=request.gpu_memory, network_gb_per_s=request.network_gb_per_s)
        problem = make_audited_problem(found, gpu=sheet, measured=measured)
    except ValueError as error:
        raise ValueError(_placed(str(error), request)) from None
    result = audit(problem, time_limit_s=request.time_limit_s, others=request.other_degrees)
    return summarise_audit(result) | ({"files": audit_files(result)} if request.files else {})


def _placed(reason: str, request: AuditRequest) -> str:
    """The reason behind the field of the body that it is of: an option that is given, or else the file's text."""
    named = reason.lstrip("-").partition(":")[0].partition(" ")[0].removesuffix(".json").replace("-", "_")
    name = {"set": "variables", "degree": "tp"}.get(named, named)
    is_of_text = request.text is not None and reason.startswith(f"{request.file}:")  # a file may be called model.json
    is_option = not is_of_text and getattr(request, name, None) is not None
    field = name if is_option else "" if request.text is None else "text"
    return f"{field}: {reason}" if field else reason
