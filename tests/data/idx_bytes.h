// SPDX-License-Identifier: BSD-3-Clause
// Makes IDX files, and breaks them, for tests.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <zlib.h>

namespace lockstep::testing {

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::string idx_header(const std::vector<std::uint32_t>& dimensions, char type = 8) {
  std::string header{'\0', '\0', type, static_cast<char>(dimensions.size())};
  for (const auto dimension : dimensions) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      header += static_cast<char>((dimension >> shift) & 0xff);
    }
  }
  return header;
}

// An array whose elements are drawn from a seed.
inline std::string idx_bytes(const std::vector<std::uint32_t>& dimensions, unsigned seed = 0,
                             int values = 256) {
  std::size_t count = 1;
  for (const auto dimension : dimensions) count *= dimension;
  std::mt19937 random(seed);
  std::string bytes = idx_header(dimensions);
  for (std::size_t i = 0; i < count; ++i) {
    bytes += static_cast<char>(random() % static_cast<unsigned>(values));
  }
  return bytes;
}

inline std::string gzip(const std::string& bytes) {
  z_stream z{};
  if (deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::runtime_error("deflateInit2");
  }
  std::string result(deflateBound(&z, bytes.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(result.data());
  z.avail_out = static_cast<uInt>(result.size());
  if (deflate(&z, Z_FINISH) != Z_STREAM_END) throw std::runtime_error("deflate");
  result.resize(z.total_out);
  deflateEnd(&z);
  return result;
}

}  // namespace lockstep::testing
