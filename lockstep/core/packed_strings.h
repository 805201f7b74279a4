// SPDX-License-Identifier: BSD-3-Clause
// Packs several strings into one, each preceded by its length (8 bytes) in this machine's byte
// order.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep {

inline void pack(std::string& packed, std::string_view text) {
  const auto length = static_cast<std::uint64_t>(text.size());
  packed.append(reinterpret_cast<const char*>(&length), sizeof length);
  packed.append(text);
}

inline void pack(std::string& packed, int number) {
  pack(packed, std::to_string(number));
}

// Reads them back. BackendError if the text ends too early.
class Unpacking {
 public:
  explicit Unpacking(std::string_view packed) : rest_(packed) {}

  bool done() const { return rest_.empty(); }

  std::string text() {
    std::uint64_t length = 0;
    std::memcpy(&length, take(sizeof length).data(), sizeof length);
    return std::string(take(length));
  }

  int number() { return std::stoi(text()); }

 private:
  std::string_view take(std::uint64_t length) {
    if (length > rest_.size()) throw BackendError("packed strings end too early");
    const std::string_view taken = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return taken;
  }

  std::string_view rest_;
};

}  // namespace lockstep
