// SPDX-License-Identifier: BSD-3-Clause
// A line that a rank printed, as the launcher passes it on.
#pragma once

#include <functional>
#include <string_view>

namespace lockstep {

enum class OutputStream { out, err };

struct OutputLine {
  int rank = 0;
  OutputStream stream = OutputStream::out;
  // Without its line ending; valid during the call.
  std::string_view text;
};

using LineSink = std::function<void(const OutputLine&)>;

}  // namespace lockstep
