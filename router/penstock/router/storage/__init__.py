"""Files and small objects in S3 and HDFS, and the lease by which one process alone changes them."""
