// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/data/gzip.h"

#include <fmt/format.h>
#define ZLIB_CONST  // makes zlib's input pointer one to const
#include <algorithm>
#include <limits>

#include <zlib.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// zlib counts in unsigned int.
constexpr std::size_t max_piece = std::numeric_limits<uInt>::max();
constexpr int gzip_only = 16 + MAX_WBITS;

}  // namespace

struct GzipReader::Stream {
  z_stream z{};
  std::span<const std::byte> input;
  bool ended = false;
};

bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

GzipReader::GzipReader(std::span<const std::byte> bytes, std::string name)
    : compressed_size_(bytes.size()), name_(std::move(name)), stream_(std::make_unique<Stream>()) {
  stream_->input = bytes;
  if (inflateInit2(&stream_->z, gzip_only) != Z_OK) {
    throw BackendError(fmt::format("{}: zlib cannot start (out of memory?)", name_));
  }
}

GzipReader::~GzipReader() {
  inflateEnd(&stream_->z);
}

std::size_t GzipReader::read(std::span<std::byte> output) {
  auto& [z, input, ended] = *stream_;
  std::size_t written = 0;
  while (written < output.size() && !ended) {
    const std::size_t room = std::min(output.size() - written, max_piece);
    const std::size_t given = std::min(input.size(), max_piece);
    z.next_in = reinterpret_cast<const Bytef*>(input.data());
    z.avail_in = static_cast<uInt>(given);
    z.next_out = reinterpret_cast<Bytef*>(output.data() + written);
    z.avail_out = static_cast<uInt>(room);
    const int status = inflate(&z, Z_NO_FLUSH);
    input = input.subspan(given - z.avail_in);
    written += room - z.avail_out;
    if (status == Z_STREAM_END) {
      ended = true;
    } else if (status == Z_BUF_ERROR || (status == Z_OK && input.empty() && z.avail_out > 0)) {
      throw UsageError(fmt::format(
          "{}: the gzip data ends early, after {} bytes; copy or download the file again", name_,
          compressed_size_));
    } else if (status != Z_OK) {
      throw UsageError(
          fmt::format("{}: the gzip data is damaged ({}); copy or download the file again", name_,
                      z.msg != nullptr ? z.msg : "unknown error"));
    }
  }
  return written;
}

void GzipReader::finish() {
  std::byte beyond{};
  if (read({&beyond, 1}) > 0) {
    throw UsageError(fmt::format("{}: it holds more data than its header says", name_));
  }
  if (!stream_->input.empty()) {
    throw UsageError(
        fmt::format("{}: {} bytes follow the end of the gzip data; compress the file as one member",
                    name_, stream_->input.size()));
  }
}

std::size_t GzipReader::max_size() const {
  return compressed_size_ * 1032;
}

}  // namespace lockstep
