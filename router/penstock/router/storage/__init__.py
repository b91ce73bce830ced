"""Where files and small objects are kept apart from this machine: S3 and HDFS, for any part."""
