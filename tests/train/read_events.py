# SPDX-License-Identifier: BSD-3-Clause
"""Prints what TensorBoard reads from a folder of event files, as JSON."""
import json
import math
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
result = {"scalars": {}, "histograms": {}, "texts": {}}
for tag in tags["scalars"]:
    result["scalars"][tag] = [
        [e.step, None if math.isnan(e.value) else e.value, e.wall_time] for e in events.Scalars(tag)
    ]
for tag in tags["histograms"]:
    result["histograms"][tag] = [
        {"step": e.step, **vars(e.histogram_value)} for e in events.Histograms(tag)
    ]
for tag in tags["tensors"]:
    plugin = events.SummaryMetadata(tag).plugin_data.plugin_name
    assert plugin == "text", plugin
    result["texts"][tag] = [
        [e.step, e.tensor_proto.string_val[0].decode()] for e in events.Tensors(tag)
    ]
print(json.dumps(result))
