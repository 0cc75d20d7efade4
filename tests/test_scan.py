"""One pass over dirty, big, packed and broken texts."""

import gzip
import io
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dstune.catalog.alike import made, wide
from dstune.catalog.signatures import Signature, as_bytes, log_facts, openings, rows_of, seen_on_its_line, signature, signatures
from dstune.catalog.vocabulary import normalise
from dstune.errors import UnobservableError
from dstune.readers import decoded, read_files, recognise, without_comments
from dstune.readers.scan import KEEP, Scanner, blocks, clean, open_log, shown, values
from dstune.readers.scan_sieve import SHORT, Sieve, sieve_of, without_ids

LOGS = Path(__file__).parent / "logs"

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.02 GiB is free."


def test_line_numbers_and_groups() -> None:
    rows = [signature("c", 0, 0, "log", r"needle (?P<size_mib>[\d.]+ GiB)")]
    text = "a\nb\nneedle 2.00 GiB x\nc\nneedle 1 GiB\n"
    hits, _ = Scanner(rows).scan([(1, text)], "log", "f")
    assert [(h.line, h.groups["size_mib"]) for h in hits] == [(3, 2048.0), (5, 1024.0)]


def test_line_numbers_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dstune.readers.scan.BLOCK", 100)
    lines = [f"line {i} " + "x" * random.Random(i).randrange(60) for i in range(400)]
    lines[250] = "here is the needle"
    rows = [signature("c", 0, 0, "log", "the needle")]
    hits, _ = Scanner(rows).scan(blocks(io.BytesIO("\n".join(lines).encode())), "log", "f")
    assert [h.line for h in hits] == [251]


def test_multiline_expression() -> None:
    rows = [signature("c", 0, 0, "log", r"first thing\n.*second thing")]
    hits, _ = Scanner(rows).scan([(1, "x\nfirst thing\nthen second thing\n")], "log", "f")
    assert [h.line for h in hits] == [2]


def test_repeated_line_is_bounded() -> None:
    rows = [signature("c", 0, 0, "log", "needle")]
    hits, _ = Scanner(rows).scan([(1, "needle\n" * 5000)], "log", "f")
    assert len(hits) == KEEP


def test_short_texts_are_searched_as_long_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [p.read_bytes()[:SHORT] for p in sorted(LOGS.rglob("*.log"))]
    texts += [b"", b"oom", "内存不足".encode(), b"\xff\x00"]
    rows, words, owners = rows_of("log")
    assert len(rows) > 3000
    short, long = Sieve(words, owners), Sieve(words, owners)
    monkeypatch.setattr("dstune.readers.scan_sieve.SHORTS", len(texts))
    shorts = [short.find(text) for text in texts]
    monkeypatch.setattr("dstune.readers.scan_sieve.SHORTS", 0)
    assert shorts == [long.find(text) for text in texts]
    assert sum(map(len, shorts)) > 1000


def test_packed_rows_are_the_signatures() -> None:
    rows, words, owners = rows_of("app")
    assert list(rows) == [s for s in signatures() if s.kind in ("app", "any")]
    made = sieve_of((n, as_bytes(seen_on_its_line(row))) for n, row in enumerate(rows))
    packed = Sieve(words, owners)
    assert list(made.words) == words
    assert [made.owners(n) for n in range(len(words))] == [packed.owners(n) for n in range(len(words))]


def test_clean_keeps_line_numbers() -> None:
    assert clean("\x1b[31mred\x1b[0m\r\nbar 1%\rbar 2%\nend\0") == "red\nbar 1% bar 2%\nend "


@pytest.mark.parametrize("form", ["plain", "crlf", "gz", "utf16", "ansi", "prefix", "junk"])
def test_same_cause_in_every_dress(form: str, tmp_path: Path) -> None:
    text = f"start\n{OOM}\nend\n"
    data = text.encode()
    name = "server.log"
    if form == "crlf":
        data = text.replace("\n", "\r\n").encode()
    elif form == "gz":
        name, data = "server.log.gz", gzip.compress(data)
    elif form == "utf16":
        data = text.encode("utf-16")
    elif form == "ansi":
        data = text.replace("CUDA", "\x1b[31mCUDA\x1b[0m").encode()
    elif form == "prefix":
        data = "".join(f"web-1  | 2026-11-30T10:00:00.123Z (EngineCore pid=7) {line}\n" for line in text.splitlines()).encode()
    elif form == "junk":
        data = b"\xff\xfe\x80 junk\n".replace(b"\xff\xfe", b"\xfa\xfb") + data
    path = tmp_path / name
    path.write_bytes(data)
    seen, _ = read_files([str(path)])
    assert seen.first("log", "oom_tried_mib") == 2048
    line = next(seen.find("log", "oom_tried_mib")).line
    assert line == (3 if form == "junk" else 2)


def test_standard_input() -> None:
    seen, _ = read_files(["-"], stdin=io.BytesIO(OOM.encode()))
    assert seen.first("log", "oom_total_mib") == pytest.approx(23.65 * 1024)


def test_binary_and_missing_are_clear_errors(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"\x7fELF" + bytes(500))
    with pytest.raises(UnobservableError, match="binary"):
        read_files([str(tmp_path / "a.log")])
    with pytest.raises(UnobservableError, match="cannot be read"):
        read_files([str(tmp_path / "none.log")])
    with pytest.raises(UnobservableError, match="folder"):
        read_files([str(tmp_path)])


def test_gb18030_is_read() -> None:
    assert decoded("显存不足".encode("gb18030"), "x") == "显存不足"


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("app.py", "", "app"), ("x/Dockerfile.gpu", "", "dockerfile"), ("compose.prod.yaml", "", "compose"), ("run.sh", "", "command"),
        ("a.yaml", "services:\n  x:\n", "config"), ("<stdin>", "services:\n  x:\n", "compose"), ("<stdin>", "FROM python:3.11\n", "dockerfile"),
        ("<stdin>", "vllm serve m --dtype half\n", "command"), ("<stdin>", "import torch\nx=1\n", "app"), ("<stdin>", OOM, "log"),
        ("<stdin>", "docker run --gpus all img\n", "command"), ("notes.txt", "hello", "log"),
        ("<stdin>", "FROM llama3.2\nPARAMETER temperature 0.7\n", "config"), ("Modelfile", "FROM x", "config"),
        ("<stdin>", "FROM python:3.11\nENV SYSTEM=1\nRUN a \\\n SYSTEM x\nCMD b\n", "dockerfile"),
    ],
)  # fmt: skip
def test_recognise(path: str, text: str, kind: str) -> None:
    assert recognise(path, text) == kind


def test_comments_are_no_code() -> None:
    text = 'x = "# not a comment"  # token=hf_secret\n# use_cache=False\ny = 1\n'
    assert without_comments("app", text) == 'x = "# not a comment"\n\ny = 1\n'
    assert without_comments("command", "run --a # b\n#!x\n") == "run --a \n#!x\n"


def test_the_real_table_scans_each_kind() -> None:
    assert {"log"} <= {s.kind for s in signatures()}
    assert open_log(__file__).read(3) == b'"""'


def naive(rows: list[Signature], text: str) -> tuple[set[Any], dict[tuple[str, str], Any]]:
    """What a scan must find: every expression on every line; first hits, facts by `keep`."""
    text = clean(text)
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    hits: set[Any] = set()
    facts: dict[tuple[str, str], Any] = {}
    events: list[tuple[int, int, dict[str, Any]]] = []
    unique = dict.fromkeys(lines)
    for number, row in enumerate(rows):
        pattern = re.compile(row.pattern, re.MULTILINE)
        matching = {line: m for line in unique if (m := pattern.search(line[:20_000]))} if not row.multiline else {}
        found: dict[int, dict[str, Any]] = {}
        for i, line in enumerate(lines):
            if len(found) >= KEEP and row.cause:
                break
            if line in matching:
                found[i + 1] = matching[line].groupdict()
            elif row.multiline and any(fixed in line for fixed, _ in row.literals):
                m = pattern.search(text, max(0, starts[i] - 4000), min(len(text), starts[i + 1] + 3999))
                if m:
                    found.setdefault(text.count("\n", 0, m.start()) + 1, m.groupdict())
        for at, groups in found.items():
            if row.cause:
                hits.add((row.cause, row.way, row.part, at, repr(values(groups))))
            else:
                events.append((at, number, groups))
    for at, number, groups in sorted(events, key=lambda e: e[:2]):
        fact = log_facts()[rows[number].way]
        for full, group in fact["set"].items():
            raw = groups.get(group) if isinstance(group, str) and group in groups else group
            value = None if raw is None else normalise(full, raw)
            subject, _, name = full.partition(".")
            old = facts.get((subject, name))
            keep = fact.get("keep", "last")
            if value is not None and (old is None or keep == "last" or (keep == "max" and value > old[0])):
                facts[subject, name] = (value, at)
    return hits, facts


def same(rows: list[Signature], text: str) -> None:
    hits, facts = Scanner(rows).scan(blocks(io.BytesIO(text.encode())), "log", "f")
    expected, given = naive(rows, text)
    got = {(h.cause, h.way, h.part, h.line, repr(h.groups)) for h in hits}
    assert got == expected
    assert len(hits) == len(got)
    assert [h.line for h in hits] == sorted(h.line for h in hits)
    assert {(f.subject, f.name): (f.value, f.line) for f in facts} == given


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of any size go through in small pieces, and their sieve is made anew for them."""
    monkeypatch.setattr("dstune.readers.scan_pass.PIECE", 3000)
    for name, value in (("FIRST", 5000), ("FEW", 1), ("BUSY", 1)):
        monkeypatch.setattr(f"dstune.readers.scan_sieve.{name}", value)


def test_every_row_of_the_recipes_finds_what_it_finds_line_by_line(learning: None) -> None:
    rows = [s for s in signatures() if s.kind in ("log", "any")]
    source = random.Random(3)
    texts = [f.read_text(errors="replace") for f in sorted(LOGS.rglob("*.log"))]
    pool = [line for text in texts for line in text.split("\n")]
    lines = []
    for line in source.sample(pool, 400):
        lines += [line, re.sub(r"\d", lambda m: str(source.randrange(10)), line, count=4), line]
    source.shuffle(lines)
    same(rows, "\n".join(lines))


@pytest.mark.parametrize("name", sorted(str(f.relative_to(LOGS)) for f in LOGS.rglob("*.log"))[::9])
@pytest.mark.usefixtures("learning")
def test_logs_whole(name: str) -> None:
    rows = [s for s in signatures() if s.kind in ("log", "any")][::5]
    same(rows, "\n".join((LOGS / name).read_text(errors="replace").split("\n")[:300]))


DIGITS = (
    r"exited with code 137\b", r'HTTP/1\.1" (?:404|5\d\d)', r"address 10\.\d+\.\d+\.\d+ refused", r"Running: [2-9] reqs", r"port (\d+) is not \1",
    r"layers = (?!0\b)\d+", r"layers = [^0]", r"level(?: 3)? reached", r"(?<!1)7 of nine", r"step \d{4}\b", r"version (?:4\.(?:3[7-9]|5\d)|5\.)",
)  # fmt: skip


def test_digits_that_an_expression_tells_apart(learning: None) -> None:
    rows = [signature("c", 0, n, "log", pattern) for n, pattern in enumerate(DIGITS)]
    source = random.Random(1)
    lines = []
    for _ in range(3000):
        d = [source.randrange(10) for _ in range(12)]
        lines.append(
            source.choice((
                f"{d[0]}{d[1]} exited with code {source.choice((137, 139, 100 + d[2]))}",
                f'INFO {d[0]}.{d[1]}:{d[2]}{d[3]} - "GET /v1 HTTP/1.1" {source.choice((200, 404, 503, 418))} OK',
                f"address {source.choice((10, 11, 20))}.{d[1]}.{d[2]}.{d[3]} refused", f"{d[3]} Running: {d[0]} reqs",
                f"port {d[0]} is not {d[1]}", f"{d[4]} layers = {d[0] * d[1] % 2}{source.choice(('', '0'))}", f"level {d[0]} reached", "level reached",
                f"{source.choice((1, 2))}7 of nine", f"{d[2]}{d[0]} of nine", f"step {source.choice((12, 123, 1234, 12345))}", f"version {d[0]}.{d[1]}{d[2]}",
            ))
        )  # fmt: skip
    for part in (lines, lines[:40], [f"\x1b[3{i % 8}m{line}\x1b[0m\r" for i, line in enumerate(lines)]):
        same(rows, "\n".join(part))


def test_windows_stay_open_for_a_template(learning: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dstune.readers.scan.BLOCK", 30_000)
    rows = [
        signature("c", 0, 0, "log", r"first thing\n.*second thing"),
        signature("c", 0, 1, "log", r"anchor \d[\s\S]{0,900}?the end"),
    ]
    lines = []
    for i in range(6000):
        lines.append(f"noise {i} " + "x" * (i % 90))
        if i % 7 == 0:
            lines.append(f"anchor {i % 10}")
        if i in (2500, 2501, 5990):
            lines += [f"first thing {i}"[:11], f"{i} then second thing"]
        if i % 1999 == 3:
            lines.append("the end")
    hits, _ = Scanner(rows).scan(blocks(io.BytesIO("\n".join(lines).encode())), "log", "f")
    expected, _ = naive(rows, "\n".join(lines))
    assert {(h.part, h.line) for h in hits} == {(part, line) for _, _, part, line, _ in expected}
    assert {part for _, _, part, _, _ in expected} == {0, 1}


def test_facts_by_keep_over_blocks(learning: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dstune.readers.scan.BLOCK", 5000)
    rows = [s for s in signatures() if not s.cause]
    source = random.Random(2)
    line = "INFO Engine 000: Avg prompt throughput: {}.{} tokens/s, Avg generation throughput: {}.{} tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {}.{}%"
    lines = [line.format(*(source.randrange(source.choice((9, 99, 999))) for _ in range(8))) for _ in range(500)]
    lines[40:40] = [f"Loading model weights took {n} GiB" for n in ("3.5", "14.25", "9")]
    same(rows, "\n".join(lines))


def test_long_lines_between_short_ones(learning: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dstune.readers.scan.BLOCK", 8000)
    rows = [signature("c", 0, 0, "log", r"needle 4\d"), signature("c", 0, 1, "log", "other thing")]
    source = random.Random(4)
    words = [
        "needle 41",
        "needle 51",
        "hay",
        "other thing",
        "straw 7",
        "very long " * 1700 + "needle 44",
        "x" * 21_000 + "needle 45",
    ]
    same(rows, "\n".join(f"{source.choice(words)} {source.choice('abcdefghij')}" for _ in range(900)))


def test_carriage_returns_and_colours_keep_line_numbers(learning: None) -> None:
    rows = [signature("c", 0, 0, "log", r"plain needle"), signature("c", 0, 1, "log", r"step \d+ plain")]
    lines = ["bar 1%\rbar 2%\rplain \x1b[31mneedle\x1b[0m\r", "step 7\rplain", "\x1b]0;title\x07", "plain\0needle"] * 9
    same(rows, "\n".join(lines) + "\n")


def test_memory_is_bounded() -> None:
    """Lines that are all different, and a hundred thousand of two letters. ru_maxrss would count the parent before the exec."""
    program = (
        "import io, random\n"
        "from dstune.readers.scan import blocks, scanner\n"
        "r = random.Random(1)\n"
        "class Stream:\n"
        "    left = 18\n"
        "    def read(self, n):\n"
        "        Stream.left -= 1\n"
        "        many = b'\\n'.join(b'%x' % r.getrandbits(8) for _ in range(300_000)) if Stream.left % 8 == 0 else b''\n"
        "        return (many or b'\\n'.join(b'request %032x came' % r.getrandbits(128) for _ in range(20_000))) + b'\\n' if Stream.left > 0 else b''\n"
        "scanner('log').scan(blocks(Stream()), 'log', 'f')\n"
        "print(int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 200


def test_facts_that_come_all_the_time(learning: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters of thousands of lines, some twice on a line, some with other digits: as if each line were read."""
    monkeypatch.setattr("dstune.readers.scan_sieve._OFTEN", 5)
    rows = [s for s in signatures() if not s.cause]
    source = random.Random(11)
    parts = ("Avg prompt throughput: {} tokens/s", "Running: {} reqs, Waiting: {} reqs", "GPU KV cache usage: {}%", "Prefix cache hit rate: {}%")  # fmt: skip
    lines = []
    for i in range(1500):
        line = ", ".join(
            p.format(*(source.choice(("0.0", "7", "1,024", "٣", "x", str(i / 10))) for _ in range(2))) for p in parts
        )
        lines.append(source.choice((line, line + " " + line, "█ " + line, "é" * 30 + line, "INFO nothing")))
    same(rows, "\n".join(lines))


def test_a_match_is_the_first_one_on_long_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where matches can begin is known of most expressions, and where one begins is the first place."""
    rows = [s for s in signatures() if s.kind in ("log", "any") and not s.multiline]
    assert sum(bool(openings(s.pattern)) for s in rows) > len(rows) * 0.8
    monkeypatch.setattr("dstune.readers.scan.FEW", 0)
    scan, source = Scanner(rows), random.Random(5)
    lines = [
        line for f in sorted(LOGS.rglob("*.log"))[::4] for line in f.read_text(errors="replace").split("\n") if line.strip()
    ]
    for _ in range(150):
        text = " ".join(source.sample(lines, 4))[:3000].ljust(400)
        for number in {row for found, _, _ in scan.sieve.find(text.encode()) for row, _ in scan.sieve.owners(found)}:
            plain, quick = scan.pattern(number).search(text), scan.search(number, text)
            assert (plain and (plain.span(), plain.groups())) == (quick and (quick.span(), quick.groups())), rows[
                number
            ].pattern


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"[Oo]dd (?:thing|word)s?", ("Odd thing", 0)), (r"\bdel [\w.]*model", ("del ", 0)), (r"(?P<a>\d)? ?code 7", ("code 7", 1)), (r"\S+ is gone", None),
        (r"(?i)word", None), (r"(?:\w*Tokenizer|word) x", None), (r"a?b?cd", ("cd", 0)), (r"(?:x{3})+word", None), (r"\d{1,3}word", ("word", 3)), (r"(?<!a)word", ("word", 0)),
    ],
)  # fmt: skip
def test_openings(pattern: str, expected: tuple[str, int] | None) -> None:
    found = openings(pattern)
    assert (expected in found) if expected else not found


@pytest.mark.parametrize("read", [1, 7, 1 << 20])
def test_sixteen_bits_in_pieces(read: int) -> None:
    class Stream(io.BytesIO):
        def read(self, n: int | None = -1, /) -> bytes:
            return super().read(min(n or 0, 2 if self.tell() == 0 else read))

    text = "显存不足 😀\n" * 20 + "needle 1\n"
    data = b"".join(block for _, block in blocks(Stream(text.encode("utf-16"))))
    assert data.decode() == text


@pytest.mark.parametrize("before", [0, 290, 560, 590, 3980, 3999, 19_990])
def test_a_secret_is_never_cut_into_sight(before: int) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz"
    for filler in ("x ", "token=secretsecretsecretsecretsecretsecret "):
        line = (filler * 9000)[:before].rstrip() + " needle " + secret + " end"
        for n in range(len(line) - 3, len(line)):
            assert "hf_abc" not in shown(line[:n]).replace("hf_<redacted>", "")
        assert "hf_abc" not in shown(line + " more" * 900)
    assert len(shown("a" * 10_000)) <= 300


@pytest.mark.parametrize(
    ("pattern", "digits", "ids"),
    [
        (r"code \d+ (?:came|went)", True, "wider"), (r"code 7", "wider", False), (r"[0-9]x[^\n]{0,9}\w", True, "wider"),
        (r"[2-9] reqs", "wider", False), (r"(?P<n>\d) of (?P=n)", False, False), (r"(?<!\d)word\b.*$", True, False),
        (r"[^0]word", False, False), (r"(?:a|b 1) word", "wider", False), (r"\bdel [\w.]*model", True, True),
        (r"(?!.*v1)model", False, False), (r"id:? is a [^\n]+ model", True, True), (r"is bad", True, False), (r"is bold", True, True),
        (r"bad idea", True, False), (r"the beef is", True, False), (r"torch_\d+_x", True, "wider"), (r"(?i:error) model", True, False),
        (r"[a-z]+ model", True, "wider"), (r"model (?>[0-9]+) reqs", True, False),
    ],
)  # fmt: skip
def test_expressions_for_all_lines_that_differ_in_digits_and_ids(pattern: str, digits: object, ids: object) -> None:
    for kind, awaited in ((False, digits), (True, ids)):
        tree = wide(pattern, kind)
        assert (tree if isinstance(tree, bool) else "wider") == awaited


@pytest.mark.parametrize("ids", [False, True])
def test_what_a_wider_expression_does_not_find_the_expression_finds_in_no_like_line(ids: bool) -> None:
    source = random.Random(3)
    chars = "0123456789abcdef" if ids else "0123456789"
    form = re.compile(r"(?<!\w)(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,})(?!\w)" if ids else r"\d", re.ASCII)
    lines = [line for file in sorted(LOGS.rglob("*.log")) for line in file.read_text(errors="replace").splitlines() if line][
        ::40
    ]
    if ids:
        lines = [
            f"{line} {source.choice(('', 'chatcmpl-', 'id='))}{source.getrandbits(128):032x}{source.choice(('', ': x'))}"
            for line in lines
        ]
    compared = 0
    for row in source.sample([r for r in signatures() if r.kind in ("log", "any") and not r.multiline], 250):
        tree, own = wide(row.pattern, ids), re.compile(row.pattern, re.MULTILINE)
        wider = own if isinstance(tree, bool) else made(tree)
        for line in lines if tree is not False else ():
            if wider.search(line) is None:
                compared += 1
                for _ in range(2):
                    other = form.sub(lambda m: re.sub("[0-9a-f]", lambda _: source.choice(chars), m[0]), line)
                    assert own.search(other) is None
    assert compared > 5000


@pytest.mark.parametrize(
    ("line", "like", "ids"),
    [
        ("rank 12 of 16", "rank 00 of 00", False),
        ("chatcmpl-0123456789abcdef0123456789abcdef: 5", "chatcmpl-" + "0" * 32 + ": 0", True),
        ("id=123e4567-e89b-12d3-a456-426614174000 deadbeef", "id=00000000-0000-0000-0000-000000000000 deadbeef", True),
        ("xdeadbeefdeadbeef and deadbeefdeadbeefx1", "xdeadbeefdeadbeef and deadbeefdeadbeefx0", False),
        ("deadbeefdeadbeef deadbeefdeadbeefg_deadbeefdeadbeef", "0" * 16 + " deadbeefdeadbeefg_deadbeefdeadbeef", True),
    ],
)
def test_lines_without_their_ids(line: str, like: str, ids: bool) -> None:
    zero = line.translate(str.maketrans("123456789", "000000000"))
    assert without_ids(line.encode(), zero.encode()) == (like.encode(), ids)


def test_lines_that_lead_to_nothing_are_skipped_only_then(learning: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand such lines, then ones with other digits, words or rows; and another pass of the same scanner."""
    monkeypatch.setattr("dstune.readers.scan_sieve._MISSES", 2)
    monkeypatch.setattr("dstune.readers.scan_sieve.BUSY", 10**6)  # the texts stay
    rows = [
        signature("c", 0, 0, "log", r"server word (?:failed|\w+ ended)"), signature("c", 0, 1, "log", r"server .*code 7\b"),
        signature("c", 0, 2, "log", r"server word \d+ [a-z]+ gone"), signature("c", 0, 3, "log", r"server w[a-z]+"),
    ]  # fmt: skip
    source = random.Random(8)
    lines = [f"server word {source.randrange(100):02d} is code {source.choice((1, 2, 7))}" for _ in range(1500)]
    lines += ["server word 17 was gone", "server word failed", "server word 17 is code 7", "server word x ended"] * 9
    scan = Scanner(rows)
    for text in ("\n".join(lines), "\n".join(source.sample(lines, len(lines)))):
        hits, _ = scan.scan([(1, text)], "log", "f")
        assert {(h.cause, h.way, h.part, h.line, repr(h.groups)) for h in hits} == naive(rows, text)[0]
