"""Names of the files in a run's folder."""

LEDGER_NAME = "ledger.jsonl"
MODEL_NAME = "global_model.safetensors"
CHECKPOINTS_NAME = "checkpoints"
OPENED_NAME = "opened_round.txt"
EVICTED_NAME = "evicted.json"
SETTINGS_NAME = "settings.yaml"
REPORT_NAME = "report.html"
