// SPDX-License-Identifier: BSD-3-Clause
// A text that a net learns within a few steps.
#pragma once

#include <cstddef>
#include <string>

#include "support/temporary_folder.h"

namespace lockstep::testing {

// The same as kTextWindow: a test that links no libtorch cannot include its header.
constexpr std::size_t kBytesOfWindow = 64;

// Writes the file "text": a repeated sentence, cut so that it gives `windows` windows and a tenth
// of that for the test.
inline void write_tiny_text(const TemporaryFolder& folder, std::size_t windows) {
  const std::size_t bytes = (windows + (windows - 1) / 9) * kBytesOfWindow + 1;
  std::string text;
  while (text.size() < bytes) text += "A rank waits for its peers. ";
  folder.write("text", text.substr(0, bytes));
}

}  // namespace lockstep::testing
