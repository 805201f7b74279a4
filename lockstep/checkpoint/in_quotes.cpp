// SPDX-License-Identifier: BSD-3-Clause
// Escapes and cuts.
#include "lockstep/checkpoint/in_quotes.h"

#include <fmt/format.h>

namespace lockstep {

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMost = 100;
  std::string result = "\"";
  for (const char c : text.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '"' || c == '\\') {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result + (text.size() > kMost ? fmt::format("...\" ({} bytes)", text.size()) : "\"");
}

}  // namespace lockstep
