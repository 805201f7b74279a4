// SPDX-License-Identifier: BSD-3-Clause
// A copy that bypasses the caches, for data that this core will not read soon.
#pragma once

#include <cstddef>

namespace lockstep {

// Copies `bytes` bytes, bypassing the caches where the processor can: it does not read the target's
// cache lines before it overwrites them, and evicts nothing. The memory must not overlap. Any
// alignment works, but a partial cache line at the beginning or end is slower.
void stream_copy(void* to, const void* from, std::size_t bytes);

// Makes the streamed copies visible to other threads and processes before anything that this thread
// writes from here on. A release alone does not.
void finish_streaming();

}  // namespace lockstep
