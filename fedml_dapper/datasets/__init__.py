"""Domains as uint8 tensors, their partition over clients, seeded batch streams with batched augmentation."""

from fedml_dapper.datasets.availability import DomainStatus, find_domains, missing_domains
from fedml_dapper.datasets.batches import Batch, ClientData, ClientTests, TestData
from fedml_dapper.datasets.contact_sheet import contact_sheet
from fedml_dapper.datasets.division import Division, divide
from fedml_dapper.datasets.domain import Domain, ImageSet, Suite
from fedml_dapper.datasets.loaded import loaded_division
from fedml_dapper.datasets.packing import pack
from fedml_dapper.datasets.partition import Partition, assign_domains, client_data, partition
from fedml_dapper.datasets.preprocessing import Preprocessing
from fedml_dapper.datasets.recipe import DomainRecipe, SuiteRecipe
from fedml_dapper.datasets.suites import SUITES, data_root, load_suite

__all__ = [
    "SUITES",
    "Batch",
    "ClientData",
    "ClientTests",
    "Division",
    "Domain",
    "DomainRecipe",
    "DomainStatus",
    "ImageSet",
    "Partition",
    "Preprocessing",
    "Suite",
    "SuiteRecipe",
    "TestData",
    "assign_domains",
    "client_data",
    "contact_sheet",
    "data_root",
    "divide",
    "find_domains",
    "load_suite",
    "loaded_division",
    "missing_domains",
    "pack",
    "partition",
]
