"""A Spark job of your own: read the log as a DataFrame, and write to one of Penstock's sinks.

    PYSPARK_PYTHON=$(which python) python examples/05_spark_job.py 127.0.0.1:9293 http://127.0.0.1:8080/reports

It counts the errors of each service in the stream `logs`, and posts a record for each.
"""

import sys

from pyspark.sql import SparkSession

from penstock import router


def main(logd: str, url: str) -> None:
    spark = SparkSession.builder.appName("error report").getOrCreate()
    router.register(spark)  # format("logd") and format("penstock")

    errors = router.logs(
        spark,
        {"logd": logd, "subscribe": "logs"},
        columns=["service"],
        where="severity_number >= 17",
        streaming=False,
    )
    report = (
        errors.groupBy("service")
        .count()
        .selectExpr("service", "concat(count, ' errors in ', service) AS body", "count AS errors")
    )
    (
        report.write.format("penstock")
        .option("sink", f"{{type: http, url: '{url}'}}")
        .option("name", "error-report")
        .mode("append")
        .save()
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
