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
    last_used_at double precision,
    row_sha256 text
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
    row_sha256 text
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
    created_at double precision NOT NULL,
    row_sha256 text
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

INSERT INTO public.api_keys VALUES ('abababababab', 'research', 'first', 'e4a78b1091823be899e5ca5c4c56e10037b3273e351cf9d712ffbae372c7f73d', 'plans:read plans:write metrics', 1795857890.9764256, NULL, NULL, NULL, NULL, NULL, '8e7a4d58221b6091b80a6acc7196e70853ce053ceac68dbea37a3cdc8e9a877c');


--
-- Data for Name: audit; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.audit VALUES ('591eb808265548c79bfe7982fcbe49d1', 1795857890.9771602, 'root@vm', 'key.adopted', 'abababababab', 'tenant research');


--
-- Data for Name: deleted_jobs; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: deliveries; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.deliveries VALUES ('528d38d6a2b674ea', '00000000000000000000000000000001', '{"event": "plan.ended", "id": "00000000000000000000000000000001", "href": "/v1/plans/00000000000000000000000000000001", "name": "toy", "project": "moon", "tags": ["a", "b"], "request_id": "asked-1", "state": "succeeded", "incumbent_ns": 40, "lower_bound_ns": 30, "gap": 0.25, "stopped_by": "gap", "solution_status": "feasible", "plan_sha256": "1fa166d021313f5c7948b082100b3e46c41250baf293bcaa6ffb595b060ed8c2"}', 0, 1795857891.1286144);
INSERT INTO public.deliveries VALUES ('528d38d6a2b674ea', '00000000000000000000000000000002', '{"event": "plan.ended", "id": "00000000000000000000000000000002", "href": "/v1/plans/00000000000000000000000000000002", "name": "toy", "project": "", "tags": [], "request_id": "asked-2", "state": "failed", "incumbent_ns": null, "lower_bound_ns": null, "gap": null, "stopped_by": null, "solution_status": "infeasible", "plan_sha256": null}', 0, 1795857891.2008996);
INSERT INTO public.deliveries VALUES ('528d38d6a2b674ea', '00000000000000000000000000000003', '{"event": "plan.ended", "id": "00000000000000000000000000000003", "href": "/v1/plans/00000000000000000000000000000003", "name": "toy", "project": "", "tags": [], "request_id": "asked-3", "state": "cancelled", "incumbent_ns": null, "lower_bound_ns": null, "gap": null, "stopped_by": "user", "solution_status": "unknown", "plan_sha256": null}', 0, 1795857891.244412);


--
-- Data for Name: drawings; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.drawings VALUES ('00000000000000000000000000000001', 'report', '{}', '44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a');


--
-- Data for Name: events; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.events VALUES ('00000000000000000000000000000001', 1, 'queued', 1795857891.0327253, '{"priority": 0}');
INSERT INTO public.events VALUES ('00000000000000000000000000000001', 2, 'started', 1795857891.0805786, '{"attempt": 1}');
INSERT INTO public.events VALUES ('00000000000000000000000000000001', 3, 'incumbent', 1795857891.1016612, '{"incumbent_ns": 40, "source": "x", "gap": 0.25, "phase": "search"}');
INSERT INTO public.events VALUES ('00000000000000000000000000000001', 4, 'bound', 1795857891.1016612, '{"lower_bound_ns": 30, "gap": 0.25, "phase": "search"}');
INSERT INTO public.events VALUES ('00000000000000000000000000000001', 5, 'done', 1795857891.1286144, '{"state": "succeeded", "incumbent_ns": 40, "lower_bound_ns": 30, "gap": 0.25, "stopped_by": "gap"}');
INSERT INTO public.events VALUES ('00000000000000000000000000000002', 1, 'queued', 1795857891.159991, '{"priority": 0}');
INSERT INTO public.events VALUES ('00000000000000000000000000000002', 2, 'started', 1795857891.1820202, '{"attempt": 1}');
INSERT INTO public.events VALUES ('00000000000000000000000000000002', 3, 'done', 1795857891.2008996, '{"state": "failed", "incumbent_ns": null, "lower_bound_ns": null, "gap": null, "stopped_by": null}');
INSERT INTO public.events VALUES ('00000000000000000000000000000003', 1, 'queued', 1795857891.2215178, '{"priority": 0}');
INSERT INTO public.events VALUES ('00000000000000000000000000000003', 2, 'done', 1795857891.244412, '{"state": "cancelled", "incumbent_ns": null, "lower_bound_ns": null, "gap": null, "stopped_by": "user"}');
INSERT INTO public.events VALUES ('00000000000000000000000000000004', 1, 'queued', 1795857891.2605846, '{"priority": 0}');
INSERT INTO public.events VALUES ('00000000000000000000000000000004', 2, 'started', 1795857891.2721298, '{"attempt": 1}');
INSERT INTO public.events VALUES ('00000000000000000000000000000005', 1, 'queued', 1795857891.2809072, '{"priority": 3}');


--
-- Data for Name: idempotency; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.idempotency VALUES ('research', 'one', '1212121212121212121212121212121212121212121212121212121212121212', '00000000000000000000000000000001', 1795857891.0327253);


--
-- Data for Name: incumbents; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.incumbents VALUES ('00000000000000000000000000000001', 3, 'eAHtWltr5EYWfs+vEA0LWdZ26q5Shn3xgzcLG2ZgIQsxQ6OWSmNhtdTbUnvGMfPf9ztV6m613B1b4zFJljAMtqtUVed+vnOqHmZFs16m3ez7aLYqV64qa3e+qtL6Oz47+wZj62ZRuSWmH+j3oqwcfbq8ny+b3FXfL9NbN+/WaVmX9YfZmV9AH83bm1RoQ9+KTC8K7nJjWF5kZpGkqWNWFIXkqTY6FywRbiFtnhdF7gq2SFOR546rOM6MloJ2zapN27n1YFeW5SYpUmcyaawTieFKFSIrFtbIxIosxbQSsVgokRcqjZPcU5EVSV5YljHatd4s58syA4tpl924FtRaDDerrmxq+uthtkw/zdduVZVZSgMc05va3bl6O0qfYqJIq9ZhsszBe+7uysxv54c/fyZJtl36wY9dfxNh4yq9d2va8nq2qJrs1hPkf4PgozAmZu/x6+D46+vZ3fK7bLVhs/dhKmuWq01HOglH4aQjm0va8sal+ckN+akN33vaIZ1841X/gAN2RBD17MqTzq483ezK64td+SPZZZi7DHOXYe4yzF0poopd6fDDhB+x/3EZ5i7D3GWYu4xB/v547oXHw/E8nMQDFTwcyAMxPJzLA008HM/D8TycxAMVPBzIr/yBPJzLrzxNnI73moR2c1dnJHQvDfKBdpXWc28zUpqEcWWZJ3UwLqQwVknhxxebBfwKO7ALbpngmjMjmFVJrGP/wcqlt/PFfedN5mEgcSUNM8ySoQZbIDkIbgVTWhB90axqPsJXFs2mznc0WWal6c/2E7dlnWPlbJVm+BW+Syszt+7KAsbuTeph9ugjHJpWGzfeFivTNlj39fU1N9Kqs+jXfjCy3+v33oohy6ppHVEzDDIPszpdPhFt9l60/3rvTlnTdt7FHmbBJefd/crvCBciO0Ps+5iueyEpY2KuGIbLGj41/7BOtzPWChkbzHx05YebgymZcOGnFpDjfjObJIoJWrJ2vY8GmRkZc83MZ3LfVboGhxTXtooWnMFCiAaEi87txq3isWSQKY23N7txLjmPFY33lD2aZrHfDg6c3a6asu6GazFJS5v1Lew02x+HbWnd5zMoZKuEfWyaKlYuA+mPxGq0ifVxsXImjSS+RuLT2iDUi68lPgW5Jl4GQbEj8e2mv5L4Qi6baJV/ig9Rylufzxt/Wp8HIt5Dn+28Pvfj62nC04LphJMXPnJdqxnSGZ0/jogaeEwK8qnDiMgZ01aLYz4tDJzdnvZpLX2IG4dEwX2aGYdE5FMzDNYjn4bDG0XZc5pPA6UicIfA4/Ieyfl0lW+QNSmTDhNP3W6Wg9GA6fpsHqKrD66A1IfL/YcZ0OfBch83tjni15b3AWa03PvNc5b3DrZfvrWb0WJKXnvgPG/LXyirbrHzEn+uQ7bjUCyCP82AVcDmNOCm2Y8ubTdrl0eL+4jqDio5or7AiJoiOl5gRE0dfbJmbmBF/yrrzafIAD5dKHVeZOd3OtFn0bv77gZfyQvOL+KzqGvW2U0kLri8YH9D1n8TLV1epnVLh3CG+UixCBDbdaVH/VFaICFHaYRcvjzfrLDFzRrIOerKpXsT5SXMCTzQ8u7GRf/dpEBMlWuBdi7i6C/b8XBKBIDhP+v/XN0AJZ1FIr5g+HQ7ifzbdm+if0ZlS+feNJWLtr4TlTVGSvAQHC0iVFK6usOnaxcBp+DEIkpbf4z75LINWI7yxrVn0X+iHnr42eWbiCqbrXboNOIAddVqS3U421d2Z3SyiBwYrCIAla59EwW05SXhFSdIYyh0gPyiFIRALhfR2zu3JrOhPdOsl2mdQ+5tSxVQVKybZSQY283Sh94IqPj0pHxs9jtfEFALG81hQX7vYFzXR2GdDyPwoDzo0zvmpr2fwd+2ZaQHmltcc7ekA/YlG3bdT4VaC/Mj4Lh0y2Z9v4dSTAgAdxUT7J3dIMHTsdj5AEFt4foLtiPHg5Rue1SbhmN2VC72f4eIk9b5xzLvesA4X1EJjW+E4Eogglt4CCrRDgj8vof0TAASYTTfrCr3Cd9uK9tefyMdiCRmAqH7sy9yo9mHdIU17IIxBlgsE4RuRHerVCx9gdH2leSwOqk3VRUmmwoKPjW1IVuaUxLYEA+zAiGkpCIqrO2a1crlUAnNkbP2481m7Us1VCj0QYQS8TL6tkrXsMUO1g+bjJZoXyxLlCB/DYsWcFMyxl7MW3vI0w6GCtBeVa4iqzms/DwfQOi7UrAf2NV6/d++tCvWwaZBbT9clF07D4aFwa3Y68aXYrPaubyFQ267AWfRsDUR/T3ih8b2j3eIqtG31Kro/Ra8jSmWsWVxgoSImT3Z0iilTOyj9o52diFMolHYYgYaVVwi2M7GrJDitY0BGoRUmiFjUsfkkLNuvaFOyZaxo2SfVs8jFoyx2lgP4gcsoG8kyOxw0JAFBYpkkiQCHoDmEKGUoywkKMNiDvMFx5JN5CFY2G8geQmMogwKSKEtqk9Jap0g+6c845HotVFMxtqXqzujh8PHMUNUGIke8SaWCl0OrrhhPsYcEz2gnuTogyTc/yMjm8BC7+Mf1vCW+yet37AETUZ0ZA6sX8bgyTDiamg6IoE1mMQmGj2axPyK9aPJY7FDYuAxyYvon+AG6EPA3n1baOAGAgaslW9qDHgBQlYSYDy2MHEJTwWRx3ShE0oRLLZA1HBoSgvTdfFH9YZnpotHTrFr/x0Y1a75d2BUj1t/xxVBOVRDaTC9GBY4URE/X57/wL/UGSyiK7cUSQYGJJ7pDFLBwRTlf/zn5GcT7Kcne4IPKG0tas9RPKJwqBHsD1ngqAIF8oBN4DRcUIg/5gIvC0fEgvhSyb8oDElkRAAzZGsDJtGJnS57ED5B9q8Rf6TVUlqoDuks0cq3CicYEJqdbl259G6H+p7IySaWiVIJVauDGKrR+uUAM4f2I5SFWaG6hZwRID2SPmpAsDBDXX20cI2ZCoceszBBJUbFzHCfiIfsoLUrkRTG7Ag0vwGLIHFAwlPZTaIlBFyfxMIKuBqbiDAWVEl3N+dFiYr3ab9APx44ZgROtWQwC01KGkYkZSwybgJVxRpeTSHymDp0gnYEAin8Arcx8cRIOqL/t9XFy1gZWtbPKIiecA1AAUjVd+8GtqQYQ43ny4ehLuCvImYJxy1YonBbdVIXVD2yBEiEenYTbWnMwARlkNsqJUZ+fgL38SSxBjavbKyQz16HmR5sVE2zeloVKM9wTzTOcqjX5KMsJ+CuuBtMLPq4xiALn1IFQh9SBgq8WHExMVkcEP9/o4Zn4VZjqBvrg+nALdDlTixcYxyiND7X0AOaI7D6UyFKKsRVRDP01xNkVTYxRg21Mbmie42UEXOBLER2pVAZTayle25+etorNAAC3a4f5G6FKpL6ACNN4LZcI9GZGMUrulQnfdqiTgXsQFZhvoM1Cb/uSZ/gE4imAp5MBA8MCpcPMAiPfwZxFlzAaSFW1ASK6VM52zDJAaFoX7Q1fOE9AUTtuHieP3ALGOFD+YB8QCXogI9TNuRvEaCQjTmaAydTNoKuxp4oRNFZitGVgWy+nIEJusDtNK7w41GaIO9MjBzDQaHRTrIItVKj6DmlCxkDoNgE12oIGngfRXqewMu/37070sT7/VWcb9++RQOz7c77BxbHiH6dfsUL2nZENK4+NlVzhFz9OuEFQJyhp4pHIbCLabYA0Jbirgdv98rsyej4++t0HZI/wStfo9B8WaMLVf4z8pMVHDBsnJ/QsjBo7ED1g8AuhAJ6RrcUQRvFzuneBPAaNeoBEhj186YaEJE9SfJfPTfhelgDnyIHwAFQSExk4afzH9KqeNL6cT8ABO/7T8OshMZQAlA8lj3KFuqjowhGb5T0dayORIsYSQvYQQM2I41NE/2W7t9Y+C9LRj+d/4gr4icLx1eQvUE3FXWNFgn6LvF0o/F0/+FkH96++rJ31dClbT7fPecJc2lLz0byeV7eleFqFA90wxS9r6hxt4r71Ta8WJ7hRu8Cz3Pp2WcbLl77Sbr1fAgvSVvco+Cv8JYV03mZ0dU23r3gLD/V3+bdlURS/2z62r+T9beweFnqt8PLo0c38vCZ0b0+tp4t+5chPgmHNwO7O+eDeVw5f/M/D+SVZQ==');


--
-- Data for Name: jobs; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.jobs VALUES ('00000000000000000000000000000004', 'research', 'abababababab', 'toy', 'running', 43, 'p', '00000000000000000000000000000004', 0, 0, 0, NULL, NULL, 1795857891.2605846, 1795857891.2721298, NULL, 1, 0, 'worker', 1795857951.2721298, 0, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'asked-4', '', '', NULL, 0, 0, NULL, 'b99c47511eeac32fa607f766d8339e4c8b4fc5d3ae9d583c4b054c62eee3aa0f');
INSERT INTO public.jobs VALUES ('00000000000000000000000000000005', 'research', 'abababababab', 'toy', 'queued', 43, 'p', '00000000000000000000000000000005', 0, 3, 0, '00000000000000000000000000000001', NULL, 1795857891.2809072, NULL, NULL, 0, 0, NULL, NULL, 0, 0, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'asked-5', '', '', NULL, 0, 0, NULL, '4b1b6f1a351edad4fe2cff10212cc2f16ca58b7f619aed3fc0c8aa5dceb9897b');
INSERT INTO public.jobs VALUES ('00000000000000000000000000000002', 'research', 'abababababab', 'toy', 'failed', 43, 'p', '00000000000000000000000000000002', 0, 0, 0, NULL, NULL, 1795857891.159991, 1795857891.1820202, 1795857891.2008996, 1, 0, NULL, NULL, 0, 0, 3, NULL, NULL, NULL, NULL, NULL, 'infeasible', NULL, '{"code": "infeasible", "detail": "no"}', NULL, 'asked-2', '', '', NULL, 0, 0, NULL, '288235ba5d90a3f97ad876494a29deb0549e459f204d1cf3eb30772b7c26dad0');
INSERT INTO public.jobs VALUES ('00000000000000000000000000000001', 'research', 'abababababab', 'toy', 'succeeded', 43, 'p', '00000000000000000000000000000001', 0, 0, 0, NULL, NULL, 1795857891.0327253, 1795857891.0805786, 1795857891.1286144, 1, 0, NULL, NULL, 0, 0, 4, NULL, 40, 30, 0.25, 'x', 'feasible', 'gap', NULL, '1fa166d021313f5c7948b082100b3e46c41250baf293bcaa6ffb595b060ed8c2', 'asked-1', 'moon', ' a b ', 'cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd', 11967, 2, NULL, '6f4146f70321ee693c3232e61d8f7822fb1adfcfb89d8adcfd4856713363b89e');
INSERT INTO public.jobs VALUES ('00000000000000000000000000000003', 'research', 'abababababab', 'toy', 'cancelled', 43, 'p', '00000000000000000000000000000003', 0, 0, 1, NULL, NULL, 1795857891.2215178, NULL, 1795857891.244412, 0, 0, NULL, NULL, 1, 0, 3, NULL, NULL, NULL, NULL, NULL, 'unknown', 'user', NULL, NULL, 'asked-3', '', '', NULL, 0, 0, NULL, 'cfd0f927421c850b29cc092bb0be75668eff45b1c411ec05dce4c47ffc97f0d3');


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
  "baselines": [{"name": "data parallel", "makespan_ns": null, "span_ns": null, "bubble": null, "peak_fraction": null, "fits_memory": false, "note": "needs 2 replicas, max_replicas = 1"}, {"name": "GPipe (even layers)", "makespan_ns": 378079796, "span_ns": 364446748, "bubble": 0.26950144672634135, "peak_fraction": 0.00587914234507151, "fits_memory": true, "note": ""}, {"name": "GPipe (largest stage minimised)", "makespan_ns": 366856892, "span_ns": 353223844, "bubble": 0.24715399922212722, "peak_fraction": 0.005904371395501301, "fits_memory": true, "note": ""}, {"name": "1F1B (even layers)", "makespan_ns": 378079796, "span_ns": 364446748, "bubble": 0.26950144672634135, "peak_fraction": 0.0030974643225840236, "fits_memory": true, "note": ""}, {"name": "1F1B (largest stage minimised)", "makespan_ns": 356403750, "span_ns": 342770702, "bubble": 0.22507340621416017, "peak_fraction": 0.003443184991919195, "fits_memory": true, "note": ""}, {"name": "capped greedy (even layers)", "makespan_ns": 360947732, "span_ns": 337375600, "bubble": 0.22995569895975965, "peak_fraction": 0.005878438756962699, "fits_memory": true, "note": ""}, {"name": "capped greedy (largest stage minimised)", "makespan_ns": 339138488, "span_ns": 325505440, "bubble": 0.18043585781393234, "peak_fraction": 0.005903870788064237, "fits_memory": true, "note": ""}, {"name": "capped 1F1B (even layers)", "makespan_ns": 378079796, "span_ns": 364446748, "bubble": 0.26950144672634135, "peak_fraction": 0.0030974643225840236, "fits_memory": true, "note": ""}, {"name": "capped 1F1B (largest stage minimised)", "makespan_ns": 336901480, "span_ns": 323268432, "bubble": 0.18021510620849757, "peak_fraction": 0.004263580459779897, "fits_memory": true, "note": ""}, {"name": "ZB-H1 (even layers)", "makespan_ns": 360947732, "span_ns": 338856186, "bubble": 0.22995569895975965, "peak_fraction": 0.00349474638463812, "fits_memory": true, "note": ""}, {"name": "ZB-H1 (largest stage minimised)", "makespan_ns": 345888320, "span_ns": 332255272, "bubble": 0.1964292289488121, "peak_fraction": 0.003443184991919195, "fits_memory": true, "note": ""}, {"name": "ZB-H2 (even layers)", "makespan_ns": 360947732, "span_ns": 337375600, "bubble": 0.22995569895975965, "peak_fraction": 0.0038920284466922163, "fits_memory": true, "note": ""}, {"name": "ZB-H2 (largest stage minimised)", "makespan_ns": 339138488, "span_ns": 325505440, "bubble": 0.18043585781393234, "peak_fraction": 0.0038533827258495456, "fits_memory": true, "note": ""}, {"name": "interleaved 1F1B (even layers)", "makespan_ns": 367394498, "span_ns": 353761450, "bubble": 0.24825563392078887, "peak_fraction": 0.003289697578416651, "fits_memory": true, "note": ""}, {"name": "interleaved 1F1B (largest stage minimised)", "makespan_ns": 364706102, "span_ns": 351073054, "bubble": 0.2427142225330795, "peak_fraction": 0.0035202769728288306, "fits_memory": true, "note": ""}, {"name": "breadth-first (even layers)", "makespan_ns": 366718406, "span_ns": 353085358, "bubble": 0.24686969761752287, "peak_fraction": 0.005930404546626877, "fits_memory": true, "note": ""}, {"name": "breadth-first (largest stage minimised)", "makespan_ns": 364706102, "span_ns": 351073054, "bubble": 0.2427142225330795, "peak_fraction": 0.005930404546626877, "fits_memory": true, "note": ""}, {"name": "interleaved ZB (even layers)", "makespan_ns": 359022824, "span_ns": 340063996, "bubble": 0.22582709114894606, "peak_fraction": 0.005929700958518066, "fits_memory": true, "note": ""}, {"name": "interleaved ZB (largest stage minimised)", "makespan_ns": 356334428, "span_ns": 337375600, "bubble": 0.21998627648743496, "peak_fraction": 0.005929700958518066, "fits_memory": true, "note": ""}, {"name": "capped loop (even layers)", "makespan_ns": 356442100, "span_ns": 337483272, "bubble": 0.22022189859166463, "peak_fraction": 0.00567338995074123, "fits_memory": true, "note": ""}, {"name": "capped loop (largest stage minimised)", "makespan_ns": 356334428, "span_ns": 337375600, "bubble": 0.21998627648743496, "peak_fraction": 0.005929700958518066, "fits_memory": true, "note": ""}, {"name": "capped loop 1F1B (even layers)", "makespan_ns": 366131054, "span_ns": 352498006, "bubble": 0.24566151660000957, "peak_fraction": 0.0034306686326939107, "fits_memory": true, "note": ""}, {"name": "capped loop 1F1B (largest stage minimised)", "makespan_ns": 364706102, "span_ns": 351073054, "bubble": 0.2427142225330795, "peak_fraction": 0.003712610741248431, "fits_memory": true, "note": ""}, {"name": "capped V (even layers)", "makespan_ns": 355545432, "span_ns": 341912384, "bubble": 0.21825533677507636, "peak_fraction": 0.005801745697604473, "fits_memory": true, "note": ""}, {"name": "capped V (largest stage minimised)", "makespan_ns": 339927484, "span_ns": 320968656, "bubble": 0.1823381247984055, "peak_fraction": 0.006031725927490417, "fits_memory": true, "note": ""}, {"name": "capped V 1F1B (even layers)", "makespan_ns": 361871466, "span_ns": 348238418, "bubble": 0.23678220045125087, "peak_fraction": 0.0034951468705877713, "fits_memory": true, "note": ""}, {"name": "capped V 1F1B (largest stage minimised)", "makespan_ns": 356702678, "span_ns": 343069630, "bubble": 0.2257228189354945, "peak_fraction": 0.0037761890590542564, "fits_memory": true, "note": ""}, {"name": "SPP", "makespan_ns": 336901480, "span_ns": 323268432, "bubble": 0.18021510620849757, "peak_fraction": 0.004263580459779897, "fits_memory": true, "note": ""}, {"name": "OOO fast-forward", "makespan_ns": 339138488, "span_ns": 325505440, "bubble": 0.18043585781393234, "peak_fraction": 0.005904371395501301, "fits_memory": true, "note": ""}, {"name": "OOO modulo", "makespan_ns": 355545432, "span_ns": 341912384, "bubble": 0.21825533677507636, "peak_fraction": 0.005803050014637761, "fits_memory": true, "note": ""}, {"name": "ZB automatic (even layers)", "makespan_ns": 360947732, "span_ns": 337375600, "bubble": 0.22995569895975965, "peak_fraction": 0.005878438756962699, "fits_memory": true, "note": ""}, {"name": "ZB automatic (largest stage minimised)", "makespan_ns": 339138488, "span_ns": 325505440, "bubble": 0.18043585781393234, "peak_fraction": 0.005903870788064237, "fits_memory": true, "note": ""}, {"name": "ZB-V (even layers)", "makespan_ns": 358219852, "span_ns": 344586804, "bubble": 0.2240917345920851, "peak_fraction": 0.0034950467491003585, "fits_memory": true, "note": ""}, {"name": "ZB-V (largest stage minimised)", "makespan_ns": 339927484, "span_ns": 320968656, "bubble": 0.1823381247984055, "peak_fraction": 0.0036352180047769965, "fits_memory": true, "note": ""}, {"name": "V-Half (even layers)", "makespan_ns": 356862712, "span_ns": 343229664, "bubble": 0.2211409747959322, "peak_fraction": 0.003751257635389782, "fits_memory": true, "note": ""}, {"name": "V-Half (largest stage minimised)", "makespan_ns": 339927484, "span_ns": 320968656, "bubble": 0.1823381247984055, "peak_fraction": 0.0037761890590542564, "fits_memory": true, "note": ""}, {"name": "V-Min (even layers)", "makespan_ns": 356862712, "span_ns": 343229664, "bubble": 0.2211409747959322, "peak_fraction": 0.0036232022529887765, "fits_memory": true, "note": ""}, {"name": "V-Min (largest stage minimised)", "makespan_ns": 339927484, "span_ns": 320968656, "bubble": 0.1823381247984055, "peak_fraction": 0.0037761890590542564, "fits_memory": true, "note": ""}],
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

INSERT INTO public.schema_version VALUES (8);


--
-- Data for Name: tenants; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.tenants VALUES ('research', 1795857891.2721298);


--
-- Data for Name: webhooks; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.webhooks VALUES ('528d38d6a2b674ea', 'research', 'https://hooks.example.com/one', 'whsec_47c4d0c8af9fa37eafe1edc151ce11e56939485763e9166f', 1795857890.9778888, 'dbfda515cb80e76fd63ea4da74f5425f007e45624b88340ca3b17d74cbf396c0');


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


