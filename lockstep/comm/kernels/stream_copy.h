// SPDX-License-Identifier: BSD-3-Clause
// A copy for what this core will not read soon.
#pragma once

#include <cstddef>

namespace lockstep {

// Copies `bytes` bytes, which must not overlap, past the caches where the processor can: memory is
// not read only to be overwritten, and the caches keep what they hold. Where it lies within a cache
// line does not matter, but a line that it begins or ends in is slower.
void stream_copy(void* to, const void* from, std::size_t bytes);

// What this thread writes from here on shows other threads and processes its streamed copies too.
// Without it not even a release does.
void finish_streaming();

}  // namespace lockstep
