// SPDX-License-Identifier: BSD-3-Clause
// The state of the thread that calls a forward, for the threads that run parts of it and for a
// later repetition: grad mode, inference mode, autocast.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>

#include "lockstep/libtorch_compat.h"

namespace lockstep {

// The constructor reads the state of the calling thread.
struct ForwardState {
  at::ThreadLocalState state = {};
  libtorch::AutocastTypes autocast = libtorch::autocast_types();
};

// While it lives, this thread has that state, but no cache of the weights that autocast converts:
// the guard that clears the cache lives on another thread, or has ended.
class ForwardStateGuard {
 public:
  explicit ForwardStateGuard(const ForwardState& state)
      : state_(state.state),
        types_(libtorch::autocast_types()),
        cached_(at::autocast::is_autocast_cache_enabled()) {
    libtorch::set_autocast_types(state.autocast);
    at::autocast::set_autocast_cache_enabled(false);
  }
  ForwardStateGuard(const ForwardStateGuard&) = delete;
  ForwardStateGuard& operator=(const ForwardStateGuard&) = delete;
  ~ForwardStateGuard() {
    libtorch::set_autocast_types(types_);
    at::autocast::set_autocast_cache_enabled(cached_);
  }

 private:
  at::ThreadLocalStateGuard state_;
  libtorch::AutocastTypes types_;
  bool cached_;
};

}  // namespace lockstep
