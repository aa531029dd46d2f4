"""Runners: backends, processes, and how rounds end."""

from __future__ import annotations

from fedml_dapper.config.comm_args import FEDML_GRPC_HOLE
from fedml_dapper.config.compatibility.features import (
    BUFFER,
    CROSS_DEVICE,
    CROSS_SILO,
    DEVICES,
    EDGE,
    EDGES,
    SECURE,
    SECURE_SUMS,
    SILOS,
    SIMULATION,
    as_many,
    chosen,
    given,
    value_of,
)
from fedml_dapper.config.compatibility.row import Feature, Row
from fedml_dapper.config.limits import MAX_CLIENTS_WITH_EDGES

_WORKERS = Feature(
    "device_args.workers", lambda s: s.device_args.workers not in ("auto", 1), lambda s: s.device_args.workers
)
_GRPC = chosen("comm_args.backend", "GRPC")
_BY_GRPC = {
    "common_args.training_type": "cross_silo", "comm_args.backend": "GRPC",
    "comm_args.allow_pickle": True, "comm_args.grpc_ipconfig_path": "addresses.csv",
}  # fmt: skip

_EDGES_BY_RANK = Feature(EDGES.label, EDGES.is_on, lambda s: f"ranks {[edge.rank for edge in s.comm_args.edges]}")
_EDGES_BY_SILO = Feature(
    EDGES.label, EDGES.is_on, lambda s: f"silos {[silo for edge in s.comm_args.edges for silo in edge.silos]}"
)
_RANKS_ABOVE = Feature(
    "ranks that differ and are above train_args.client_num_in_total",
    lambda s: (
        len({edge.rank for edge in s.comm_args.edges}) == len(s.comm_args.edges)
        and all(edge.rank > s.train_args.client_num_in_total for edge in s.comm_args.edges)
    ),
    lambda s: s.train_args.client_num_in_total,
)
_SILOS_ONCE = Feature(
    "silos from 1 to train_args.client_num_in_total, each of them once",
    lambda s: (
        all(1 <= silo <= s.train_args.client_num_in_total for edge in s.comm_args.edges for silo in edge.silos)
        and len({silo for edge in s.comm_args.edges for silo in edge.silos})
        == sum(len(edge.silos) for edge in s.comm_args.edges)
    ),
    lambda s: s.train_args.client_num_in_total,
)
_MANY_CLIENTS = Feature(
    f"train_args.client_num_in_total above {MAX_CLIENTS_WITH_EDGES}",
    lambda s: s.train_args.client_num_in_total > MAX_CLIENTS_WITH_EDGES,
    lambda s: f"it is {s.train_args.client_num_in_total}",
)
_BUFFER_IN_BOUNDS = Feature(
    "to be at least dapper_args.min_clients_per_round and less than train_args.client_num_per_round",
    lambda s: (
        s.dapper_args.min_clients_per_round <= (s.dapper_args.buffer_size or 0) < s.train_args.client_num_per_round
    ),
    lambda s: f"{s.dapper_args.min_clients_per_round} and {s.train_args.client_num_per_round}",
)

# fmt: off
ROWS = (
    Row(SIMULATION, "needs", chosen("comm_args.backend", "sp", "MPI"),
        "the others connect silos", "set backend to one of these, or training_type to cross_silo",
        {**_BY_GRPC, "common_args.training_type": "simulation"}),
    Row(CROSS_SILO, "needs", chosen("comm_args.backend", "DAPPER_GRPC", "GRPC", "MQTT_S3"),
        "simulation takes sp or MPI", "set backend to one of these, or training_type to simulation",
        {"common_args.training_type": "cross_silo"}),
    Row(CROSS_DEVICE, "needs", chosen("comm_args.backend", "DAPPER_GRPC"),
        "devices call by certificates of their own, and nobody calls them", "set backend to DAPPER_GRPC",
        {**_BY_GRPC, "common_args.training_type": "cross_device"}),
    Row(CROSS_DEVICE, "excludes", EDGES,
        "an edge waits for silos that stay", "leave them out, or take cross_silo",
        {**DEVICES, "comm_args.dapper_grpc.edges": [EDGE]}),
    Row(CROSS_DEVICE, "excludes", SECURE_SUMS,
        "a sum needs all that began it to stay to its end", "leave it out, or take cross_silo",
        {**DEVICES, **SECURE}),
    Row(given("dapper_args.check_in"), "needs", CROSS_DEVICE,
        "others stay connected", "leave it out, or take cross_device",
        {**SILOS, "dapper_args.check_in.come_back_s": 5}),
    Row(given("silo_args.may_call"), "needs", CROSS_DEVICE,
        "others stay connected", "leave it out, or take cross_device",
        {**SILOS, "silo_args.may_call.hours": "22:00-06:00"}),
    Row(chosen("comm_args.backend", "DAPPER_GRPC"), "needs", given("comm_args.dapper_grpc"),
        "the server's address and the folder of certificates stand there", "give it, as in config/cross_silo.yaml",
        {"common_args.training_type": "cross_silo", "comm_args.backend": "DAPPER_GRPC"}),
    Row(_GRPC, "needs", given("comm_args.allow_pickle"),
        "FedML's GRPC unpickles what it receives: whoever reaches its port can run code here"
        f" ({FEDML_GRPC_HOLE})",
        "take DAPPER_GRPC, as config/cross_silo.yaml does; or, on a network that you trust, set allow_pickle: true, as"
        " config/fedml_grpc.yaml does",
        {**_BY_GRPC, "comm_args.allow_pickle": False}),
    Row(_GRPC, "needs", given("comm_args.grpc_ipconfig_path"),
        "it is a table of everyone's address", "name one, as config/fedml_grpc.yaml does",
        {**_BY_GRPC, "comm_args.grpc_ipconfig_path": None}),
    Row(chosen("comm_args.backend", "MQTT_S3"), "needs",
        Feature(
            "comm_args.customized_training_mqtt_config and comm_args.customized_training_s3_config",
            lambda s: None not in (
                value_of(s, "comm_args.customized_training_mqtt_config"),
                value_of(s, "comm_args.customized_training_s3_config"),
            ),
        ),
        "they are the addresses of your own broker and object store", "give both",
        {"common_args.training_type": "cross_silo", "comm_args.backend": "MQTT_S3"}),
    Row(given("comm_args.dapper_grpc.token_file"), "excludes", given("comm_args.dapper_grpc.token_variable"),
        "they are two places for one token", "leave one out",
        {**SILOS, "comm_args.dapper_grpc.token_file": "token", "comm_args.dapper_grpc.token_variable": "TOKEN"}),
    Row(_WORKERS, "needs", chosen("comm_args.backend", "sp"),
        "every other backend has its own processes", "leave workers out",
        {"device_args.workers": 2, "comm_args.backend": "MPI"}),
    Row(_WORKERS, "excludes", given("device_args.using_gpu"),
        "a GPU takes one process", "leave workers out",
        {"device_args.workers": 2, "device_args.using_gpu": True}),
    Row(chosen("device_args.precision", "fp16"), "needs", given("device_args.using_gpu"),
        "it takes a GPU", "set using_gpu, or on a CPU use bf16",
        {"device_args.precision": "fp16"}),
    Row(given("dapper_args.min_clients_per_round"), "needs",
        as_many("train_args.client_num_per_round", "dapper_args.min_clients_per_round"),
        "no more clients can answer than are asked", "lower the former",
        {"dapper_args.min_clients_per_round": 11}),
    Row(BUFFER, "excludes", SIMULATION,
        "a simulation has no real clock",
        "choose dapper_args.fleet.clock, late: kept and over_selection (docs/fleet.md)",
        {"dapper_args.buffer_size": 3}),
    Row(BUFFER, "needs", _BUFFER_IN_BOUNDS,
        "a round closes with so many of those who are at work", "choose such a number, or leave it out",
        {**SILOS, "dapper_args.buffer_size": 10}),
    Row(EDGES, "excludes", BUFFER,
        "edges sum up whole rounds", "leave dapper_args.buffer_size out",
        {**SILOS, "comm_args.dapper_grpc.edges": [EDGE], "dapper_args.buffer_size": 3}),
    Row(EDGES, "excludes", _MANY_CLIENTS,
        "an order to an edge describes all clients", "leave edges out, or run with fewer clients",
        {**SILOS, "comm_args.dapper_grpc.edges": [{**EDGE, "rank": 6000}], "train_args.client_num_in_total": 5001}),
    Row(_EDGES_BY_RANK, "needs", _RANKS_ABOVE,
        "ranks up to that are silos'", "give each edge a rank of its own above them",
        {**SILOS, "comm_args.dapper_grpc.edges": [{**EDGE, "rank": 10}]}),
    Row(_EDGES_BY_SILO, "needs", _SILOS_ONCE,
        "a silo dials one edge, or the server", "take out what is too much",
        {**SILOS, "comm_args.dapper_grpc.edges": [{**EDGE, "silos": [1, 1]}]}),
)
# fmt: on
