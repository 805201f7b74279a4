// SPDX-License-Identifier: BSD-3-Clause
// A text that a net learns within a few steps.
#pragma once

#include <string>

#include "support/temporary_folder.h"

#include "tools/recipes/text_data.h"

namespace lockstep::testing {

// The file "text": one sentence, again and again, cut so that it gives this many windows and a
// tenth of as many tests.
inline void write_tiny_text(const TemporaryFolder& folder, std::int64_t windows) {
  const auto bytes = static_cast<std::size_t>((windows + (windows - 1) / 9) * kTextWindow + 1);
  std::string text;
  while (text.size() < bytes) text += "A rank waits for its peers. ";
  folder.write("text", text.substr(0, bytes));
}

}  // namespace lockstep::testing
