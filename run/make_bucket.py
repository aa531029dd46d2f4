"""Make the trial's bucket once its S3 server answers; with --count, say how many objects it holds."""

import sys
import time

import boto3
from botocore.exceptions import EndpointConnectionError

BUCKET = "fedml"
*options, endpoint = sys.argv[1:]
store = boto3.client(
    "s3", endpoint_url=endpoint, aws_access_key_id="test", aws_secret_access_key="testtest", region_name="us-east-1"
)
if options == ["--count"]:
    print(store.list_objects_v2(Bucket=BUCKET)["KeyCount"])
    sys.exit()
for _attempt in range(60):
    try:
        store.create_bucket(Bucket=BUCKET)
        break
    except EndpointConnectionError:
        time.sleep(0.5)
else:
    sys.exit(f"no S3 server at {endpoint}")
