"""Fleets of unequal devices: what devices can do, what a level needs of them, and which level each client can run."""

from fedml_dapper.fleet.clock import ClientTime, RoundTimes, VirtualClock
from fedml_dapper.fleet.continuous import with_fitted_levels
from fedml_dapper.fleet.demand import Demand, demands, local_work, round_macs
from fedml_dapper.fleet.fitting import Budget, Fit, Use, fit
from fedml_dapper.fleet.joining import JoiningDevices
from fedml_dapper.fleet.planning import ClientFit, FleetPlan, plan_fleet
from fedml_dapper.fleet.profiles import DeviceProfile, Network, find_device, find_network, shipped_names

__all__ = [
    "Budget",
    "ClientFit",
    "ClientTime",
    "Demand",
    "DeviceProfile",
    "Fit",
    "FleetPlan",
    "JoiningDevices",
    "Network",
    "RoundTimes",
    "Use",
    "VirtualClock",
    "demands",
    "find_device",
    "find_network",
    "fit",
    "local_work",
    "plan_fleet",
    "round_macs",
    "shipped_names",
    "with_fitted_levels",
]
