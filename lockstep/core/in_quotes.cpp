// SPDX-License-Identifier: BSD-3-Clause
// Decodes UTF-8, escapes and cuts.
#include "lockstep/core/in_quotes.h"

#include <cstdint>

#include <fmt/format.h>

namespace lockstep {
namespace {

// The first character of a text, and the number of its bytes. If the text does not begin with a
// UTF-8 character, `valid` is false and `bytes` is 1.
struct QuotedCharacter {
  std::uint32_t code;
  std::size_t bytes;
  bool valid;
};

QuotedCharacter first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1, true};
  const QuotedCharacter wrong{lead, 1, false};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return wrong;
  std::uint32_t code = lead & (0xffu >> (bytes + 1));
  for (const char c : text.substr(1, bytes - 1)) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) != 0x80) return wrong;
    code = code << 6 | (byte & 0x3fu);
  }
  const std::uint32_t least = bytes == 4 ? 0x10000 : bytes == 3 ? 0x800 : 0x80;
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < least || code > 0x10ffff || surrogate) return wrong;
  return {code, bytes, true};
}

// Terminals execute control characters, including C1, such as U+009B; others change the direction
// or the line of the text around them, or cannot be seen.
bool is_control(std::uint32_t code) {
  const auto within = [code](std::uint32_t first, std::uint32_t last) {
    return code >= first && code <= last;
  };
  return code < 0x20 || within(0x7f, 0x9f) || code == 0x61c || within(0x200b, 0x200f) ||
         within(0x2028, 0x202e) || within(0x2060, 0x206f) || code == 0xfeff;
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMost = 100;
  std::string result = "\"";
  std::size_t done = 0;
  while (done < text.size()) {
    const auto character = first_character(text.substr(done));
    if (done + character.bytes > kMost) break;
    const auto bytes = text.substr(done, character.bytes);
    if (!character.valid || is_control(character.code) || bytes == "\"" || bytes == "\\") {
      for (const char c : bytes) {
        result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    } else {
      result += bytes;
    }
    done += character.bytes;
  }
  return result + (done < text.size() ? fmt::format("...\" ({} bytes)", text.size()) : "\"");
}

}  // namespace lockstep
