// SPDX-License-Identifier: BSD-3-Clause
// Makes safetensors files byte by byte, good ones and broken ones.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::testing {

// A file of this header and data; `length` replaces the header's length.
inline std::string safetensors_bytes(const std::string& header, const std::string& data,
                                     std::uint64_t length) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>((length >> shift) & 0xff);
  return bytes + header + data;
}

inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  return safetensors_bytes(header, data, header.size());
}

}  // namespace lockstep::testing
