// SPDX-License-Identifier: BSD-3-Clause
// Collects what code on this thread reports through TORCH_WARN, for tests of warnings.
#pragma once

#include <string>
#include <vector>

#include "lockstep/libtorch_compat.h"

namespace lockstep::testing {

// Collects while it lives. TORCH_WARN_ONCE warns every time, unless once is asked for.
class CapturedWarnings : private libtorch::WarningReceiver {
 public:
  enum class Repeats { all, once };

  explicit CapturedWarnings(Repeats repeats = Repeats::all)
      : always_(repeats == Repeats::all), guard_(this) {}

  const std::vector<std::string>& messages() const { return messages_; }

 private:
  void receive(const std::string& message) override { messages_.push_back(message); }

  std::vector<std::string> messages_;
  libtorch::warnings::WarnAlways always_;
  libtorch::warnings::WarningHandlerGuard guard_;
};

}  // namespace lockstep::testing
