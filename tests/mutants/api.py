"""Mutants of stores, handles on topics and collections."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STORE = "src/klamm/api/store.py"
TOPIC = "src/klamm/api/topic.py"
TESTS = "tests/test_handles.py"

MUTANTS = [
    Mutant(
        "the fast path of a handle ignores that the catalog has changed",
        "api/topic.py: every call finds the topic as it is then",
        ((TOPIC, "target is not None and target.heads.catalog_version == target.version", "target is not None"),),
        (f"{TESTS}::test_the_fast_path_of_a_handle_is_left_when_something_is_in_the_way",),
    ),
    Mutant(
        "a handle appends by calling its store",
        "reference/api.md: topic.append is as quick as store.append",
        ((TOPIC, "        if acks == 1 and headers is None", "        if False and headers is None"),),
        (f"{TESTS}::test_an_append_by_a_handle_makes_no_call_in_between",),
    ),
    Mutant(
        "a handle is made without looking whether there is such a topic",
        "reference/api.md: store[name] raises UnknownTopic",
        ((STORE, "        self._acquired().catalog.topic(name)\n        return Topic", "        return Topic"),),
        (f"{TESTS}::test_a_handle_on_a_topic_that_is_not_there_is_refused_with_the_nearest_name",),
    ),
    Mutant(
        "a store without topics is false",
        "reference/api.md: a store is true, also without topics",
        ((STORE, "    def __bool__(self) -> bool:", "    def _bool(self) -> bool:"),),
        (f"{TESTS}::test_a_store_without_topics_is_true",),
    ),
    Mutant(
        "a keyword replaces a setting of the mapping in silence",
        "reference/api.md: settings are a mapping or keywords",
        (
            (
                "src/klamm/store/settings.py",
                '        if name in changes:\n            raise InvalidSetting(f"{name}: given',
                '        if False:\n            raise InvalidSetting(f"{name}: given',
            ),
        ),
        (f"{TESTS}::test_settings_are_a_mapping_or_keywords",),
    ),
    Mutant(
        "a reset in one step moves nothing",
        "reference/api.md: store.groups.reset moves the group",
        (("src/klamm/client/groups/group_admin.py", "        self.apply(plan)\n", ""),),
        (f"{TESTS}::test_groups_are_a_collection_of_names",),
    ),
    Mutant(
        "a public class is made of whatever it is called with",
        "store/made.py",
        (
            (
                "src/klamm/store/made.py",
                "        if not parts or not isinstance(parts[0], cls._made_of):",
                "        if False:",
            ),
        ),
        (f"{TESTS}::test_a_class_that_a_store_makes_says_so_when_it_is_called",),
    ),
    Mutant(
        "a forked child keeps its parent's store",
        "api/store.py: after a fork the child's copy opens the directory again",
        ((STORE, "        fork.register(self, Store._in_child)\n", ""),),
        (f"{TESTS}::test_a_handle_works_on_in_a_forked_child",),
    ),
]
