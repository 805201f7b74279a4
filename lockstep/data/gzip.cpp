// SPDX-License-Identifier: BSD-3-Clause
// Inflates one gzip member with zlib, from a 64 KiB buffer.
#include "lockstep/data/gzip.h"

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>
#include <zlib.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// zlib counts in unsigned int.
constexpr std::size_t kMaxPiece = std::numeric_limits<uInt>::max();
constexpr int kGzipOnly = 16 + MAX_WBITS;

}  // namespace

struct GzipReader::Stream {
  z_stream z{};
  // The compressed bytes in the buffer, and how many have been fetched in total.
  std::array<std::byte, 65536> buffer;
  std::span<const std::byte> input;
  std::size_t taken = 0;
  bool ended = false;
};

bool is_gzip(const StoredBytes& bytes) {
  std::array<std::byte, 2> head{};
  if (bytes.size < head.size()) return false;
  bytes.read(0, head);
  return head[0] == std::byte{0x1f} && head[1] == std::byte{0x8b};
}

GzipReader::GzipReader(StoredBytes bytes, std::string name)
    : bytes_(std::move(bytes)), name_(std::move(name)), stream_(std::make_unique<Stream>()) {
  if (inflateInit2(&stream_->z, kGzipOnly) != Z_OK) {
    throw BackendError(fmt::format("{}: zlib cannot start (out of memory?)", name_));
  }
}

GzipReader::~GzipReader() {
  inflateEnd(&stream_->z);
}

void GzipReader::refill() {
  const std::size_t count = std::min(bytes_.size - stream_->taken, stream_->buffer.size());
  bytes_.read(stream_->taken, std::span(stream_->buffer).first(count));
  stream_->input = std::span(stream_->buffer).first(count);
  stream_->taken += count;
}

std::size_t GzipReader::read(std::span<std::byte> output) {
  auto& [z, buffer, input, taken, ended] = *stream_;
  std::size_t written = 0;
  while (written < output.size() && !ended) {
    if (input.empty()) refill();
    const std::size_t room = std::min(output.size() - written, kMaxPiece);
    // zlib reads from it only, but declares a pointer to const only if all files ask for that.
    z.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(input.data()));
    z.avail_in = static_cast<uInt>(input.size());
    z.next_out = reinterpret_cast<Bytef*>(output.data() + written);
    z.avail_out = static_cast<uInt>(room);
    const int status = inflate(&z, Z_NO_FLUSH);
    input = input.last(z.avail_in);
    written += room - z.avail_out;
    const bool all_taken = input.empty() && taken == bytes_.size;
    if (status == Z_STREAM_END) {
      ended = true;
    } else if ((status == Z_OK || status == Z_BUF_ERROR) && all_taken && z.avail_out > 0) {
      throw UsageError(fmt::format(
          "{}: the gzip data ends early, after {} bytes; copy or download the file again", name_,
          bytes_.size));
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
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
  const std::size_t left = bytes_.size - stream_->taken + stream_->input.size();
  if (left > 0) {
    throw UsageError(
        fmt::format("{}: {} bytes follow the end of the gzip data; compress the file as one member",
                    name_, left));
  }
}

std::size_t GzipReader::max_size() const {
  return bytes_.size * 1032;
}

}  // namespace lockstep
