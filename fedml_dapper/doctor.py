"""Entry point of ``python -m fedml_dapper.doctor``; see :mod:`fedml_dapper.commands.doctor`."""

from fedml_dapper.commands.doctor import doctor

if __name__ == "__main__":
    doctor(prog_name="python -m fedml_dapper.doctor")
