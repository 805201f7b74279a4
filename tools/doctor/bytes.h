// SPDX-License-Identifier: BSD-3-Clause
// Formats memory sizes for people.
#pragma once

#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace lockstep {

inline std::string in_bytes(std::int64_t bytes) {
  constexpr double kMebibyte = 1 << 20;
  const double size = static_cast<double>(bytes) / kMebibyte;
  return size < 1024 ? fmt::format("{:.0f} MiB", size) : fmt::format("{:.1f} GiB", size / 1024);
}

}  // namespace lockstep
