// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/data/idx_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <optional>
#include <vector>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/cpu.h"
#include "lockstep/core/error.h"
#include "lockstep/data/gzip.h"

namespace lockstep {
namespace {

constexpr std::byte unsigned_bytes{0x08};
// Images in colour have four; a header that says 200 is not one.
constexpr int max_dimensions = 8;

// Gives out the file's content in order, whether it is raw or gzip.
class Content {
 public:
  Content(std::span<const std::byte> bytes, const std::string& name) : raw_(bytes), name_(name) {
    if (is_gzip(bytes)) gzip_.emplace(bytes, name);
  }

  void read(std::span<std::byte> output, const char* what) {
    std::size_t got = 0;
    if (gzip_) {
      got = gzip_->read(output);
    } else {
      got = std::min(output.size(), raw_.size());
      if (got > 0) std::memcpy(output.data(), raw_.data(), got);
      raw_ = raw_.subspan(got);
    }
    if (got < output.size()) {
      throw UsageError(
          fmt::format("{}: it ends within {}; copy or download the file again", name_, what));
    }
  }

  // The most that can still come.
  std::size_t max_left() const { return gzip_ ? gzip_->max_size() : raw_.size(); }

  void finish() {
    if (gzip_) return gzip_->finish();
    if (!raw_.empty()) {
      throw UsageError(fmt::format(
          "{}: {} bytes follow the end of the data that its header announces", name_, raw_.size()));
    }
  }

 private:
  std::span<const std::byte> raw_;
  const std::string& name_;
  std::optional<GzipReader> gzip_;
};

std::vector<std::int64_t> read_dimensions(Content& content, const std::string& name) {
  std::array<std::byte, 4> magic{};
  content.read(magic, "its magic number");
  if (magic[0] != std::byte{0} || magic[1] != std::byte{0} || magic[2] != unsigned_bytes) {
    throw UsageError(fmt::format(
        "{}: not an IDX file of unsigned bytes: it begins with {:02x} {:02x} {:02x} {:02x}, such a "
        "file with 00 00 08 and its number of dimensions",
        name, std::to_integer<int>(magic[0]), std::to_integer<int>(magic[1]),
        std::to_integer<int>(magic[2]), std::to_integer<int>(magic[3])));
  }
  const int count = std::to_integer<int>(magic[3]);
  if (count < 1 || count > max_dimensions) {
    throw UsageError(fmt::format("{}: its header says {} dimensions; 1 to {} are read", name, count,
                                 max_dimensions));
  }
  std::vector<std::int64_t> dimensions;
  for (int i = 0; i < count; ++i) {
    std::array<std::byte, 4> field{};
    content.read(field, "its dimensions");
    std::int64_t value = 0;
    for (const std::byte byte : field) value = value * 256 + std::to_integer<int>(byte);
    dimensions.push_back(value);
  }
  return dimensions;
}

// The number of elements, checked against what the file can hold before anything is made of that
// size. A dimension of zero does not hide that the others overflow.
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

}  // namespace

at::Tensor parse_idx(std::span<const std::byte> bytes, const std::string& name) {
  Content content(bytes, name);
  const auto dimensions = read_dimensions(content, name);
  const std::size_t count = count_elements(dimensions, content.max_left(), name);
  at::Tensor result = at::empty(dimensions, at::kByte);
  content.read({reinterpret_cast<std::byte*>(result.data_ptr<std::uint8_t>()), count},
               "its elements");
  content.finish();
  return result;
}

at::Tensor read_idx_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    const bool other = std::filesystem::exists(path, error);
    throw UsageError(fmt::format("{}: {}", path.string(),
                                 other ? "this is no regular file" : "there is no such file"));
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (size < 0) {
    throw UsageError(
        fmt::format("{}: cannot be opened for reading; check its permissions", path.string()));
  }
  if (size > available_memory()) {
    throw UsageError(fmt::format(
        "{}: reading its {:.1f} MiB takes more memory than the {:.1f} MiB that are available",
        path.string(), static_cast<double>(size) / 0x1p20,
        static_cast<double>(available_memory()) / 0x1p20));
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), size);
  if (file.gcount() != size) {
    throw BackendError(
        fmt::format("{}: only {} of {} bytes could be read", path.string(), file.gcount(), size));
  }
  return parse_idx(bytes, path.string());
}

}  // namespace lockstep
