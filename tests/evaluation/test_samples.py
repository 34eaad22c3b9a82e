"""The file of samples: whole lines survive, cut and damaged ones go."""

import json

from opasd.evaluation.samples import Sample, SampleFile


def test_samples_survive_damage(tmp_path):
    path = tmp_path / "samples.jsonl"
    samples = [Sample("t", "b", "p", n, n, (1, 2), "\u2028é\n", "stop", "correct", "1", {}) for n in range(3)]
    SampleFile(path).append(samples)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    damage = ({"verdict": "maybe"}, {"text": 17}, {"answer": [1]}, {"finish_reason": None}, {"ids": ["1"]}, {"cuts": 1})
    other = b"".join(json.dumps(json.loads(lines[0]) | change).encode() + b"\n" for change in damage)
    path.write_bytes(b"garbage\n" + other + lines[0] + lines[1] + lines[0] + b"\xff\x00" + lines[2][:20])
    file = SampleFile(path)
    assert [sample.sample for sample in file] == [0, 1]
    assert path.read_bytes() == lines[0] + lines[1]
    file.append(samples)
    assert path.read_bytes() == b"".join(lines)
    assert [sample.text for sample in file] == ["\u2028é\n"] * 3
