// SPDX-License-Identifier: BSD-3-Clause
// Parses the header and checks it against the file's size and the available memory. Compressed
// files are inflated in pieces, so that the header is checked before memory is allocated for the
// rest.
#include "lockstep/data/idx_file.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/memory.h"

namespace lockstep {
namespace {

using ReadNext = std::function<void(std::span<std::byte> output, const char* what)>;

constexpr std::byte kUnsignedBytes{0x08};
// Colour images have four; a header that says 200 is damaged.
constexpr int kMaxDimensions = 8;

// Parses a header; `read` fetches the file's next bytes.
std::vector<std::int64_t> read_dimensions(const ReadNext& read, const std::string& name) {
  std::array<std::byte, 4> magic{};
  read(magic, "its magic number");
  if (magic[0] != std::byte{0} || magic[1] != std::byte{0} || magic[2] != kUnsignedBytes) {
    throw UsageError(fmt::format(
        "{}: not an IDX file of unsigned bytes: it begins with {:02x} {:02x} {:02x} {:02x}, "
        "instead of 00 00 08 and the number of dimensions",
        name, std::to_integer<int>(magic[0]), std::to_integer<int>(magic[1]),
        std::to_integer<int>(magic[2]), std::to_integer<int>(magic[3])));
  }
  const int count = std::to_integer<int>(magic[3]);
  if (count < 1 || count > kMaxDimensions) {
    throw UsageError(fmt::format("{}: header declares {} dimensions; 1 to {} are supported", name,
                                 count, kMaxDimensions));
  }
  std::vector<std::int64_t> dimensions;
  for (int i = 0; i < count; ++i) {
    std::array<std::byte, 4> field{};
    read(field, "its dimensions");
    std::int64_t value = 0;
    for (const std::byte byte : field) value = value * 256 + std::to_integer<int>(byte);
    dimensions.push_back(value);
  }
  return dimensions;
}

// The number of elements, checked against the file's size before anything is allocated. A zero
// dimension must not hide an overflow of the others.
std::size_t count_elements(const std::vector<std::int64_t>& dimensions, std::size_t max_left,
                           const std::string& name) {
  std::int64_t product = 1;
  bool empty = false;
  bool overflow = false;
  for (const std::int64_t dimension : dimensions) {
    empty |= dimension == 0;
    overflow |= __builtin_mul_overflow(product, std::max<std::int64_t>(dimension, 1), &product);
  }
  const std::size_t count = empty ? 0 : static_cast<std::size_t>(product);
  if (overflow || count > max_left) {
    throw UsageError(fmt::format(
        "{}: its header announces {} elements, more than the file can hold ({} bytes); copy or "
        "download the file again",
        name, fmt::join(dimensions, " x "), max_left));
  }
  return count;
}

void require_memory(std::size_t bytes, const std::string& name) {
  const std::int64_t available = available_memory();
  if (bytes <= static_cast<std::size_t>(available)) return;
  throw UsageError(fmt::format(
      "{}: its header announces {:.1f} MiB, more memory than the {:.1f} MiB that are available",
      name, static_cast<double>(bytes) / 0x1p20, static_cast<double>(available) / 0x1p20));
}

bool is_gzip(const StoredBytes& bytes) {
  std::array<std::byte, 2> head{};
  if (bytes.size < head.size()) return false;
  bytes.read(0, head);
  return head[0] == std::byte{0x1f} && head[1] == std::byte{0x8b};
}

}  // namespace

// Inflates one gzip member, which ends where the bytes end; fetches them as needed. Errors are
// UsageErrors that begin with the name: damaged data, a wrong checksum, data that ends early or
// continues.
class GzipReader {
 public:
  GzipReader(StoredBytes bytes, std::string name)
      : bytes_(std::move(bytes)), name_(std::move(name)) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    if (inflateInit2(&zlib_, kGzipOnly) != Z_OK) {
      throw BackendError(fmt::format("{}: zlib cannot start (out of memory?)", name_));
    }
  }
  ~GzipReader() { inflateEnd(&zlib_); }
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  // Fills output as far as data remains and returns the number of bytes.
  std::size_t read(std::span<std::byte> output) {
    // zlib counts in unsigned int.
    constexpr std::size_t kMaxPiece = std::numeric_limits<uInt>::max();
    std::size_t written = 0;
    while (written < output.size() && !ended_) {
      if (input_.empty()) refill();
      const std::size_t room = std::min(output.size() - written, kMaxPiece);
      // zlib reads from it only, but declares a pointer to const only if all files ask for that.
      zlib_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(input_.data()));
      zlib_.avail_in = static_cast<uInt>(input_.size());
      zlib_.next_out = reinterpret_cast<Bytef*>(output.data() + written);
      zlib_.avail_out = static_cast<uInt>(room);
      const int status = inflate(&zlib_, Z_NO_FLUSH);
      input_ = input_.last(zlib_.avail_in);
      written += room - zlib_.avail_out;
      ended_ = status == Z_STREAM_END;
      if (!ended_) require_progress(status);
    }
    return written;
  }

  // Checks that the data has been read to its end, and its checksum.
  void finish() {
    std::byte beyond{};
    if (read({&beyond, 1}) > 0) {
      throw UsageError(fmt::format("{}: it holds more data than its header says", name_));
    }
    const std::size_t left = bytes_.size - fetched_ + input_.size();
    if (left > 0) {
      throw UsageError(fmt::format(
          "{}: {} bytes follow the end of the gzip data; compress the file as one member", name_,
          left));
    }
  }

  // An upper bound of the uncompressed size: deflate packs at most 1032 bytes into one.
  std::size_t max_size() const { return bytes_.size * 1032; }

 private:
  void refill() {
    const std::size_t count = std::min(bytes_.size - fetched_, buffer_.size());
    bytes_.read(fetched_, std::span(buffer_).first(count));
    input_ = std::span(buffer_).first(count);
    fetched_ += count;
  }

  // Checks what inflate() returned before the end of the data.
  void require_progress(int status) const {
    if (status != Z_OK && status != Z_BUF_ERROR) {
      throw UsageError(
          fmt::format("{}: the gzip data is damaged ({}); copy or download the file again", name_,
                      zlib_.msg != nullptr ? zlib_.msg : "unknown error"));
    }
    if (input_.empty() && fetched_ == bytes_.size && zlib_.avail_out > 0) {
      throw UsageError(fmt::format(
          "{}: the gzip data ends early, after {} bytes; copy or download the file again", name_,
          bytes_.size));
    }
  }

  StoredBytes bytes_;
  std::string name_;
  z_stream zlib_{};
  std::array<std::byte, 65536> buffer_;
  std::span<const std::byte> input_;  // the compressed bytes in the buffer
  std::size_t fetched_ = 0;           // compressed bytes, in total
  bool ended_ = false;
};

// Reads the file's content in order, whether raw or gzip.
class IdxFile::Content {
 public:
  Content(StoredBytes bytes, const std::string& name) : raw_(std::move(bytes)), name_(name) {
    if (is_gzip(raw_)) gzip_ = std::make_unique<GzipReader>(raw_, name);
  }

  void read(std::span<std::byte> output, const char* what) {
    std::size_t got = 0;
    if (gzip_) {
      got = gzip_->read(output);
    } else {
      got = std::min(output.size(), left());
      raw_.read(offset_, output.first(got));
      offset_ += got;
    }
    if (got < output.size()) {
      throw UsageError(
          fmt::format("{}: it ends within {}; copy or download the file again", name_, what));
    }
  }

  // An upper bound of the bytes that can still be read.
  std::size_t max_left() const { return gzip_ ? gzip_->max_size() : left(); }

  void finish() {
    if (gzip_) return gzip_->finish();
    if (left() > 0) {
      throw UsageError(fmt::format(
          "{}: {} bytes follow the end of the data that its header announces", name_, left()));
    }
  }

 private:
  std::size_t left() const { return raw_.size - offset_; }

  StoredBytes raw_;
  std::size_t offset_ = 0;
  const std::string& name_;
  std::unique_ptr<GzipReader> gzip_;  // null if the file is raw
};

IdxFile::IdxFile(const std::filesystem::path& path) : IdxFile(bytes_in_file(path), path.string()) {}

IdxFile::IdxFile(std::span<const std::byte> bytes, std::string name)
    : IdxFile(bytes_in_memory(bytes), std::move(name)) {}

IdxFile::IdxFile(StoredBytes bytes, std::string name)
    : name_(std::move(name)), content_(std::make_unique<Content>(std::move(bytes), name_)) {
  const auto read = [this](std::span<std::byte> output, const char* what) {
    content_->read(output, what);
  };
  dimensions_ = read_dimensions(read, name_);
  elements_ = count_elements(dimensions_, content_->max_left(), name_);
}

IdxFile::~IdxFile() = default;

at::Tensor IdxFile::read() {
  require_memory(elements_, name_);
  at::Tensor result = at::empty(dimensions_, at::kByte);
  content_->read({reinterpret_cast<std::byte*>(result.data_ptr<std::uint8_t>()), elements_},
                 "its elements");
  content_->finish();
  return result;
}

}  // namespace lockstep
