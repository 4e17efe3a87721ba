"""What a program says about its queue file: the document's three notations as printed, and the FPB."""

import pickle

import pytest

from tailrace.mcp import FileParameters

MY_Q = FileParameters("MY.Q", max_messages=20, record_size=80, buffers=3)
MY_QFF = FileParameters("MY.QFF", max_messages=10, record_size=80, buffers=2, family_size=3)

CARDS = """?FI MY.Q QUEUE   Q.MAX.MESSAGES=20  BUFFERS=3  RECORD.SIZE=80;
?FILE MY.QFF QUEUE  Q.MAX.MESSAGES=10  Q.FAMILY.SIZE=3  BUFFERS=2
                                           RECORD.SIZE=80
"""

SDL = """FILE MY.Q (DEVICE=QUEUE(20)                BUFFERS=3, RECORDS=80);
FILE.MY.QFF(DEVICE=QUEUE(10)  FAMILY(3),  BUFFERS=2, RECORDS=80);
"""

COBOL = """SELECT MY.Q  ASSIGN TO QUEUE.
      ⋮
FD MY.Q  VALUE OF Q.MAX.MESSAGES IS 20
      RESERVE 3 ALTERNATE AREAS.
01 MY.Q.BUF  PIC X(80).

SELECT MY.QFF  ASSIGN TO QUEUE.
      ⋮
FD MY.QFF  FILE CONTAINS 3 QUEUES
      VALUE OF Q.MAX.MESSAGES IS 10
      RESERVE 2 ALTERNATE AREAS.
01 MY.QFF.BUF  PIC X(80).
"""

MESSAGE_COUNT_EXAMPLE = """FILE MY.QFF (DEVICE=QUEUE(10) FAMILY (5)
             ,BUFFERS=2, RECORDS=80);
"""

READERS = {
    "card": (FileParameters.from_card, FileParameters.all_from_card, CARDS),
    "sdl": (FileParameters.from_sdl, FileParameters.all_from_sdl, SDL),
    "cobol": (FileParameters.from_cobol, FileParameters.all_from_cobol, COBOL),
}


@pytest.mark.parametrize("notation", READERS)
def test_the_document_s_examples_as_printed(notation):
    one, every, text = READERS[notation]
    assert every(text) == [MY_Q, MY_QFF]
    with pytest.raises(ValueError, match=r"expected one declaration, found 2: MY\.Q, MY\.QFF"):
        one(text)


def test_the_example_of_section_8():
    assert FileParameters.from_sdl(MESSAGE_COUNT_EXAMPLE) == FileParameters("MY.QFF", 10, 80, 2, family_size=5)


@pytest.mark.parametrize(
    ("notation", "text", "column", "expected"),
    [
        ("card", "?FI MY.Q QUEUE Q.MAX.MESSAGES=twenty RECORD.SIZE=80;", 31, "number"),
        ("card", "?FI MY.Q QUEUE Q.MAX.MESAGES=20 RECORD.SIZE=80;", 16, "MAX.MESSAGES"),
        ("card", "FI MY.Q QUEUE Q.MAX.MESSAGES=20 RECORD.SIZE=80;", 1, "'?' at the beginning"),
        ("sdl", "FILE MY.Q (DEVICE=CARD(20), RECORDS=80);", 19, "QUEUE"),
        ("sdl", "FILE MY.Q (DEVICE=QUEUE(20), RECORDS=80;", 40, ")"),
        ("cobol", "SELECT MY.Q ASSIGN TO CARD.", 23, "QUEUE"),
    ],
)
def test_errors_name_the_column_and_what_was_expected(notation, text, column, expected):
    with pytest.raises(ValueError, match=f"column {column}\\b") as info:
        READERS[notation][0](text)
    assert expected in str(info.value)


def test_only_buffers_has_a_default():
    assert FileParameters.from_card("?FI Q QUEUE Q.MAX.MESSAGES=1 RECORD.SIZE=9;").buffers == 2
    for text, missing in [
        ("?FI Q QUEUE RECORD.SIZE=9;", "Q.MAX.MESSAGES"),
        ("?FI Q QUEUE Q.MAX.MESSAGES=1;", "RECORD.SIZE"),
    ]:
        with pytest.raises(ValueError, match=missing):
            FileParameters.from_card(text)


def test_parameters_are_values(tmp_path):
    same = FileParameters(name="MY.Q", max_messages=20, record_size=80, buffers=3, family_size=0, device=61)
    assert same == MY_Q != MY_QFF
    assert hash(same) == hash(MY_Q)
    assert pickle.loads(pickle.dumps(MY_QFF)) == MY_QFF
    assert repr(MY_Q) == 'FileParameters("MY.Q", max_messages=20, record_size=80, buffers=3, family_size=0, device=61)'
    assert eval(repr(MY_QFF)) == MY_QFF
    assert (MY_QFF.name, MY_QFF.max_messages, MY_QFF.record_size, MY_QFF.buffers) == ("MY.QFF", 10, 80, 2)
    assert (MY_QFF.family_size, MY_QFF.device) == (3, 61)
    assert FileParameters("Q", max_messages=255, record_size=200).disk_segments == 510
    with pytest.raises(AttributeError):
        MY_Q.buffers = 4
    for wrong, limit in [({"max_messages": 0}, "1 to"), ({"buffers": 0}, "1 to"), ({"record_size": 0}, "1 to")]:
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be {limit}"):
            FileParameters(**{"name": "Q", "max_messages": 1, "record_size": 1, **wrong})
    with MY_QFF.open("input_output", system=tmp_path, sdl_keys=True, keep=True) as file:
        assert file.parameters == MY_QFF
        file.write(b"x", key=0)
        assert file.read(key=-1) == b"x"
        file.forget()


def test_the_fpb_both_ways():
    block = MY_QFF.to_fpb()
    assert FileParameters.from_fpb(block, "MY.QFF", 80) == MY_QFF
    assert FileParameters.from_fpb(memoryview(bytearray(block)), name="MY.QFF", record_size=80) == MY_QFF
    assert block[0] >> 2 == 61, "FPB.HDWR is the first six bits"
    bits = int.from_bytes(block, "big") >> (len(block) * 8 - 30)
    assert bits & 0xFFFFFF == 2, "FPB.BUFFERS is the next 24"
    old = FileParameters("Q", 5, 9, device=62)
    assert FileParameters.from_fpb(old.to_fpb(), "Q", 9) == old
    with pytest.raises(ValueError, match="256"):
        FileParameters("Q", max_messages=256, record_size=9).to_fpb()
    for wrong in (b"", block[:-1], block + b"\0"):
        with pytest.raises(ValueError, match=r"bytes|bits"):
            FileParameters.from_fpb(wrong, "Q", 9)
