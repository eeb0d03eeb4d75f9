"""Apache Kafka's own tests, as they come from Maven, run against `klamm serve`: `python -m tests.interop.apache`."""
