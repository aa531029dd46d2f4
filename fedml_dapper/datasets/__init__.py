"""Data sets of an experiment: domains and their samples, their partition over clients, and batch streams."""

from fedml_dapper.datasets.availability import DomainStatus, find_domains, missing_domains
from fedml_dapper.datasets.batches import ClientData, ClientSamples, ClientTests, TestData, TestSamples
from fedml_dapper.datasets.contact_sheet import ContactSheet, contact_sheet
from fedml_dapper.datasets.division import PARTITIONS, Division, divide
from fedml_dapper.datasets.domain import PARTS, Domain, Suite
from fedml_dapper.datasets.forking import tied_to_this_process
from fedml_dapper.datasets.image_set import ImageSet, images_of
from fedml_dapper.datasets.loaded import loaded_division
from fedml_dapper.datasets.packing import pack
from fedml_dapper.datasets.partition import Partition, assign_domains, client_data, partition
from fedml_dapper.datasets.preprocessing import Preprocessing
from fedml_dapper.datasets.recipe import SuiteRecipe
from fedml_dapper.datasets.samples import Batch, Samples
from fedml_dapper.datasets.silo import load_server, load_silo, server_division, silo_division
from fedml_dapper.datasets.suites import FOLDER, PUBLISHED, SUITES, data_root, load_suite
from fedml_dapper.datasets.unlabelled import unlabelled_pictures

__all__ = [
    "FOLDER",
    "PARTITIONS",
    "PARTS",
    "PUBLISHED",
    "SUITES",
    "Batch",
    "ClientData",
    "ClientSamples",
    "ClientTests",
    "ContactSheet",
    "Division",
    "Domain",
    "DomainStatus",
    "ImageSet",
    "Partition",
    "Preprocessing",
    "Samples",
    "Suite",
    "SuiteRecipe",
    "TestData",
    "TestSamples",
    "assign_domains",
    "client_data",
    "contact_sheet",
    "data_root",
    "divide",
    "find_domains",
    "images_of",
    "load_server",
    "load_silo",
    "load_suite",
    "loaded_division",
    "missing_domains",
    "pack",
    "partition",
    "server_division",
    "silo_division",
    "tied_to_this_process",
    "unlabelled_pictures",
]
