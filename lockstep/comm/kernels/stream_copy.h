// SPDX-License-Identifier: BSD-3-Clause
// A copy that bypasses the caches, for data that this core will not read soon.
#pragma once

#include <cstddef>

namespace lockstep {

// Copies `bytes` bytes past the caches where the processor can: the target is not read only to be
// overwritten, and the caches keep what they hold. The memory must not overlap. Any alignment
// works, but a partial cache line at the beginning or end is slower.
void stream_copy(void* to, const void* from, std::size_t bytes);

// Makes the streamed copies visible to other threads and processes before anything that this thread
// writes from here on. A release alone does not.
void finish_streaming();

}  // namespace lockstep
