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
    concurrent_jobs integer,
    last_used_at double precision
);


--
-- Name: audit; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.audit (
    id text NOT NULL,
    at double precision NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    detail text NOT NULL
);


--
-- Name: deleted_jobs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.deleted_jobs (
    tenant text NOT NULL,
    key_id text,
    created_at double precision NOT NULL
);


--
-- Name: deliveries; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.deliveries (
    webhook_id text NOT NULL,
    job_id text NOT NULL,
    body text NOT NULL,
    attempts integer NOT NULL,
    due_at double precision NOT NULL
);


--
-- Name: drawings; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.drawings (
    job_id text NOT NULL,
    what text NOT NULL,
    text text NOT NULL,
    sha256 text
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
    job_id text NOT NULL,
    created_at double precision DEFAULT 0 NOT NULL
);


--
-- Name: incumbents; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.incumbents (
    job_id text NOT NULL,
    seq integer NOT NULL,
    text text NOT NULL
);


--
-- Name: islands; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.islands (
    job_id text NOT NULL,
    number integer NOT NULL,
    state text NOT NULL,
    attempt integer NOT NULL,
    crashes integer NOT NULL,
    is_stopped integer NOT NULL,
    worker text,
    lease_until double precision,
    gap double precision,
    plan text
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
    plan_sha256 text,
    request_id text,
    project text DEFAULT ''::text NOT NULL,
    tags text DEFAULT ''::text NOT NULL,
    profile_sha256 text,
    plan_bytes bigint DEFAULT 0 NOT NULL,
    drawn_bytes bigint DEFAULT 0 NOT NULL,
    solver_bound_ns bigint,
    islands integer DEFAULT 1 NOT NULL
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
    text text NOT NULL,
    sha256 text
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
-- Name: webhooks; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.webhooks (
    id text NOT NULL,
    tenant text NOT NULL,
    url text NOT NULL,
    secret text NOT NULL,
    created_at double precision NOT NULL
);


--
-- Name: workers; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.workers (
    name text NOT NULL,
    num_slots integer NOT NULL,
    started_at double precision NOT NULL,
    seen_at double precision NOT NULL
);


--
-- Data for Name: api_keys; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.api_keys VALUES ('abababababab', 'research', 'first', 'e4a78b1091823be899e5ca5c4c56e10037b3273e351cf9d712ffbae372c7f73d', 'plans:read plans:write metrics', 1795810945.411274, NULL, NULL, NULL, NULL, NULL);


--
-- Data for Name: audit; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.audit VALUES ('ccb2cfe3a39c4786af3e5353ff68ee98', 1795810945.4116104, 'root@vm', 'key.adopted', 'abababababab', 'tenant research');


--
-- Data for Name: deleted_jobs; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: deliveries; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.deliveries VALUES ('b7ab99685552c190', '00000000000000000000000000000001', '{"event": "plan.ended", "id": "00000000000000000000000000000001", "href": "/v1/plans/00000000000000000000000000000001", "name": "toy", "project": "moon", "tags": ["a", "b"], "request_id": "asked-1", "state": "succeeded", "incumbent_ns": 40, "lower_bound_ns": 30, "gap": 0.25, "stopped_by": "gap", "solution_status": "feasible", "plan_sha256": "08567ba464adfe5e5c94c507d42e6bd49446888cb96277b7907f6987006228ef"}', 0, 1795810945.5227475);
INSERT INTO public.deliveries VALUES ('b7ab99685552c190', '00000000000000000000000000000002', '{"event": "plan.ended", "id": "00000000000000000000000000000002", "href": "/v1/plans/00000000000000000000000000000002", "name": "toy", "project": "", "tags": [], "request_id": "asked-2", "state": "failed", "incumbent_ns": null, "lower_bound_ns": null, "gap": null, "stopped_by": null, "solution_status": "infeasible", "plan_sha256": null}', 0, 1795810945.557408);
INSERT INTO public.deliveries VALUES ('b7ab99685552c190', '00000000000000000000000000000003', '{"event": "plan.ended", "id": "00000000000000000000000000000003", "href": "/v1/plans/00000000000000000000000000000003", "name": "toy", "project": "", "tags": [], "request_id": "asked-3", "state": "cancelled", "incumbent_ns": null, "lower_bound_ns": null, "gap": null, "stopped_by": "user", "solution_status": "unknown", "plan_sha256": null}', 0, 1795810945.5849617);


--
-- Data for Name: drawings; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.drawings VALUES ('00000000000000000000000000000001', 'report', '{}', '44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a');


--
-- Data for Name: events; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.events VALUES ('00000000000000000000000000000001', 1, 'queued', 1795810945.4499898, '{"priority": 0}');
INSERT INTO public.events VALUES ('00000000000000000000000000000001', 2, 'started', 1795810945.4921422, '{"attempt": 1}');
INSERT INTO public.events VALUES ('00000000000000000000000000000001', 3, 'incumbent', 1795810945.5161915, '{"incumbent_ns": 40, "source": "x", "gap": 0.25, "phase": "search"}');
INSERT INTO public.events VALUES ('00000000000000000000000000000001', 4, 'bound', 1795810945.5161915, '{"lower_bound_ns": 30, "gap": 0.25, "phase": "search"}');
INSERT INTO public.events VALUES ('00000000000000000000000000000001', 5, 'done', 1795810945.5227475, '{"state": "succeeded", "incumbent_ns": 40, "lower_bound_ns": 30, "gap": 0.25, "stopped_by": "gap"}');
INSERT INTO public.events VALUES ('00000000000000000000000000000002', 1, 'queued', 1795810945.5432196, '{"priority": 0}');
INSERT INTO public.events VALUES ('00000000000000000000000000000002', 2, 'started', 1795810945.556297, '{"attempt": 1}');
INSERT INTO public.events VALUES ('00000000000000000000000000000002', 3, 'done', 1795810945.557408, '{"state": "failed", "incumbent_ns": null, "lower_bound_ns": null, "gap": null, "stopped_by": null}');
INSERT INTO public.events VALUES ('00000000000000000000000000000003', 1, 'queued', 1795810945.5678694, '{"priority": 0}');
INSERT INTO public.events VALUES ('00000000000000000000000000000003', 2, 'done', 1795810945.5849617, '{"state": "cancelled", "incumbent_ns": null, "lower_bound_ns": null, "gap": null, "stopped_by": "user"}');
INSERT INTO public.events VALUES ('00000000000000000000000000000004', 1, 'queued', 1795810945.5914545, '{"priority": 0}');
INSERT INTO public.events VALUES ('00000000000000000000000000000004', 2, 'started', 1795810945.6008742, '{"attempt": 1}');
INSERT INTO public.events VALUES ('00000000000000000000000000000005', 1, 'queued', 1795810945.6019073, '{"priority": 3}');


--
-- Data for Name: idempotency; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.idempotency VALUES ('research', 'one', '1212121212121212121212121212121212121212121212121212121212121212', '00000000000000000000000000000001', 1795810945.4499898);


--
-- Data for Name: incumbents; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.incumbents VALUES ('00000000000000000000000000000001', 3, 'eAHtWltv48YVfs+vIAQUSFHbmTuHWfTFD24KNNgFCmyBGAuBIocrwhSpipR3XWP/e78zQ0kULcVmnEXSIlkEtmeGM+d+vnNmHmdFs1ml3ez7aLYu164qa3e5rtL6Oz67+AZjm2ZRuRWmH+n3oqwcLV09zFdN7qrvV+mdm3ebtKzL+uPswn9Ai+btMhXa0FqR6UXBXW4My4vMLJI0dcyKopA81UbngiXCLaTN86LIXcEWaSry3HEVx5nRUtCuWbVtO7cZ7Mqy3CRF6kwmjXUiMVypQmTFwhqZWJGlmFYiFgsl8kKlcZJ7KrIiyQvLMka71tvVfFVmYDHtsqVrQa3FcLPuyqamvx5nq/TzfOPWVZmlNMAxva3dvat3o7QUE0VatQ6TZQ7ec3dfZn47P/zlC0my7dKPfuz2mwgbV+mD29CWt7NF1WR3niD/GwQfhTEx+4BfB8ff3s7uV99l6y2bfQhTWbNabzvSSTgKJ53YXNKWS5fmZzfk5zb84GmHdPKtV/0jDtgTQdSzG086u/F0sxuvL3bjj2TXYe46zF2Hueswd6OIKnajww8TfsT+x3WYuw5z12HuOgb5h+O5Fx4Px/NwEg9U8HAgD8TwcC4PNPFwPA/H83ASD1TwcCC/8QfycC6/8TRxOt5rEtrNXZ2R0L00yAfadVrPvc1IaRLGlWWe1MG4kMJYJYUfX2wX8CvswK64ZYJrzoxgViWxjv2CtUvv5ouHzpvM40DiShpmmCVDDbZAchDcCqa0IPqiWdV8gq8smm2d72myzErTn+0n7so6x5ezdZrhV/gufZm5TVcWMHZvUo+zJ4twaFpt3XhbfJm2wbpvb2+5kVZdRD/3g5H93n7wVgxZVk3riJphkHmc1enqmWhz8KLD6oM7ZU3beRd7nAWXnHcPa78jXIjsDLHvU7rphaSMibliGC5r+NT84ybdzVgrZGww88mVH5dHUzLhwk8tIMfDZjZJFBP0ycb1PhpkZmTMNTNfyH3X6QYcUlzbKVpwBgshGhAuOrcft4rHkkGmNN4u9+Ncch4rGu8pezLNYr8dHDi7Wzdl3Q2/xSR92mzuYKfZ4ThsS999uYBCdko4xKapYuUykP5ErEabWJ8WK2fSSOJrJD6tDUK9+LXEpyDXxMsgKHYkvv30ryS+kMsmWuUf4kOU8tbn88Yf1ueBiPfQFzuvz/1YPU14WjCdcPLCJ65rNUM6o/PHEVEDj0lBPnUcETlj2mpxyqeFgbPb8z6tpQ9x45AouE8z45CIfGqGwXrk03B4oyh7TvNpoFQE7hB4XN4jOZ+u8i2yJmXSYeKp2+1qMBowXZ/NQ3T1wRWQ+vhzvzAD+jz63MeNXY74uc/7ADP63PvNSz7vHezw+c5uRh9T8joA53lb/oey6g47r/DnJmQ7DsUi+NMMWAVsTgNumv3o0na7cXm0eIio7qCSI+oLjKgpotMFRtTU0Wdr5gZW9I+y3n6ODODTlVKXRXZ5rxN9Eb176JZYJa84v4ovoq7ZZMtIXHF5xf6CrP8mWrm8TOuWDuEM85FiESC260qP+qO0QEKO0gi5fHW5XWOL5QbIOerKlXsT5SXMCTzQ593SRf/epkBMlWuBdq7i6E+78XBKBIDhl/V/rpdASReRiK8Ylu4mkX/b7k3096hs6dxlU7lo5ztRWWOkBA/B0SJCJaWrOyzduAg4BScWUdr6Y9xnl23BcpQ3rr2I/hX10MPPrt5EVNnstEOnEQeoq9Y7qsPZvrK7oJNF5MBgFQGodO2bKKAtLwmvOEEaQ6ED5BelIARyuYre3rsNmQ3tmWa9TOsccm9bqoCiYtOsIsHYfpYWeiOg4tOT8qk57HxFQC1sNIcF+b2Dcd2ehHU+jMCD8qBP75jb9mEGf9uVkR5o7nDN/YoOOJRs2PUwFWotzI+A48qtms3DAUoxIQDcVUywd7ZEgqdjsfMRgtrB9VdsR44HKd31qDYNx+ypXBz+DhEnrfNPZd71gHG+phIaa4TgSiCCW3gIKtEOCPyhh/RMABJhNN+uK/cZa3eVba+/kQ5EEjOB0P3FF7nR7GO6xjfsijEGWCwThG5Ed6tULH2B0faV5LA6qbdVFSabCgo+N7UlW5pTEtgSD7MCIaSkIip82zXrtcuhEpojZ+3Hm+3Gl2qoUGhBhBLxOvq2SjewxQ7WD5uMVmhfrEqUIH8OHy3gpmSMvZh39pCnHQwVoL2qXEVWc1z5eT6A0PelYD+wr/X6v31pV2yCTYPafrgou3YeDAuDO7HXjS/FZrVzeQuH3HUDLqJhayL6a8SPje1v7xBVo2+pVdH7LXgbUyxjy+IECREzB7KlUUqZ2EftPe3sSphEo7DFDDSquESwnY1ZIcVrGwM0CKk0Q8akjskxZ91mS52SHWMnyT6vnicsGGO1sR7ED1hA30iQ2eGgIQsKFMkkSQQ8AM0hQiknWUhQhsUc5guOJZvIQ7Cw30DyEhhFGRSQQltUn5LUOkH2z3nGE9Fro5iMtS9X90YPh49jhqgwEj3iTSwVuhxcccN8jDklekA9ydEHSbj/R0Y2gYXexz9u4C0Pz1q/YQmajOjIHFm/jMGTYcTV0HREAmswiU00ejSJ+RnrR5PHYofEwGOSV9E/wQ3Qh4C9+7bQwA0EDFgr39QY8AKErCTAeGxh4hKeCiJP6UInlCJYbIGo4dCUFqbr4n/VG16YLp44xb79d2RU++bfkVE9bf2dVgTlUA2lwfRiWOBERfx0ffkD/6XOYBFduaVIMjAg8UJnkAoOpij/439OfjbBfnqyJ/iA0tai9hzFIwqHGsH+mAWOKlAgD9gETsMFhfhTLvC6cEQsiF8q+VeFIYmMCGCGbG3AJDqx02UPwifI/mvEH2m1lBaqQzpLtPKtwgkGhGan21Quvd+jvmdysollolRC1eoghmq0fjnAzLH9CGVhVqhuIWcESI+kTxoQLMxQVx8tXGOmwqGnLExQiVExM9wn4iE7aO1KJIUxOwLNb8AiSByQ8Fx2k2gJAdcnsbACrsYmIowFVdLd8rIoUfE+7xfoxwPHjMCplgxmoUlJw4ikjEXGTaCqWMOrKUSeUodO0I5AIIVf4DYmnhhJR/T/trp4HStDy/oJBdEzrgEoAKn67t3AlhRjqPF8+TDUBfxVxCzhuAVLFG6rzuqCqkeWAIlQz26iLY0ZmKAMclulxMjPz+A+niTWwOaVjRXy2ddhpgcbVdOsn1cFyjPcE42zHOo1+STLCbgr7gYTiz6uMcjC51SB0IeUgQIvVlxMTBZHxP/fqOFFuNUY6sb6YDpwC3S5EwvXGIcojeUaekBzBFZ/LkRJhbiKaIb+eoKsyibGqKE2Jld0XyNlxFwgC5FdKVRGE2vpnpv3z3uFBkCg2/Wj3K1QRVIfYKQJ3JZrJDoTo3hFl+qsT1vUqYAdyCrMd7Am4dcD6RN8AtFUwJOJ4IFB4fIBBuHxzyDOggs4LcSKmkAxfS5nGyY5IBTti7aGL7wngKg9Fy/zB24BI3woH5APqAQd8HHKhvwtAhSyMUdz4GzKRtDV2BOFKDpLMboykM0vZ2CCLnA7jSv8eJQmyDsTI8dwUGi0kyxCrdQoes7pQsYAKDbBtRqCBt5HkZ4n8PLPd+9ONPF+fxXn27dv0cBsu8v+gcUpor9Ov+IVbTsiGlcf26o5Qa7+OuEFQJyhp4pHIbCLabYA0Jbirgdv98rs2ej4++t0HZM/wSu/RqH5ukYXqvwX5CcrOGDYOD+hZWHQ2IHqB4FdCAX0jG4pgjaKnfO9CeA1atQDJDDq5001ICJ7kuR/9dyE62ENfIocAAdAITGRhfeXP6RVcVmVd89fdaCGJyg8gs041yISjZpDAp10FOv4j3O66qAUcKqaRKMYqQsIQgM8I5lNU8AR9b+xHl6Xl95f/ojb4udqSEQ5PM0duwBuWNgJF4A9GzzIY2QUWHE2oQJZQPwGviWBMie223u6J8he03UQzBWaHgAcGDESvxoDfrzSRPsFkAXtW/BD5nHSigAYhKLbNVx7xPIlThDewfoSeN3QBW4+3z/tCXNpS09I8nle3pfhmhSPdcMUvbWocc+Ku9Y2vF6e4XbvCk916QloGy5h+0m6AX0Mr0pb3Kngr/CuFdN5mdE1N97A4Cw/1d/s3ZdEUv+E+ta/mfU3snhl6rfDK6Qnt/MQzeiOH1vPVv0rEZ+Qw/uB/f3z0Tyun7/5L9fHmUM=');


--
-- Data for Name: islands; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.islands VALUES ('00000000000000000000000000000004', 1, 'waiting', 0, 0, 0, NULL, NULL, NULL, NULL);


--
-- Data for Name: jobs; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.jobs VALUES ('00000000000000000000000000000002', 'research', 'abababababab', 'toy', 'failed', 43, 'p', '00000000000000000000000000000002', 0, 0, 0, NULL, NULL, 1795810945.5432196, 1795810945.556297, 1795810945.557408, 1, 0, NULL, NULL, 0, 0, 3, NULL, NULL, NULL, NULL, NULL, 'infeasible', NULL, '{"code": "infeasible", "detail": "no"}', NULL, 'asked-2', '', '', NULL, 0, 0, NULL, 1);
INSERT INTO public.jobs VALUES ('00000000000000000000000000000001', 'research', 'abababababab', 'toy', 'succeeded', 43, 'p', '00000000000000000000000000000001', 0, 0, 0, NULL, NULL, 1795810945.4499898, 1795810945.4921422, 1795810945.5227475, 1, 0, NULL, NULL, 0, 0, 4, NULL, 40, 30, 0.25, 'x', 'feasible', 'gap', NULL, '08567ba464adfe5e5c94c507d42e6bd49446888cb96277b7907f6987006228ef', 'asked-1', 'moon', ' a b ', 'cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd', 11979, 2, NULL, 1);
INSERT INTO public.jobs VALUES ('00000000000000000000000000000003', 'research', 'abababababab', 'toy', 'cancelled', 43, 'p', '00000000000000000000000000000003', 0, 0, 1, NULL, NULL, 1795810945.5678694, NULL, 1795810945.5849617, 0, 0, NULL, NULL, 1, 0, 3, NULL, NULL, NULL, NULL, NULL, 'unknown', 'user', NULL, NULL, 'asked-3', '', '', NULL, 0, 0, NULL, 1);
INSERT INTO public.jobs VALUES ('00000000000000000000000000000004', 'research', 'abababababab', 'toy', 'running', 43, 'p', '00000000000000000000000000000004', 0, 0, 0, NULL, NULL, 1795810945.5914545, 1795810945.6008742, NULL, 1, 0, 'worker', 1795811005.6008742, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'asked-4', '', '', NULL, 0, 0, NULL, 2);
INSERT INTO public.jobs VALUES ('00000000000000000000000000000005', 'research', 'abababababab', 'toy', 'queued', 43, 'p', '00000000000000000000000000000005', 0, 3, 0, '00000000000000000000000000000001', NULL, 1795810945.6019073, NULL, NULL, 0, 0, NULL, NULL, 0, 0, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'asked-5', '', '', NULL, 0, 0, NULL, 1);


--
-- Data for Name: plans; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.plans VALUES ('00000000000000000000000000000001', '{"format": "pipeline-plan/1",
 "problem": {"profile": "my_model:make_training", "profile_sha256": "2c5bf1ed660dfc6b9aae082ff31a565d2092eb38ddffdef0baa2dde1477c6532", "cluster_sha256": "0cd69fae6c368e296144f2cfb863982cad694272b42df4a79d5bf1ecf9df80c0", "num_microbatches": 8, "options": {"max_replicas": 1, "uneven_replication": false, "idle_devices": false}},
 "stages": [
  {"layers": ["block0", "block1", "block2"], "replicas": [["vm/cpu0"]], "recompute": false},
  {"layers": ["block3", "head"], "replicas": [["vm/cpu1"]], "recompute": false}],
 "schedule": {
  "vm/cpu0": ["0F0", "0F1", "0F2", "0F3", "0B0", "0B1", "0B2", "0B3", "0F4", "0F5", "0F6", "0F7", "0B4", "0B5", "0B6", "0B7"],
  "vm/cpu1": ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2", "1F3", "1B3", "1F4", "1B4", "1F5", "1B5", "1F6", "1B6", "1F7", "1B7"]},
 "evidence": {
  "makespan_ns": 336901480,
  "span_ns": 323268432,
  "bubble": 0.18021510620849757,
  "peak_bytes": {"vm/cpu0": 43606088, "vm/cpu1": 21820452},
  "lower_bound_ns": 336808362,
  "bound_kind": "packing",
  "certificate": {"kind": "packing", "value_ns": 336808362, "cases": [[[[16384, 16384, 16384, 16384, 16384, 0]], []]], "enclosed": {"profile": {"name": "my_model:make_training", "layers": [{"name": "block0", "costs": [{"device_type": "cpu", "forward_ns": 4667140, "input_grad_ns": 4882376, "weight_grad_ns": 4391276, "backward_ns": 8994026, "recompute_ns": 6371506}], "parameter_bytes": 2104320, "state_bytes": 8417304, "stash_bytes": 1311744, "weight_stash_bytes": 1310720, "checkpoint_bytes": 131072, "workspace_bytes": 1310720}, {"name": "block1", "costs": [{"device_type": "cpu", "forward_ns": 4613304, "input_grad_ns": 4656756, "weight_grad_ns": 4103634, "recompute_ns": 5569612}], "parameter_bytes": 2104320, "state_bytes": 8417304, "stash_bytes": 1441792, "weight_stash_bytes": 1441792, "checkpoint_bytes": 131072, "workspace_bytes": 1310720}, {"name": "block2", "costs": [{"device_type": "cpu", "forward_ns": 4613304, "input_grad_ns": 4656756, "weight_grad_ns": 4103634, "recompute_ns": 5569612}], "parameter_bytes": 2104320, "state_bytes": 8417304, "stash_bytes": 1441792, "weight_stash_bytes": 1441792, "checkpoint_bytes": 131072, "workspace_bytes": 1310720}, {"name": "block3", "costs": [{"device_type": "cpu", "forward_ns": 4613304, "input_grad_ns": 4656756, "weight_grad_ns": 4103634, "recompute_ns": 5569612}], "parameter_bytes": 2104320, "state_bytes": 8417304, "stash_bytes": 1441792, "weight_stash_bytes": 1441792, "checkpoint_bytes": 131072, "workspace_bytes": 1310720}, {"name": "head", "costs": [{"device_type": "cpu", "forward_ns": 5205914, "input_grad_ns": 4850326, "weight_grad_ns": 5368322, "backward_ns": 10058524, "recompute_ns": 5263638}], "parameter_bytes": 2105344, "state_bytes": 8421384, "stash_bytes": 1180676, "weight_stash_bytes": 1179648, "checkpoint_bytes": 131072, "workspace_bytes": 2097152}], "edges": [{"producer": "block0", "consumer": "block1", "bytes": 131072}, {"producer": "block1", "consumer": "block2", "bytes": 131072}, {"producer": "block2", "consumer": "block3", "bytes": 131072}, {"producer": "block3", "consumer": "head", "bytes": 131072}], "microbatch_size": 8, "optimizer_ns": 13633048, "provenance": "Measured by pipeplan profile of my_model:make_training on x86_64, Linux 6.18.44-fc-v595, Python 3.11.7, torch 2.13.0+cpu; medians of 10 to 40 repetitions after a warm-up, thread time; distance of the quartiles 16.7 % of the median for the median phase, 27.0 % for the worst; I is a whole backward in which weight gradients are put off as the executor does, W computes them; optimizer_ns is the step of the whole model, in 2 equal parts; layers timed by 2 processes at once. Overhead of actions and messages from 200 actions of a pipeline of two processes.", "action_overhead_ns": [{"device_type": "cpu"}], "conditions": "busy"}, "cluster": {"name": "vm", "devices": [{"name": "vm/cpu0", "type": "cpu", "memory_bytes": 10227574784, "host": "vm"}, {"name": "vm/cpu1", "type": "cpu", "memory_bytes": 10227574784, "host": "vm"}], "links": [{"a": "vm/cpu0", "b": "vm/cpu1", "bandwidth_bytes_per_s": 2214250387, "latency_ns": 302417, "duplex": false, "message_overhead_ns": 297028}]}}},
  "gap": 0.0002763953426384473,
  "schedule_bound_ns": null,
  "solver_bound_ns": null,
  "solution_status": "feasible",
  "stopped_by": "time",
  "source": "capped 1F1B (largest stage minimised)",
  "baselines": [{"name": "data parallel", "makespan_ns": null, "span_ns": null, "bubble": null, "peak_fraction": null, "fits_memory": false, "note": "needs 2 replicas, max_replicas = 1"}, {"name": "GPipe (even layers)", "makespan_ns": 378079796, "span_ns": 364446748, "bubble": 0.26950144672634135, "peak_fraction": 0.00587914234507151, "fits_memory": true, "note": ""}, {"name": "GPipe (largest stage minimised)", "makespan_ns": 366856892, "span_ns": 353223844, "bubble": 0.24715399922212722, "peak_fraction": 0.005904371395501301, "fits_memory": true, "note": ""}, {"name": "1F1B (even layers)", "makespan_ns": 378079796, "span_ns": 364446748, "bubble": 0.26950144672634135, "peak_fraction": 0.0030974643225840236, "fits_memory": true, "note": ""}, {"name": "1F1B (largest stage minimised)", "makespan_ns": 356403750, "span_ns": 342770702, "bubble": 0.22507340621416017, "peak_fraction": 0.003443184991919195, "fits_memory": true, "note": ""}, {"name": "capped greedy (even layers)", "makespan_ns": 360947732, "span_ns": 337375600, "bubble": 0.22995569895975965, "peak_fraction": 0.005878438756962699, "fits_memory": true, "note": ""}, {"name": "capped greedy (largest stage minimised)", "makespan_ns": 339138488, "span_ns": 325505440, "bubble": 0.18043585781393234, "peak_fraction": 0.005903870788064237, "fits_memory": true, "note": ""}, {"name": "capped 1F1B (even layers)", "makespan_ns": 378079796, "span_ns": 364446748, "bubble": 0.26950144672634135, "peak_fraction": 0.0030974643225840236, "fits_memory": true, "note": ""}, {"name": "capped 1F1B (largest stage minimised)", "makespan_ns": 336901480, "span_ns": 323268432, "bubble": 0.18021510620849757, "peak_fraction": 0.004263580459779897, "fits_memory": true, "note": ""}, {"name": "ZB-H1 (even layers)", "makespan_ns": 360947732, "span_ns": 338856186, "bubble": 0.22995569895975965, "peak_fraction": 0.00349474638463812, "fits_memory": true, "note": ""}, {"name": "ZB-H1 (largest stage minimised)", "makespan_ns": 345888320, "span_ns": 332255272, "bubble": 0.1964292289488121, "peak_fraction": 0.003443184991919195, "fits_memory": true, "note": ""}, {"name": "ZB-H2 (even layers)", "makespan_ns": 360947732, "span_ns": 337375600, "bubble": 0.22995569895975965, "peak_fraction": 0.0038920284466922163, "fits_memory": true, "note": ""}, {"name": "ZB-H2 (largest stage minimised)", "makespan_ns": 339138488, "span_ns": 325505440, "bubble": 0.18043585781393234, "peak_fraction": 0.0038533827258495456, "fits_memory": true, "note": ""}, {"name": "interleaved 1F1B (even layers)", "makespan_ns": 367394498, "span_ns": 353761450, "bubble": 0.24825563392078887, "peak_fraction": 0.003289697578416651, "fits_memory": true, "note": ""}, {"name": "interleaved 1F1B (largest stage minimised)", "makespan_ns": 364706102, "span_ns": 351073054, "bubble": 0.2427142225330795, "peak_fraction": 0.0035202769728288306, "fits_memory": true, "note": ""}, {"name": "breadth-first (even layers)", "makespan_ns": 366718406, "span_ns": 353085358, "bubble": 0.24686969761752287, "peak_fraction": 0.005930404546626877, "fits_memory": true, "note": ""}, {"name": "breadth-first (largest stage minimised)", "makespan_ns": 364706102, "span_ns": 351073054, "bubble": 0.2427142225330795, "peak_fraction": 0.005930404546626877, "fits_memory": true, "note": ""}, {"name": "interleaved ZB (even layers)", "makespan_ns": 359022824, "span_ns": 340063996, "bubble": 0.22582709114894606, "peak_fraction": 0.005929700958518066, "fits_memory": true, "note": ""}, {"name": "interleaved ZB (largest stage minimised)", "makespan_ns": 356334428, "span_ns": 337375600, "bubble": 0.21998627648743496, "peak_fraction": 0.005929700958518066, "fits_memory": true, "note": ""}, {"name": "capped loop (even layers)", "makespan_ns": 356442100, "span_ns": 337483272, "bubble": 0.22022189859166463, "peak_fraction": 0.00567338995074123, "fits_memory": true, "note": ""}, {"name": "capped loop (largest stage minimised)", "makespan_ns": 356334428, "span_ns": 337375600, "bubble": 0.21998627648743496, "peak_fraction": 0.005929700958518066, "fits_memory": true, "note": ""}, {"name": "capped loop 1F1B (even layers)", "makespan_ns": 366131054, "span_ns": 352498006, "bubble": 0.24566151660000957, "peak_fraction": 0.0034306686326939107, "fits_memory": true, "note": ""}, {"name": "capped loop 1F1B (largest stage minimised)", "makespan_ns": 364706102, "span_ns": 351073054, "bubble": 0.2427142225330795, "peak_fraction": 0.003712610741248431, "fits_memory": true, "note": ""}, {"name": "capped V (even layers)", "makespan_ns": 355545432, "span_ns": 341912384, "bubble": 0.21825533677507636, "peak_fraction": 0.005801745697604473, "fits_memory": true, "note": ""}, {"name": "capped V (largest stage minimised)", "makespan_ns": 339927484, "span_ns": 320968656, "bubble": 0.1823381247984055, "peak_fraction": 0.006031725927490417, "fits_memory": true, "note": ""}, {"name": "capped V 1F1B (even layers)", "makespan_ns": 361871466, "span_ns": 348238418, "bubble": 0.23678220045125087, "peak_fraction": 0.0034951468705877713, "fits_memory": true, "note": ""}, {"name": "capped V 1F1B (largest stage minimised)", "makespan_ns": 356702678, "span_ns": 343069630, "bubble": 0.2257228189354945, "peak_fraction": 0.0037761890590542564, "fits_memory": true, "note": ""}, {"name": "SPP", "makespan_ns": 336901480, "span_ns": 323268432, "bubble": 0.18021510620849757, "peak_fraction": 0.004263580459779897, "fits_memory": true, "note": ""}, {"name": "OOO fast-forward", "makespan_ns": 339138488, "span_ns": 325505440, "bubble": 0.18043585781393234, "peak_fraction": 0.005904371395501301, "fits_memory": true, "note": ""}, {"name": "OOO modulo", "makespan_ns": 355545432, "span_ns": 341912384, "bubble": 0.21825533677507636, "peak_fraction": 0.005803050014637761, "fits_memory": true, "note": ""}, {"name": "ZB automatic (even layers)", "makespan_ns": 360947732, "span_ns": 337375600, "bubble": 0.22995569895975965, "peak_fraction": 0.005878438756962699, "fits_memory": true, "note": ""}, {"name": "ZB automatic (largest stage minimised)", "makespan_ns": 339138488, "span_ns": 325505440, "bubble": 0.18043585781393234, "peak_fraction": 0.005903870788064237, "fits_memory": true, "note": ""}, {"name": "ZB-V (even layers)", "makespan_ns": 358219852, "span_ns": 344586804, "bubble": 0.2240917345920851, "peak_fraction": 0.0034950467491003585, "fits_memory": true, "note": ""}, {"name": "ZB-V (largest stage minimised)", "makespan_ns": 339927484, "span_ns": 320968656, "bubble": 0.1823381247984055, "peak_fraction": 0.0036352180047769965, "fits_memory": true, "note": ""}, {"name": "V-Half-like (even layers)", "makespan_ns": 361422180, "span_ns": 347789132, "bubble": 0.23096655551134138, "peak_fraction": 0.003751257635389782, "fits_memory": true, "note": ""}, {"name": "V-Half-like (largest stage minimised)", "makespan_ns": 339927484, "span_ns": 320968656, "bubble": 0.1823381247984055, "peak_fraction": 0.0037761890590542564, "fits_memory": true, "note": ""}, {"name": "V-Min (even layers)", "makespan_ns": 363739852, "span_ns": 350106804, "bubble": 0.23586667099650105, "peak_fraction": 0.003238635619836109, "fits_memory": true, "note": ""}, {"name": "V-Min (largest stage minimised)", "makespan_ns": 351301004, "span_ns": 335289346, "bubble": 0.20881027712633582, "peak_fraction": 0.0034942469504997365, "fits_memory": true, "note": ""}],
  "interpolated_costs": [],
  "assumed_divisible": [],
  "planner_version": "0.2.0",
  "solver_versions": {},
  "seed": 0,
  "verdict": {"passed": true, "violations": []},
  "timings": {"conditions": "busy", "action_overhead": "measured", "message_overhead": "measured"}}}
');


--
-- Data for Name: requests; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.requests VALUES ('00000000000000000000000000000001', '{"job": "00000000000000000000000000000001"}', '78eb2e0e8909648ff00c11e3bb4a9566a2c8c4b20cd2b23232fd480c64595af0');
INSERT INTO public.requests VALUES ('00000000000000000000000000000002', '{"job": "00000000000000000000000000000002"}', 'ddd3eff4d1e30dfc2f1400517628cace27443f21cb8a600a6223d771d1af652b');
INSERT INTO public.requests VALUES ('00000000000000000000000000000003', '{"job": "00000000000000000000000000000003"}', '8a37d012f7500a5c89009ba5d5d329ae05446a8d079c28dc70227b68ac2ff049');
INSERT INTO public.requests VALUES ('00000000000000000000000000000004', '{"job": "00000000000000000000000000000004"}', '26cff8d2b1bee349eaadad5bd054cceaf93a42b21fee7ef864f3659a66f8b1f7');
INSERT INTO public.requests VALUES ('00000000000000000000000000000005', '{"job": "00000000000000000000000000000005"}', '5f94ce220f1a788eedf92a07736824f67c5f169bfb968eff7c8cbf4976797ee1');


--
-- Data for Name: schema_version; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.schema_version VALUES (6);


--
-- Data for Name: tenants; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.tenants VALUES ('research', 1795810945.6008742);


--
-- Data for Name: webhooks; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.webhooks VALUES ('b7ab99685552c190', 'research', 'https://hooks.example.com/one', 'whsec_b5b02eb5ed30fff857f286bbdd4ba710dac231ac09f4cd07', 1795810945.4202216);


--
-- Data for Name: workers; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Name: api_keys api_keys_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (id);


--
-- Name: audit audit_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);


--
-- Name: deliveries deliveries_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.deliveries
    ADD CONSTRAINT deliveries_pkey PRIMARY KEY (webhook_id, job_id);


--
-- Name: drawings drawings_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.drawings
    ADD CONSTRAINT drawings_pkey PRIMARY KEY (job_id, what);


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
-- Name: incumbents incumbents_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.incumbents
    ADD CONSTRAINT incumbents_pkey PRIMARY KEY (job_id, seq);


--
-- Name: islands islands_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.islands
    ADD CONSTRAINT islands_pkey PRIMARY KEY (job_id, number);


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
-- Name: webhooks webhooks_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.webhooks
    ADD CONSTRAINT webhooks_pkey PRIMARY KEY (id);


--
-- Name: workers workers_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (name);


--
-- Name: audit_recent; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX audit_recent ON public.audit USING btree (at);


--
-- Name: deleted_jobs_recent; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX deleted_jobs_recent ON public.deleted_jobs USING btree (created_at);


--
-- Name: deliveries_due; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX deliveries_due ON public.deliveries USING btree (due_at);


--
-- Name: idempotency_old; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idempotency_old ON public.idempotency USING btree (created_at);


--
-- Name: jobs_answers; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_answers ON public.jobs USING btree (tenant, problem_key);


--
-- Name: jobs_held; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_held ON public.jobs USING btree (tenant, request_bytes, plan_bytes, drawn_bytes);


--
-- Name: jobs_of_key; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_of_key ON public.jobs USING btree (key_id, created_at);


--
-- Name: jobs_of_plan; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_of_plan ON public.jobs USING btree (tenant, plan_sha256);


--
-- Name: jobs_of_profile; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_of_profile ON public.jobs USING btree (tenant, profile_sha256);


--
-- Name: jobs_of_project; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_of_project ON public.jobs USING btree (tenant, project, created_at);


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


