--
-- PostgreSQL database dump
--


-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: api_keys; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.api_keys (
    id text NOT NULL,
    tenant text NOT NULL,
    name text NOT NULL,
    sha256 text NOT NULL,
    scopes text NOT NULL,
    created_at double precision NOT NULL,
    expires_at double precision,
    revoked_at double precision,
    hourly_jobs integer,
    concurrent_jobs integer
);


--
-- Name: events; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.events (
    job_id text NOT NULL,
    seq integer NOT NULL,
    kind text NOT NULL,
    at double precision NOT NULL,
    data text NOT NULL
);


--
-- Name: idempotency; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.idempotency (
    tenant text NOT NULL,
    idempotency_key text NOT NULL,
    body_sha256 text NOT NULL,
    job_id text NOT NULL
);


--
-- Name: jobs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.jobs (
    id text NOT NULL,
    tenant text NOT NULL,
    key_id text,
    name text NOT NULL,
    state text NOT NULL,
    request_bytes bigint NOT NULL,
    problem_key text NOT NULL,
    request_key text NOT NULL,
    is_deterministic integer NOT NULL,
    priority integer NOT NULL,
    is_pinned integer NOT NULL,
    base_id text,
    change text,
    created_at double precision NOT NULL,
    started_at double precision,
    finished_at double precision,
    attempt integer NOT NULL,
    crashes integer NOT NULL,
    worker text,
    lease_until double precision,
    is_stopped integer NOT NULL,
    spent_s double precision NOT NULL,
    version bigint NOT NULL,
    phase text,
    incumbent_ns bigint,
    lower_bound_ns bigint,
    gap double precision,
    source text,
    solution_status text,
    stopped_by text,
    error text,
    plan_sha256 text
);


--
-- Name: plans; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.plans (
    job_id text NOT NULL,
    text text NOT NULL
);


--
-- Name: requests; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.requests (
    job_id text NOT NULL,
    text text NOT NULL
);


--
-- Name: schema_version; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.schema_version (
    version integer NOT NULL
);


--
-- Name: tenants; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.tenants (
    name text NOT NULL,
    served_at double precision NOT NULL
);


--
-- Data for Name: api_keys; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.api_keys VALUES ('abababababab', 'research', 'first', 'e4a78b1091823be899e5ca5c4c56e10037b3273e351cf9d712ffbae372c7f73d', 'plans:read plans:write metrics', 1795385899.253815, NULL, NULL, NULL, NULL);
INSERT INTO public.api_keys VALUES ('cdcdcdcdcdcd', 'research', 'old', 'b40d158c56068e638014aa2da62aeac509959961f831257c75314ee81cf4017d', 'plans:read plans:write metrics', 1795385899.254888, NULL, 1795385899.2559512, NULL, NULL);


--
-- Data for Name: events; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.events VALUES ('00000000000000000000000000000001', 1, 'queued', 1795385899.2584624, '{"priority": 0}');
INSERT INTO public.events VALUES ('00000000000000000000000000000001', 2, 'started', 1795385899.2616816, '{"attempt": 1}');
INSERT INTO public.events VALUES ('00000000000000000000000000000001', 3, 'incumbent', 1795385899.2693942, '{"incumbent_ns": 18001024, "source": "x", "gap": 0.5, "phase": "search"}');
INSERT INTO public.events VALUES ('00000000000000000000000000000001', 4, 'bound', 1795385899.2693942, '{"lower_bound_ns": 1, "gap": 0.5, "phase": "search"}');
INSERT INTO public.events VALUES ('00000000000000000000000000000001', 5, 'bound', 1795385899.271331, '{"lower_bound_ns": 18000000, "gap": 5.688565272731151e-05, "phase": "end"}');
INSERT INTO public.events VALUES ('00000000000000000000000000000001', 6, 'done', 1795385899.271331, '{"state": "succeeded", "incumbent_ns": 18001024, "lower_bound_ns": 18000000, "gap": 5.688565272731151e-05, "stopped_by": "rounds"}');
INSERT INTO public.events VALUES ('00000000000000000000000000000002', 1, 'queued', 1795385899.275729, '{"priority": 0}');
INSERT INTO public.events VALUES ('00000000000000000000000000000002', 2, 'started', 1795385899.2775886, '{"attempt": 1}');
INSERT INTO public.events VALUES ('00000000000000000000000000000002', 3, 'done', 1795385899.2807379, '{"state": "failed", "incumbent_ns": null, "lower_bound_ns": null, "gap": null, "stopped_by": null}');
INSERT INTO public.events VALUES ('00000000000000000000000000000003', 1, 'queued', 1795385899.2828794, '{"priority": 0}');
INSERT INTO public.events VALUES ('00000000000000000000000000000003', 2, 'done', 1795385899.284933, '{"state": "cancelled", "incumbent_ns": null, "lower_bound_ns": null, "gap": null, "stopped_by": "user"}');
INSERT INTO public.events VALUES ('00000000000000000000000000000004', 1, 'queued', 1795385899.2872622, '{"priority": 0}');
INSERT INTO public.events VALUES ('00000000000000000000000000000004', 2, 'started', 1795385899.2888987, '{"attempt": 1}');
INSERT INTO public.events VALUES ('00000000000000000000000000000005', 1, 'queued', 1795385899.2930777, '{"priority": 3}');


--
-- Data for Name: idempotency; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.idempotency VALUES ('research', 'key-1', '7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed', '00000000000000000000000000000001');
INSERT INTO public.idempotency VALUES ('research', 'key-2', '3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3', '00000000000000000000000000000001');


--
-- Data for Name: jobs; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.jobs VALUES ('00000000000000000000000000000001', 'research', 'abababababab', 'toy', 'succeeded', 1119, '9d7a9accb084c7a540db3f29949a08d8280ca81fb8ed2a650723c18a5611bf72', '355905b8217d8ecdd0b80a912152c54500dea9542b79ca17cc8c53463f89e1cc', 1, 0, 0, NULL, NULL, 1795385899.2584624, 1795385899.2616816, 1795385899.271331, 1, 0, NULL, NULL, 0, 0, 4, NULL, 18001024, 18000000, 5.688565272731151e-05, 'balanced seeds', 'feasible', 'rounds', NULL, 'da09a5b8bfe2966dc0ba847783f85866b131731c03f60990eaa7d7699f47e7b5');
INSERT INTO public.jobs VALUES ('00000000000000000000000000000002', 'research', 'abababababab', 'toy', 'failed', 1119, '9d7a9accb084c7a540db3f29949a08d8280ca81fb8ed2a650723c18a5611bf72', '355905b8217d8ecdd0b80a912152c54500dea9542b79ca17cc8c53463f89e1cc', 1, 0, 0, NULL, NULL, 1795385899.275729, 1795385899.2775886, 1795385899.2807379, 1, 0, NULL, NULL, 0, 0, 3, NULL, NULL, NULL, NULL, NULL, 'unknown', NULL, '{"code": "solver_died", "detail": "two words"}', NULL);
INSERT INTO public.jobs VALUES ('00000000000000000000000000000003', 'research', 'abababababab', 'toy', 'cancelled', 1119, '9d7a9accb084c7a540db3f29949a08d8280ca81fb8ed2a650723c18a5611bf72', '355905b8217d8ecdd0b80a912152c54500dea9542b79ca17cc8c53463f89e1cc', 1, 0, 1, NULL, NULL, 1795385899.2828794, NULL, 1795385899.284933, 0, 0, NULL, NULL, 1, 0, 3, NULL, NULL, NULL, NULL, NULL, 'unknown', 'user', NULL, NULL);
INSERT INTO public.jobs VALUES ('00000000000000000000000000000004', 'research', 'abababababab', 'toy', 'running', 1119, '9d7a9accb084c7a540db3f29949a08d8280ca81fb8ed2a650723c18a5611bf72', '355905b8217d8ecdd0b80a912152c54500dea9542b79ca17cc8c53463f89e1cc', 1, 0, 0, NULL, NULL, 1795385899.2872622, 1795385899.2888987, NULL, 1, 0, 'worker:1:ff', 1795385959.2888987, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.jobs VALUES ('00000000000000000000000000000005', 'research', 'abababababab', 'toy', 'queued', 1119, '9d7a9accb084c7a540db3f29949a08d8280ca81fb8ed2a650723c18a5611bf72', '355905b8217d8ecdd0b80a912152c54500dea9542b79ca17cc8c53463f89e1cc', 1, 3, 0, '00000000000000000000000000000001', '{"base_objective_ns":1,"change":{"devices":1}}', 1795385899.2930777, NULL, NULL, 0, 0, NULL, NULL, 0, 0, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);


--
-- Data for Name: plans; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.plans VALUES ('00000000000000000000000000000001', '{"format": "pipeline-plan/1",
 "problem": {"profile": "toy", "profile_sha256": "cf17f483467f35e21b24970f16406d2ff92e21cd5ee05f422051c2e1544f5515", "cluster_sha256": "1a5c689b1f2c3cdabbb0f0453530d76533ddef1cbb65ce14137186bc180f22ec", "num_microbatches": 3, "options": {}},
 "stages": [
  {"layers": ["a"], "replicas": [["toy0"], ["toy1"]], "recompute": false},
  {"layers": ["b", "c", "d"], "replicas": [["toy0"], ["toy1"]], "recompute": false}],
 "schedule": {
  "toy0": ["0F0", "1F0", "1I0", "1W0", "0I0", "0W0", "0F1", "1F1", "1I1", "1W1", "0I1", "0W1", "0F2", "1F2", "1I2", "1W2", "0I2", "0W2"],
  "toy1": ["0F0", "1F0", "1I0", "1W0", "0I0", "0W0", "0F1", "1F1", "1I1", "1W1", "0I1", "0W1", "0F2", "1F2", "1I2", "1W2", "0I2", "0W2"]},
 "evidence": {
  "makespan_ns": 18001024,
  "span_ns": 18000000,
  "bubble": 5.6885652727323155e-05,
  "peak_bytes": {"toy0": 18432, "toy1": 18432},
  "lower_bound_ns": 18000000,
  "bound_kind": "work",
  "certificate": {"kind": "work", "weights": {"toy": 1048576}, "value_ns": 18000000, "enclosed": {"profile": {"name": "toy", "layers": [{"name": "a", "costs": [{"device_type": "toy", "forward_ns": 1000000, "input_grad_ns": 1000000, "weight_grad_ns": 1000000}], "parameter_bytes": 1024, "state_bytes": 4096}, {"name": "b", "costs": [{"device_type": "toy", "forward_ns": 1000000, "input_grad_ns": 1000000, "weight_grad_ns": 1000000}], "parameter_bytes": 1024, "state_bytes": 4096}, {"name": "c", "costs": [{"device_type": "toy", "forward_ns": 1000000, "input_grad_ns": 1000000, "weight_grad_ns": 1000000}], "parameter_bytes": 1024, "state_bytes": 4096}, {"name": "d", "costs": [{"device_type": "toy", "forward_ns": 1000000, "input_grad_ns": 1000000, "weight_grad_ns": 1000000}], "parameter_bytes": 1024, "state_bytes": 4096}], "edges": [{"producer": "a", "consumer": "b", "bytes": 1024}, {"producer": "b", "consumer": "c", "bytes": 1024}, {"producer": "c", "consumer": "d", "bytes": 1024}]}, "cluster": {"name": "toy", "devices": [{"name": "toy0", "type": "toy", "memory_bytes": 1073741824}, {"name": "toy1", "type": "toy", "memory_bytes": 1073741824}], "links": [{"a": "toy0", "b": "toy1", "bandwidth_bytes_per_s": 1000000000}]}}},
  "gap": 5.688565272731151e-05,
  "schedule_bound_ns": 18001024,
  "solver_bound_ns": null,
  "solution_status": "feasible",
  "stopped_by": "rounds",
  "source": "balanced seeds",
  "baselines": [{"name": "data parallel", "makespan_ns": 18004096, "span_ns": 18000000, "bubble": 0.00022750378580516095, "peak_fraction": 1.52587890625e-05, "fits_memory": true, "note": ""}, {"name": "GPipe (even layers)", "makespan_ns": 24002048, "span_ns": 24002048, "bubble": 0.25006399453913264, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "GPipe (largest stage minimised)", "makespan_ns": 24002048, "span_ns": 24002048, "bubble": 0.25006399453913264, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "1F1B (even layers)", "makespan_ns": 24004096, "span_ns": 24004096, "bubble": 0.25012797815839427, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "1F1B (largest stage minimised)", "makespan_ns": 24004096, "span_ns": 24004096, "bubble": 0.25012797815839427, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "capped greedy (even layers)", "makespan_ns": 20001024, "span_ns": 18002048, "bubble": 0.10004607764082474, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "capped greedy (largest stage minimised)", "makespan_ns": 20001024, "span_ns": 18002048, "bubble": 0.10004607764082474, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "capped 1F1B (even layers)", "makespan_ns": 24002048, "span_ns": 24002048, "bubble": 0.25006399453913264, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "capped 1F1B (largest stage minimised)", "makespan_ns": 24002048, "span_ns": 24002048, "bubble": 0.25006399453913264, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "ZB-H1 (even layers)", "makespan_ns": 20004096, "span_ns": 20004096, "bubble": 0.10018428225899334, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "ZB-H1 (largest stage minimised)", "makespan_ns": 20004096, "span_ns": 20004096, "bubble": 0.10018428225899334, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "ZB-H2 (even layers)", "makespan_ns": 20001024, "span_ns": 18002048, "bubble": 0.10004607764082474, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "ZB-H2 (largest stage minimised)", "makespan_ns": 20001024, "span_ns": 18002048, "bubble": 0.10004607764082474, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "interleaved 1F1B (even layers)", "makespan_ns": null, "span_ns": null, "bubble": null, "peak_fraction": null, "fits_memory": false, "note": "3 microbatches are not a multiple of 2 devices"}, {"name": "interleaved 1F1B (largest stage minimised)", "makespan_ns": null, "span_ns": null, "bubble": null, "peak_fraction": null, "fits_memory": false, "note": "3 microbatches are not a multiple of 2 devices"}, {"name": "breadth-first (even layers)", "makespan_ns": 21002048, "span_ns": 21002048, "bubble": 0.14294072654247814, "peak_fraction": 1.33514404296875e-05, "fits_memory": true, "note": ""}, {"name": "breadth-first (largest stage minimised)", "makespan_ns": 21002048, "span_ns": 21002048, "bubble": 0.14294072654247814, "peak_fraction": 1.33514404296875e-05, "fits_memory": true, "note": ""}, {"name": "interleaved ZB (even layers)", "makespan_ns": null, "span_ns": null, "bubble": null, "peak_fraction": null, "fits_memory": false, "note": "3 microbatches are not a multiple of 2 devices"}, {"name": "interleaved ZB (largest stage minimised)", "makespan_ns": null, "span_ns": null, "bubble": null, "peak_fraction": null, "fits_memory": false, "note": "3 microbatches are not a multiple of 2 devices"}, {"name": "capped loop (even layers)", "makespan_ns": 19001024, "span_ns": 18002048, "bubble": 0.052682634367495096, "peak_fraction": 1.33514404296875e-05, "fits_memory": true, "note": ""}, {"name": "capped loop (largest stage minimised)", "makespan_ns": 19001024, "span_ns": 18002048, "bubble": 0.052682634367495096, "peak_fraction": 1.33514404296875e-05, "fits_memory": true, "note": ""}, {"name": "capped loop 1F1B (even layers)", "makespan_ns": 21004096, "span_ns": 21004096, "bubble": 0.14302429392819382, "peak_fraction": 1.33514404296875e-05, "fits_memory": true, "note": ""}, {"name": "capped loop 1F1B (largest stage minimised)", "makespan_ns": 21004096, "span_ns": 21004096, "bubble": 0.14302429392819382, "peak_fraction": 1.33514404296875e-05, "fits_memory": true, "note": ""}, {"name": "capped V (even layers)", "makespan_ns": 19001024, "span_ns": 18002048, "bubble": 0.052682634367495096, "peak_fraction": 1.1444091796875e-05, "fits_memory": true, "note": ""}, {"name": "capped V (largest stage minimised)", "makespan_ns": 19001024, "span_ns": 18002048, "bubble": 0.052682634367495096, "peak_fraction": 1.1444091796875e-05, "fits_memory": true, "note": ""}, {"name": "capped V 1F1B (even layers)", "makespan_ns": 21002048, "span_ns": 21002048, "bubble": 0.14294072654247814, "peak_fraction": 1.1444091796875e-05, "fits_memory": true, "note": ""}, {"name": "capped V 1F1B (largest stage minimised)", "makespan_ns": 21002048, "span_ns": 21002048, "bubble": 0.14294072654247814, "peak_fraction": 1.1444091796875e-05, "fits_memory": true, "note": ""}, {"name": "SPP", "makespan_ns": 18004096, "span_ns": 18000000, "bubble": 0.00022750378580516095, "peak_fraction": 1.52587890625e-05, "fits_memory": true, "note": ""}, {"name": "OOO fast-forward", "makespan_ns": 22002048, "span_ns": 22002048, "bubble": 0.18189434001780203, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "OOO modulo", "makespan_ns": 20002048, "span_ns": 20002048, "bubble": 0.10009215056378229, "peak_fraction": 1.33514404296875e-05, "fits_memory": true, "note": ""}, {"name": "ZB automatic (even layers)", "makespan_ns": 20001024, "span_ns": 18002048, "bubble": 0.10004607764082474, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "ZB automatic (largest stage minimised)", "makespan_ns": 20001024, "span_ns": 18002048, "bubble": 0.10004607764082474, "peak_fraction": 9.5367431640625e-06, "fits_memory": true, "note": ""}, {"name": "ZB-V (even layers)", "makespan_ns": 19005120, "span_ns": 18006144, "bubble": 0.052886801030459174, "peak_fraction": 1.1444091796875e-05, "fits_memory": true, "note": ""}, {"name": "ZB-V (largest stage minimised)", "makespan_ns": 19005120, "span_ns": 18006144, "bubble": 0.052886801030459174, "peak_fraction": 1.1444091796875e-05, "fits_memory": true, "note": ""}, {"name": "V-Half-like (even layers)", "makespan_ns": 19004096, "span_ns": 19004096, "bubble": 0.05283576761557085, "peak_fraction": 1.1444091796875e-05, "fits_memory": true, "note": ""}, {"name": "V-Half-like (largest stage minimised)", "makespan_ns": 19004096, "span_ns": 19004096, "bubble": 0.05283576761557085, "peak_fraction": 1.1444091796875e-05, "fits_memory": true, "note": ""}, {"name": "V-Min (even layers)", "makespan_ns": 21008192, "span_ns": 21008192, "bubble": 0.1431913798198341, "peak_fraction": 1.1444091796875e-05, "fits_memory": true, "note": ""}, {"name": "V-Min (largest stage minimised)", "makespan_ns": 21008192, "span_ns": 21008192, "bubble": 0.1431913798198341, "peak_fraction": 1.1444091796875e-05, "fits_memory": true, "note": ""}],
  "interpolated_costs": ["4 layers on toy at width 1: scaled to 1/2 of the microbatch"],
  "assumed_divisible": [0, 1],
  "planner_version": "0.2.0",
  "solver_versions": {"highspy": "HiGHS 1.14.0"},
  "seed": 0,
  "verdict": {"passed": true, "violations": []},
  "timings": {"conditions": "not stated", "action_overhead": "not measured", "message_overhead": "not measured"},
  "improvers": [{"name": "baselines", "turns": 1, "improvements": 1, "gain_ns": 0}, {"name": "balanced seeds", "turns": 1, "improvements": 1, "gain_ns": 3072}, {"name": "dynamic programme", "turns": 1, "improvements": 0, "gain_ns": 0}, {"name": "interval programme", "turns": 1, "improvements": 0, "gain_ns": 0}, {"name": "sequential planner", "turns": 1, "improvements": 0, "gain_ns": 0}, {"name": "stages near the bound", "turns": 1, "improvements": 0, "gain_ns": 0}, {"name": "joint search", "turns": 1, "improvements": 0, "gain_ns": 0}]}}
');


--
-- Data for Name: requests; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.requests VALUES ('00000000000000000000000000000001', '{"limits":{"max_rounds":1,"time_limit_s":30.0},"workload":{"cluster":{"devices":[{"memory_bytes":1073741824,"name":"toy0","type":"toy"},{"memory_bytes":1073741824,"name":"toy1","type":"toy"}],"links":[{"a":"toy0","b":"toy1","bandwidth_bytes_per_s":1000000000}],"name":"toy"},"num_microbatches":3,"options":{},"profile":{"edges":[{"bytes":1024,"consumer":"b","producer":"a"},{"bytes":1024,"consumer":"c","producer":"b"},{"bytes":1024,"consumer":"d","producer":"c"}],"layers":[{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"a","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"b","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"c","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"d","parameter_bytes":1024,"state_bytes":4096}],"name":"toy"}}}');
INSERT INTO public.requests VALUES ('00000000000000000000000000000002', '{"limits":{"max_rounds":1,"time_limit_s":30.0},"workload":{"cluster":{"devices":[{"memory_bytes":1073741824,"name":"toy0","type":"toy"},{"memory_bytes":1073741824,"name":"toy1","type":"toy"}],"links":[{"a":"toy0","b":"toy1","bandwidth_bytes_per_s":1000000000}],"name":"toy"},"num_microbatches":3,"options":{},"profile":{"edges":[{"bytes":1024,"consumer":"b","producer":"a"},{"bytes":1024,"consumer":"c","producer":"b"},{"bytes":1024,"consumer":"d","producer":"c"}],"layers":[{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"a","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"b","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"c","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"d","parameter_bytes":1024,"state_bytes":4096}],"name":"toy"}}}');
INSERT INTO public.requests VALUES ('00000000000000000000000000000003', '{"limits":{"max_rounds":1,"time_limit_s":30.0},"workload":{"cluster":{"devices":[{"memory_bytes":1073741824,"name":"toy0","type":"toy"},{"memory_bytes":1073741824,"name":"toy1","type":"toy"}],"links":[{"a":"toy0","b":"toy1","bandwidth_bytes_per_s":1000000000}],"name":"toy"},"num_microbatches":3,"options":{},"profile":{"edges":[{"bytes":1024,"consumer":"b","producer":"a"},{"bytes":1024,"consumer":"c","producer":"b"},{"bytes":1024,"consumer":"d","producer":"c"}],"layers":[{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"a","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"b","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"c","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"d","parameter_bytes":1024,"state_bytes":4096}],"name":"toy"}}}');
INSERT INTO public.requests VALUES ('00000000000000000000000000000004', '{"limits":{"max_rounds":1,"time_limit_s":30.0},"workload":{"cluster":{"devices":[{"memory_bytes":1073741824,"name":"toy0","type":"toy"},{"memory_bytes":1073741824,"name":"toy1","type":"toy"}],"links":[{"a":"toy0","b":"toy1","bandwidth_bytes_per_s":1000000000}],"name":"toy"},"num_microbatches":3,"options":{},"profile":{"edges":[{"bytes":1024,"consumer":"b","producer":"a"},{"bytes":1024,"consumer":"c","producer":"b"},{"bytes":1024,"consumer":"d","producer":"c"}],"layers":[{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"a","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"b","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"c","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"d","parameter_bytes":1024,"state_bytes":4096}],"name":"toy"}}}');
INSERT INTO public.requests VALUES ('00000000000000000000000000000005', '{"limits":{"max_rounds":1,"time_limit_s":30.0},"workload":{"cluster":{"devices":[{"memory_bytes":1073741824,"name":"toy0","type":"toy"},{"memory_bytes":1073741824,"name":"toy1","type":"toy"}],"links":[{"a":"toy0","b":"toy1","bandwidth_bytes_per_s":1000000000}],"name":"toy"},"num_microbatches":3,"options":{},"profile":{"edges":[{"bytes":1024,"consumer":"b","producer":"a"},{"bytes":1024,"consumer":"c","producer":"b"},{"bytes":1024,"consumer":"d","producer":"c"}],"layers":[{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"a","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"b","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"c","parameter_bytes":1024,"state_bytes":4096},{"costs":[{"device_type":"toy","forward_ns":1000000,"input_grad_ns":1000000,"weight_grad_ns":1000000}],"name":"d","parameter_bytes":1024,"state_bytes":4096}],"name":"toy"}}}');


--
-- Data for Name: schema_version; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.schema_version VALUES (2);


--
-- Data for Name: tenants; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.tenants VALUES ('research', 1795385899.2888987);


--
-- Name: api_keys api_keys_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (id);


--
-- Name: events events_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (job_id, seq);


--
-- Name: idempotency idempotency_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (tenant, idempotency_key);


--
-- Name: jobs jobs_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);


--
-- Name: plans plans_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.plans
    ADD CONSTRAINT plans_pkey PRIMARY KEY (job_id);


--
-- Name: requests requests_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.requests
    ADD CONSTRAINT requests_pkey PRIMARY KEY (job_id);


--
-- Name: tenants tenants_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.tenants
    ADD CONSTRAINT tenants_pkey PRIMARY KEY (name);


--
-- Name: idempotency_of_job; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idempotency_of_job ON public.idempotency USING btree (job_id);


--
-- Name: jobs_answers; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_answers ON public.jobs USING btree (tenant, problem_key);


--
-- Name: jobs_bytes; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_bytes ON public.jobs USING btree (tenant, request_bytes);


--
-- Name: jobs_of_key; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_of_key ON public.jobs USING btree (key_id, created_at);


--
-- Name: jobs_old; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_old ON public.jobs USING btree (state, is_pinned, finished_at);


--
-- Name: jobs_recent; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_recent ON public.jobs USING btree (tenant, created_at);


--
-- Name: jobs_waiting; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_waiting ON public.jobs USING btree (state, tenant, priority, created_at);


--
-- PostgreSQL database dump complete
--


