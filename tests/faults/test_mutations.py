"""Every file and message that fedhead reads, damaged at random: it is read as a valid value or refused in one line."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import array_readers
import pytest
import text_readers
from fault_length import length
from mutations import Outcome, attack, limited_memory, mutate, resident
from readers import Reader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
COUNT = length(150, 10_000)  # mutations per reader

READERS: dict[str, Callable[[Path], Reader]] = {
    "config.yaml": text_readers.config,
    "recipe": text_readers.recipe,
    "site.yaml": text_readers.site,
    "server.yaml": text_readers.server,
    "metrics.jsonl": text_readers.metrics,
    "result.json": text_readers.result,
    "environment.json": text_readers.environment,
    "checkpoint": array_readers.checkpoint,
    "partition.npz": array_readers.partition,
    "federation.npz": array_readers.federation,
    "data.npz": array_readers.plain_npz,
    "statistics": array_readers.statistics,
    "results.csv": text_readers.results_csv,
    "PNG": array_readers.image("PNG"),
    "JPEG": array_readers.image("JPEG"),
    "WebP": array_readers.image("WEBP"),
    "idx": array_readers.idx,
    "message": text_readers.message,
}


def variants(reader: Reader, count: int, seed: str) -> Iterator[bytes]:
    rng = random.Random(seed)
    for number in range(count):
        if reader.structured is not None and number % 2:
            yield reader.structured(rng)
        else:
            yield mutate(reader.sound, rng)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_as_a_valid_value_or_refused_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = READERS[name](tmp_path)
    reader.file.write_bytes(reader.sound)
    reader.read()  # undamaged, it is read
    outcome, before = Outcome(), resident()
    for number, data in enumerate(variants(reader, COUNT, name)):
        reader.file.write_bytes(data)
        with limited_memory():
            most = reader.memory + 20 * len(data)
            attack(reader.read, most, outcome, lambda data=data: repr(data[:600]), trace=number % 10 == 0)
        assert len(outcome.wrong) < 20, "\n".join(text[:300] for text in outcome.wrong)
    with capsys.disabled():
        print(f"\n{name}: {outcome}")
    assert not outcome.wrong, "\n".join(text[:300] for text in outcome.wrong)
    assert outcome.tried == COUNT
    assert outcome.refused > COUNT // 10  # the changes are not harmless
    assert outcome.slowest < 30
    assert resident() - before < 1 << 30


def test_the_harness_notices_what_must_not_be() -> None:
    outcome = Outcome()

    def opens() -> None:
        import os

        os.system("true")

    def grows() -> None:
        assert len(bytearray(200 << 20))

    for wrong in (lambda: [].pop(), opens, grows):
        attack(wrong, 1 << 20, outcome, str, trace=True)
    for said, expected in zip(outcome.wrong, ("IndexError", "os.system", "1,048,576 are enough"), strict=True):
        assert expected in said
