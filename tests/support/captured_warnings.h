// SPDX-License-Identifier: BSD-3-Clause
// Collects what code on this thread reports through TORCH_WARN, for tests of warnings.
#pragma once

#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/version.h>

namespace lockstep::testing {

#if TORCH_VERSION_MAJOR >= 2
namespace torch_warnings = c10::WarningUtils;
#else
namespace torch_warnings = c10::Warning;
#endif

// Collects while it lives. TORCH_WARN_ONCE warns every time, unless once is asked for.
class CapturedWarnings : private c10::WarningHandler {
 public:
  enum class Repeats { all, once };

  explicit CapturedWarnings(Repeats repeats = Repeats::all)
      : always_(repeats == Repeats::all), guard_(this) {}

  const std::vector<std::string>& messages() const { return messages_; }

 private:
#if TORCH_VERSION_MAJOR >= 2
  void process(const c10::Warning& warning) override {
    messages_.push_back(warning.msg());
  }
#else
  void process(const c10::SourceLocation&, const std::string& message, bool) override {
    messages_.push_back(message);
  }
#endif

  std::vector<std::string> messages_;
  torch_warnings::WarnAlways always_;
  torch_warnings::WarningHandlerGuard guard_;
};

}  // namespace lockstep::testing
