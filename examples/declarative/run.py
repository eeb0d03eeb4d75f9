"""Run the pipeline of this folder: all that is new in the topic, then end. Run it again whenever you like.

    python examples/declarative/run.py events/

It sets up what Spark's own command, `spark-pipelines`, needs, in a folder of the store, and calls it there:

    events/pipelines/shop/spark-pipeline.yml          the project
    events/pipelines/shop/transformations             what is in it: a link to the folder beside this file
    events/pipelines/shop/conf/spark-defaults.conf    Spark's settings
    events/pipelines/shop/storage/                    how far each flow has come: Spark's checkpoints
    events/pipelines/shop/warehouse/, metastore/      the tables, and what is known of them

Needs `pip install 'klamm[spark]' 'pyspark[pipelines]'`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import klamm
import klamm.spark

NAME = "shop"
TOPICS = ("orders", "large-orders")
SPEC = """\
name: {name}
storage: file://{home}/storage
libraries:
  - glob:
      include: transformations/**
"""


def conf(events: Path, home: Path) -> dict[str, str]:
    """Spark's settings: those of klamm.spark.session, and a catalog on disk. One in memory forgets its tables."""
    catalog = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": f"{home}/warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home}/metastore;create=true",
        "spark.log.level": "OFF",  # what fails is told by the command, in Python
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return klamm.spark.session_settings(events, master="local[*]", **catalog)


def prepare(events: Path) -> Path:
    """The project's folder, with everything in it that Spark does not make itself."""
    with klamm.open(events) as store:
        for topic in TOPICS:
            store.topics.create(topic, exist_ok=True)
    home = events / "pipelines" / NAME
    (home / "conf").mkdir(parents=True, exist_ok=True)
    lines = [f"{name} {value}\n" for name, value in conf(events, home).items()]
    (home / "conf" / "spark-defaults.conf").write_text("".join(lines))
    (home / "spark-pipeline.yml").write_text(SPEC.format(name=NAME, home=home))
    link = home / "transformations"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(__file__).resolve().parent / "transformations", target_is_directory=True)
    return home


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the declarative pipeline: what is new, then end.")
    parser.add_argument("events", type=Path, help="the store's directory")
    options = parser.parse_args()
    home = prepare(options.events.resolve())
    # Settings in a file: what is given by --conf, Spark 4.2 loses on the way to the server that it starts.
    environment = {
        "JAVA_HOME": klamm.spark.java_home(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": f"{home}/conf",
    }
    command = [Path(sys.executable).parent / "spark-pipelines", "run"]
    return subprocess.run(command, cwd=home, env={**os.environ, **environment}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
