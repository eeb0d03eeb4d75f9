"""Mutants of stores, handles on topics and collections."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STORE = "src/klamm/api/store.py"
TOPIC = "src/klamm/api/topic.py"
HEAD = "src/klamm/log/_head.pyx"
READS = "src/klamm/api/reads.py"
OPTIONS = "tests/test_options.py"
TESTS = "tests/test_handles.py"
CHANGES_TESTS = "tests/store/test_topic_changes.py"
TOLD = f"{CHANGES_TESTS}::test_the_catalog_itself_tells_other_processes_of_a_change_that_they_read"

MUTANTS = [
    Mutant(
        "the fast path of a handle ignores that the catalog has changed",
        "api/topic.py: every call finds the topic as it is then",
        ((HEAD, "        if load64(&self.w.store.catalog_version) != version:\n", "        if False:\n"),),
        (f"{TESTS}::test_the_fast_path_of_a_handle_is_left_when_something_is_in_the_way",),
    ),
    Mutant(
        "other processes are not told of a change of the catalog",
        "reference/api.md: store.alter",
        (("src/klamm/store/found_catalog.py", "    core.catalog.on_change = core.changed\n", ""),),
        (
            f"{TESTS}::test_settings_are_a_mapping_or_keywords",
            f"{TOLD}[alter]",
        ),
    ),
    Mutant(
        "each producer id that is given out makes all processes read the catalog again",
        "store/catalog.py: other processes read what was changed, not numbers",
        (
            (
                "src/klamm/store/directory.py",
                "        if changes > self.heads.changes:\n            self.heads.changes = changes",
                "        self.heads.changes = changes\n        self.changed()",
            ),
        ),
        (f"{TOLD}[allocate_producer_id]",),
    ),
    Mutant(
        "a handle appends by calling its store",
        "reference/api.md: topic.append is as quick as store.append",
        ((TOPIC, "    @topic_goes_shortest_way\n", ""),),
        (f"{TESTS}::test_an_append_by_a_handle_makes_no_call_in_between",),
    ),
    Mutant(
        "the shortest way of an append loses headers",
        "log/_shortest.pxi: what has options goes the general way",
        (("src/klamm/log/_shortest.pxi", "    return (headers is None and timestamp", "    return (timestamp"),),
        (f"{TESTS}::test_no_option_of_an_append_is_lost_on_the_shortest_way",),
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
        "store/handle.py",
        (
            (
                "src/klamm/store/handle.py",
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
    Mutant(
        "an overload has another default than the call",
        "api/call_options.py: tests hold the copies together",
        ((READS, "        max_bytes: int = 1 << 20,", "        max_bytes: int = 1 << 21,"),),
        (f"{OPTIONS}::test_the_first_overload_is_the_whole_signature",),
    ),
    Mutant(
        "a handle has another overload than its store",
        "decisions/types-by-the-serde: overloads of a handle are those of the store",
        ((TOPIC, "        value: str | None,\n", "        value: Any,\n"),),
        (f"{OPTIONS}::test_a_handle_has_the_overloads_of_the_store_but_for_the_topic",),
    ),
    Mutant(
        "a choice that is documented is not taken",
        "choices.py: checks at run time read the values of these types",
        (("src/klamm/choices.py", '"read_committed", "read_uncommitted"]', '"read_committed", "uncommitted"]'),),
        (f"{OPTIONS}::test_what_a_choice_names_is_taken_and_nothing_else", "tests/store/test_aborted.py"),
    ),
    Mutant(
        "codecs are numbered in another order than Kafka's",
        "choices.py: their order is that of Kafka's numbers",
        (("src/klamm/choices.py", '"gzip", "snappy", "lz4"', '"snappy", "gzip", "lz4"'),),
        (f"{OPTIONS}::test_the_codecs_are_in_the_order_of_their_numbers",),
    ),
    Mutant(
        "checkers accept every name in klamm",
        "reference/api.md: types",
        (("src/klamm/__init__.py", "if not TYPE_CHECKING:  #", "if _LATER:  #"),),
        ("tests/typing/test_typing.py",),
    ),
    Mutant(
        "checkers take text for bytes",
        "reference/api.md: types by the serde",
        (
            (
                "src/klamm/api/functions.py",
                ") -> Store[BytesKey, bytes]: ...",
                ") -> Store[Any, Any]: ...",
            ),
        ),
        ("tests/typing/test_typing.py",),
    ),
]
