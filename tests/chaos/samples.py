# SPDX-License-Identifier: BSD-3-Clause
"""Whether the steps that count have consumed each sample once an epoch. elastic_program appends to a
file what goes into each loss: epoch, step, generation and the samples."""

SAMPLES = 50  # of elastic_program


def complaints(records, epochs):
    """Of the files of jobs that followed each other, the last of which has ended the training. A step
    that was begun again does not count: its last attempt does, in the last generation of the last
    job that made it."""
    attempts = {}
    for job, record in enumerate(records):
        for line in record.read_text().splitlines() if record.exists() else ():
            epoch, step, generation, *samples = map(int, line.split())
            of_step = attempts.setdefault((epoch, step), {})
            of_step.setdefault((job, generation), []).extend(samples)
    consumed = {epoch: [] for epoch in range(epochs)}
    for (epoch, _), of_step in attempts.items():
        consumed.setdefault(epoch, []).extend(of_step[max(of_step)])
    return [f"epoch {epoch} has consumed the samples {sorted(samples)}, not each once"
            for epoch, samples in consumed.items() if sorted(samples) != list(range(SAMPLES))]
