// SPDX-License-Identifier: BSD-3-Clause
// Parses the header and checks it against the file's size and the available memory.
#include "lockstep/data/idx_file.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/data/gzip.h"

namespace lockstep {
namespace {

using ReadOn = std::function<void(std::span<std::byte> output, const char* what)>;

constexpr std::byte kUnsignedBytes{0x08};
// Colour images have four; a header that says 200 is damaged.
constexpr int kMaxDimensions = 8;

// Parses a header; `read` fetches the file's next bytes.
std::vector<std::int64_t> read_dimensions(const ReadOn& read, const std::string& name) {
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

}  // namespace

// Reads the file's content in order, whether raw or gzip.
class IdxFile::Content {
 public:
  Content(StoredBytes bytes, const std::string& name) : raw_(std::move(bytes)), name_(name) {
    if (is_gzip(raw_)) gzip_.emplace(raw_, name);
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
  std::optional<GzipReader> gzip_;
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
