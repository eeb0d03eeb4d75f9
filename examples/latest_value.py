"""A compacted topic as a view of the latest values: sensors report, and a reader sees the last report of each.

    python examples/latest_value.py events/

The log keeps every change until it is compacted; the table is always the latest. Needs `pip install 'klamm[table]'`.
"""

from __future__ import annotations

import sys

import klamm

SENSORS, REPORTS = 50, 200


def main(path: str) -> None:
    with klamm.open(path) as store:
        store.topics.create("sensors", 1, {"cleanup.policy": "compact"}, exist_ok=True)
        with store.producer(serde="json") as producer:
            for n in range(REPORTS):
                for sensor in range(SENSORS):
                    producer.send("sensors", {"celsius": 20 + n / 100}, key=f"sensor-{sensor:02}")
        store.append("sensors", None, key=b"sensor-49")  # it was removed: a record without value deletes its key

        sensors = store.table("sensors", serde="json", key_serde="str")
        print(f"{len(sensors)} sensors; sensor-07 reports {sensors['sensor-07']['celsius']} °C")
        print("sensor-49 is there:", "sensor-49" in sensors)

        before = store.topics.describe("sensors").size
        report = store["sensors"].compact(force=True)
        after = store.topics.describe("sensors").size
        print(f"compacted: {report.records_removed:,} records less, {before / after:.0f} times smaller")
        print(f"the table is the same: {sensors['sensor-07']['celsius']} °C")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
