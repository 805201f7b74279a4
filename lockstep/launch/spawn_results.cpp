// SPDX-License-Identifier: BSD-3-Clause
// Joins the bytes of several results, and refuses bytes that are not a result.
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/packed_strings.h"
#include "lockstep/launch/spawn.h"

namespace lockstep::spawn_detail {

std::string join(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) pack(joined, text);
  return joined;
}

std::vector<std::string> split(std::string_view joined) {
  std::vector<std::string> texts;
  for (Unpacking packed(joined); !packed.done();) texts.push_back(packed.text());
  return texts;
}

void refuse_bytes(std::size_t bytes, std::string_view expected) {
  throw BackendError(
      fmt::format("spawn: a rank's result has {} bytes, and its type needs {}; was the program "
                  "replaced while it ran?",
                  bytes, expected));
}

}  // namespace lockstep::spawn_detail
