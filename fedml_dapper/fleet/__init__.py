"""Fleets of unequal devices: what devices can do, what a level needs of them, and which level each client can run."""

from fedml_dapper.fleet.clock import RoundTimes, VirtualClock
from fedml_dapper.fleet.continuous import with_fitted_levels
from fedml_dapper.fleet.demand import Demand, demands, local_work, round_macs
from fedml_dapper.fleet.fitting import Fit, Use, fit
from fedml_dapper.fleet.joining import JoiningDevices
from fedml_dapper.fleet.planning import ClientFit, FleetPlan, plan_fleet
from fedml_dapper.fleet.profiles import DeviceProfile, Network, find_device
from fedml_dapper.fleet.solved_levels import with_asked_levels, with_solved_levels

__all__ = [
    "ClientFit",
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
    "fit",
    "local_work",
    "plan_fleet",
    "round_macs",
    "with_asked_levels",
    "with_fitted_levels",
    "with_solved_levels",
]
