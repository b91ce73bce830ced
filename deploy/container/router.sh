#!/bin/sh
# The first process of the image `router`: a command of Penstock, or an executor of Spark.
#
# Where Spark has Kubernetes start an executor, the container's only argument is `executor`, and
# variables say the rest (Spark's BasicExecutorFeatureStep). Each SPARK_JAVA_OPT_N is one option of
# Java's, counted from 0.
set -eu
[ "${1-}" = executor ] || exec penstock "$@"

set --
number=0
while eval "[ -n \"\${SPARK_JAVA_OPT_$number-}\" ]"; do
  eval "set -- \"\$@\" \"\$SPARK_JAVA_OPT_$number\""
  number=$((number + 1))
done
spark=$(python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
exec java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$spark/jars/*${SPARK_CLASSPATH:+:$SPARK_CLASSPATH}" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
