// SPDX-License-Identifier: BSD-3-Clause
// Keeps the warnings of probes to itself: two ranks on one core are fine for a probe.
#pragma once

#include <string>

#include "lockstep/libtorch_compat.h"

namespace lockstep {

// Discards this thread's TORCH_WARN while it lives.
class WithoutWarnings : private libtorch::WarningReceiver {
 public:
  WithoutWarnings() : guard_(this) {}

 private:
  void receive(const std::string&) override {}

  libtorch::warnings::WarningHandlerGuard guard_;
};

}  // namespace lockstep
