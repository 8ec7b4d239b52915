"""Commands are started again and again, counted, and what was stopped goes on."""

import json

from benchmarks import starts


def test_starts_are_counted_and_go_on_where_they_were(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(starts, "COMMANDS", {"platform": [], "json.nothing": []})
    results = tmp_path / "starts.jsonl"
    flags = [f"--out={tmp_path / 'out'}", f"--results={results}", "--cores=1"]
    monkeypatch.setattr(starts, "start", lambda words, log, cores, patience: (words[0] != "platform", 1.0))
    assert starts.main(["platform", "--times=1", *flags]) == 0
    monkeypatch.undo()
    monkeypatch.setattr(starts, "COMMANDS", {"platform": [], "json.nothing": []})
    assert starts.main(["platform", "json.nothing", "--times=2", *flags]) == 1
    result = [json.loads(line) for line in results.read_text().splitlines()]
    assert sorted((item["command"], item["status"]) for item in result) == [
        ("json.nothing", 1), ("json.nothing", 1), ("platform", 0), ("platform", 0),
    ]  # fmt: skip
    out = capsys.readouterr().out
    assert "| `platform` | 2 / 2 |" in out
    assert "| `json.nothing` | 0 / 2 |" in out
    assert "No module named" in (tmp_path / "out" / "json.nothing-0.log").read_text()
    assert starts.main(["platform", "--times=2", *flags]) == 0
    assert len(results.read_text().splitlines()) == 4
