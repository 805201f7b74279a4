// SPDX-License-Identifier: BSD-3-Clause
// Maps the file, and widens the tokens of a window.
#include "lockstep/data/token_dataset.h"

#include <bit>
#include <cerrno>
#include <string>

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little);

std::int64_t bytes_of(TokenType type) {
  return type == TokenType::uint16 ? sizeof(std::uint16_t) : sizeof(std::uint32_t);
}

template <class Token>
void widen(const void* tokens, std::int64_t first, std::int64_t count, std::int64_t* output) {
  const auto* from = static_cast<const Token*>(tokens) + first;
  for (std::int64_t i = 0; i < count; ++i) output[i] = from[i];
}

}  // namespace

// The file, and its bytes as they were when it was opened.
class TokenDataset::Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path)
      : name_(path.string()), fd_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    if (!fd_) {
      throw UsageError(
          errno == ENOENT
              ? fmt::format("{}: there is no such token file; write one with NumPy: "
                            "np.array(tokens, dtype=np.uint16).tofile(name)",
                            name_)
              : fmt::format("{}: cannot be opened for reading: {}", name_, reason_of(errno)));
    }
    struct stat status {};
    if (::fstat(fd_.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
      throw UsageError(fmt::format("{}: this is not a regular file", name_));
    }
    size_ = status.st_size;
    if (size_ == 0) return;
    address_ =
        ::mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ, MAP_SHARED, fd_.get(), 0);
    if (address_ == MAP_FAILED) {
      throw BackendError(fmt::format("{}: its {} bytes cannot be mapped into memory: {}", name_,
                                     size_, reason_of(errno)));
    }
  }
  ~Mapping() {
    if (size_ > 0) ::munmap(address_, static_cast<std::size_t>(size_));
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::string& name() const { return name_; }
  std::int64_t size() const { return size_; }
  const void* address() const { return address_; }

  // Pages behind the end of a file that has become shorter end the process when they are read.
  void require_whole() const {
    struct stat status {};
    if (::fstat(fd_.get(), &status) == 0 && status.st_size >= size_) return;
    throw BackendError(fmt::format(
        "{}: the file had {} bytes when it was opened, and now has {}; start again when no program "
        "writes to it",
        name_, size_, status.st_size));
  }

 private:
  std::string name_;
  UniqueFd fd_;
  std::int64_t size_ = 0;
  void* address_ = nullptr;
};

TokenDataset::TokenDataset(const std::filesystem::path& file, const TokenDatasetOptions& options)
    : mapping_(std::make_shared<Mapping>(file)), options_(options) {
  if (options_.window < 1 || options_.vocabulary < 0) {
    throw UsageError(fmt::format(
        "TokenDataset: window is {} and vocabulary {}; give a window of at least 1 token, and 0 or "
        "the number of tokens that the model knows",
        options_.window, options_.vocabulary));
  }
  const std::int64_t bytes = mapping_->size();
  if (bytes % bytes_of(options_.type) != 0) {
    throw UsageError(fmt::format(
        "{}: its {} bytes are not a whole number of tokens of {} bytes; copy the file again, or "
        "name its type (.type)",
        mapping_->name(), bytes, bytes_of(options_.type)));
  }
  if (tokens() - 1 < options_.window) {
    throw UsageError(
        fmt::format("{}: it has {} tokens, fewer than a window of {} and the token that follows; "
                    "name a longer file, or a smaller window",
                    mapping_->name(), tokens(), options_.window));
  }
}

torch::data::Example<> TokenDataset::get(std::size_t index) {
  if (index >= *size()) {
    throw UsageError(
        fmt::format("{}: there is no window {}; there are {}", mapping_->name(), index, *size()));
  }
  mapping_->require_whole();
  const std::int64_t first = static_cast<std::int64_t>(index) * options_.window;
  const std::int64_t count = options_.window + 1;
  const at::Tensor window = at::empty({count}, at::kLong);
  auto* values = window.data_ptr<std::int64_t>();
  if (options_.type == TokenType::uint16) {
    widen<std::uint16_t>(mapping_->address(), first, count, values);
  } else {
    widen<std::uint32_t>(mapping_->address(), first, count, values);
  }
  for (std::int64_t k = 0; options_.vocabulary > 0 && k < count; ++k) {
    if (values[k] < options_.vocabulary) continue;
    throw UsageError(fmt::format(
        "{}: token {} is {}, but the vocabulary has {} tokens; give the vocabulary of the "
        "tokenizer that wrote the file, and check the type (.type)",
        mapping_->name(), first + k, values[k], options_.vocabulary));
  }
  return {window.narrow(0, 0, options_.window), window.narrow(0, 1, options_.window)};
}

c10::optional<std::size_t> TokenDataset::size() const {
  return static_cast<std::size_t>((tokens() - 1) / options_.window);
}

std::int64_t TokenDataset::tokens() const {
  return mapping_->size() / bytes_of(options_.type);
}

}  // namespace lockstep
