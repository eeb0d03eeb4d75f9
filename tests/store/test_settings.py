"""Settings: Kafka's names and defaults, typed, and refusals that help."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.errors import InvalidSetting
from klamm.store.settings import SETTINGS, Setting, Settings, Value

# The defaults of Apache Kafka 4.
KAFKA = {
    "cleanup.policy": "delete",
    "delete.retention.ms": 86400000,
    "index.interval.bytes": 4096,
    "compression.gzip.level": -1,
    "compression.lz4.level": 9,
    "compression.type": "producer",
    "compression.zstd.level": 3,
    "max.compaction.lag.ms": 9223372036854775807,
    "max.message.bytes": 1048588,
    "message.timestamp.after.max.ms": 3600000,
    "message.timestamp.before.max.ms": 9223372036854775807,
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": 0.5,
    "min.compaction.lag.ms": 0,
    "producer.id.expiration.ms": 86400000,
    "retention.bytes": -1,
    "retention.ms": 604800000,
    "segment.bytes": 1073741824,
    "segment.ms": 604800000,
}


def values_of(setting: Setting) -> st.SearchStrategy[Value]:
    if setting.choices:
        return st.sampled_from(setting.choices)
    if setting.type == "double":
        return st.floats(setting.low, setting.high)
    numbers = st.integers(setting.low, setting.high)
    return numbers | st.just(-1) if setting.unlimited else numbers


OVERRIDES = st.fixed_dictionaries({}, optional={name: values_of(setting) for name, setting in SETTINGS.items()})


def test_defaults_are_those_of_kafka() -> None:
    settings = Settings()
    assert {name: SETTINGS[name].default for name in KAFKA} == KAFKA
    assert {name: settings[name] for name in KAFKA} == {name: str(value) for name, value in KAFKA.items()}
    assert set(SETTINGS) - set(KAFKA) == {"segment.records"}
    assert settings.to_dict() == {}


@given(OVERRIDES)
def test_what_was_set_comes_back_through_strings(overrides: dict[str, Value]) -> None:
    settings = Settings.of(overrides)
    stored = settings.to_dict()
    assert stored == {name: str(value) for name, value in sorted(overrides.items())}
    assert list(stored) == sorted(stored)
    assert Settings.of(stored) == settings
    for name, setting in SETTINGS.items():
        assert getattr(settings, name.replace(".", "_")) == overrides.get(name, setting.default)


@given(OVERRIDES, OVERRIDES, st.sets(st.sampled_from(sorted(SETTINGS))))
def test_changes_and_resets_leave_the_rest_alone(
    before: dict[str, Value], changes: dict[str, Value], resets: set[str]
) -> None:
    resets -= set(changes)
    after = Settings.of(before).changed(changes, resets)
    left = {name: value for name, value in before.items() if name not in resets}
    assert after == Settings.of({**left, **changes})


@given(st.sampled_from([s for s in SETTINGS.values() if not s.choices]), st.data())
def test_numbers_out_of_range_are_refused_whether_int_or_text(setting: Setting, data: st.DataObject) -> None:
    low = min(setting.low, -1 if setting.unlimited else setting.low)
    value = data.draw(st.one_of(st.integers(max_value=low - 1), st.integers(min_value=setting.high + 1)))
    for form in (value, str(value)):
        with pytest.raises(InvalidSetting, match=f"{setting.name}: .* is invalid .*{setting.low} to {setting.high}"):
            Settings.of({setting.name: form})


@pytest.mark.parametrize("value", ["", "1e3", "1_000", "٣", "0x10", "abc", 1.5, None, True, b"1", [], "9" * 5000])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(InvalidSetting, match=r"retention\.ms: .* is invalid"):
        Settings.of({"retention.ms": value})  # type: ignore[dict-item]


def test_numbers_may_come_as_text_as_kafkas_tools_send_them() -> None:
    settings = Settings.of({"retention.ms": " +5 ", "retention.bytes": "-1"})
    assert (settings.retention_ms, settings.retention_bytes) == (5, -1)


def test_a_segment_of_zero_records_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="or -1: no limit"):
        Settings.of({"segment.records": 0})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("retention_ms", "retention.ms"), ("segment.byte", "segment.bytes"), ("max.mesage.bytes", "max.message.bytes")],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(InvalidSetting, match=r"orders: .*no such setting.*did you mean") as refused:
        Settings.of({name: 1}, where="orders")
    assert refused.value.hint == f"did you mean {nearest!r}?"
    with pytest.raises(InvalidSetting, match="no such setting"):
        Settings().changed({}, [name])


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete, compact"])
def test_both_cleanups_may_be_asked_for_in_any_order(policy: str) -> None:
    assert Settings.of({"cleanup.policy": policy}).cleanup_policy == policy.replace(" ", "")
    with pytest.raises(InvalidSetting, match="is invalid"):
        Settings.of({"cleanup.policy": policy + ",more"})


@pytest.mark.parametrize(
    ("given", "want"), [(0, 0.0), (1, 1.0), (0.25, 0.25), ("0.5", 0.5), (" .75 ", 0.75), ("1e-3", 0.001)]
)
def test_a_ratio_is_a_number_from_0_to_1(given: str | float, want: float) -> None:
    settings = Settings.of({"min.cleanable.dirty.ratio": given})
    assert settings.min_cleanable_dirty_ratio == want
    assert Settings.of(settings.to_dict()) == settings
    for bad in (-0.1, 1.1, True, None, "half", "nan", "", "1e999"):
        with pytest.raises(InvalidSetting, match="is invalid"):
            Settings.of({"min.cleanable.dirty.ratio": bad})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", [name for name in SETTINGS if name.endswith(".ms")])
def test_a_setting_in_milliseconds_takes_a_duration(name: str) -> None:
    for duration in ("1h30m", " 1.5h ", "5400s", timedelta(minutes=90)):
        assert Settings.of({name: duration})[name] == "5400000"
    for wrong in ("1 hour", "-1h", "1h-", timedelta(seconds=-1), "99999999999999w"):
        with pytest.raises(InvalidSetting, match=f"{name}: .* is invalid .*a duration such as '90s' or '7d'"):
            Settings.of({name: wrong})


def test_only_a_setting_in_milliseconds_takes_a_duration() -> None:
    for name in ("segment.bytes", "retention.bytes", "min.cleanable.dirty.ratio"):
        for duration in ("1s", timedelta(seconds=1)):
            with pytest.raises(InvalidSetting):
                Settings.of({name: duration})


def test_words_are_refused_with_the_words_that_fit() -> None:
    with pytest.raises(InvalidSetting, match=r"'createtime' is invalid .expected 'CreateTime' or 'LogAppendTime'"):
        Settings.of({"message.timestamp.type": "createtime"})
    with pytest.raises(InvalidSetting, match="3 is invalid"):
        Settings.of({"message.timestamp.type": 3})


def test_a_setting_cannot_be_changed_and_reset_at_once() -> None:
    with pytest.raises(InvalidSetting, match="both changed and reset"):
        Settings().changed({"retention.ms": 1}, ["retention.ms"])


def test_settings_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().retention_ms = 1  # type: ignore[misc]
    assert hash(Settings.of({"retention.ms": 5})) == hash(Settings.of({"retention.ms": "5"}))


def test_wrong_python_types_are_type_errors() -> None:
    with pytest.raises(TypeError, match="mapping"):
        Settings.of([("retention.ms", 1)])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name is a str"):
        Settings.of({1: 1})  # type: ignore[dict-item]


def test_every_setting_says_what_it_means() -> None:
    for setting in SETTINGS.values():
        assert setting.doc.endswith((".", ".)")) and "\n" not in setting.doc
        assert setting.parse(setting.default) == setting.default
        kind = "string" if setting.choices else "int" if setting.high < 2**31 else "long"
        assert setting.type == ("double" if setting.high == 1 else kind)
