// SPDX-License-Identifier: BSD-3-Clause
// Looks at a file's first bytes, and opens it with the reader of its format.
#include "tools/checkpoint/tensor_source.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "lockstep/checkpoint/tensor_file/other_format.h"
#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/stored_bytes.h"

namespace lockstep {
namespace {

std::size_t count_other_values(const TorchValue& value) {
  std::size_t count = 0;
  if (const auto* dict = std::get_if<TorchValue::Dict>(&value.data)) {
    for (const auto& [key, item] : *dict) count += count_other_values(item);
  } else if (const auto* tuple = std::get_if<TorchValue::Tuple>(&value.data)) {
    for (const auto& item : tuple->items) count += count_other_values(item);
  } else if (const auto* list = std::get_if<TorchValue::List>(&value.data)) {
    for (const auto& item : *list) count += count_other_values(item);
  } else {
    count = std::holds_alternative<at::Tensor>(value.data) ? 0 : 1;
  }
  return count;
}

std::variant<SafetensorsFile, std::vector<NamedTensor>> open_tensors(
    const std::filesystem::path& file, const std::string& part, std::size_t& other_values) {
  constexpr std::size_t kLeastBytes = 10;  // of a safetensors file, the shorter one
  const std::size_t bytes = bytes_in_tensor_file(file).size;
  if (bytes < kLeastBytes) {
    throw CheckpointError(
        fmt::format("{}: it has {} bytes, too few for a file of tensors; copy or download it again",
                    file.string(), bytes));
  }
  if (!is_torch_file(file)) {
    if (!part.empty()) {
      throw UsageError(fmt::format("{}: a safetensors file has no parts; leave out --part {}",
                                   file.string(), part));
    }
    return SafetensorsFile(file);
  }
  const TorchValue value = read_torch_file(file);
  other_values = count_other_values(value);
  try {
    return part.empty() ? all_tensors(value) : state_dict_of(value, part);
  } catch (const CheckpointError& error) {
    ErrorDetails details = error.details();
    details.cause = fmt::format("{}: {}", file.string(), details.cause);
    throw CheckpointError(std::move(details));
  }
}

}  // namespace

// A pickle outside an archive counts too: the reader's error says what to do.
bool is_torch_file(const std::filesystem::path& file) {
  const StoredBytes bytes = bytes_in_tensor_file(file);
  std::array<unsigned char, 9> begin{};
  if (bytes.size < begin.size()) return false;
  bytes.read(0, std::as_writable_bytes(std::span(begin)));
  if (begin[8] == '{') return false;
  return (begin[0] == 'P' && begin[1] == 'K') || begin[0] == 0x80;
}

TensorSource::TensorSource(const std::filesystem::path& file, const std::string& part)
    : file_(file.string()), content_(open_tensors(file, part, other_values_)) {
  if (const auto* opened = std::get_if<SafetensorsFile>(&content_)) {
    for (const auto& entry : opened->entries()) names_.push_back(entry.name);
  } else {
    for (const auto& entry : std::get<1>(content_)) names_.push_back(entry.name);
  }
  for (std::size_t i = 0; i < names_.size(); ++i) by_name_.emplace(names_[i], i);
}

at::Tensor TensorSource::read(std::size_t index) const {
  if (const auto* opened = std::get_if<SafetensorsFile>(&content_)) return opened->read(index);
  return std::get<1>(content_).at(index).tensor;
}

at::Tensor TensorSource::read_or_bytes(std::size_t index) const {
  return can_read(index) ? read(index) : std::get<SafetensorsFile>(content_).read_bytes(index);
}

bool TensorSource::can_read(std::size_t index) const {
  const auto* opened = std::get_if<SafetensorsFile>(&content_);
  return opened == nullptr || opened->can_read(index);
}

std::size_t TensorSource::unreadable() const {
  std::size_t count = 0;
  for (std::size_t i = 0; i < names_.size(); ++i) count += can_read(i) ? 0 : 1;
  return count;
}

std::string TensorSource::dtype(std::size_t index) const {
  if (const auto* opened = std::get_if<SafetensorsFile>(&content_)) {
    const std::string& name = opened->entries().at(index).dtype;
    const ElementType* type = find_safetensors_type(name);
    return type == nullptr ? name : std::string(type->dtype);
  }
  return std::string(find_element_type(read(index).scalar_type())->dtype);
}

std::vector<std::int64_t> TensorSource::shape(std::size_t index) const {
  if (const auto* opened = std::get_if<SafetensorsFile>(&content_)) {
    return opened->entries().at(index).shape;
  }
  return read(index).sizes().vec();
}

std::size_t TensorSource::files() const {
  const auto* opened = std::get_if<SafetensorsFile>(&content_);
  if (opened == nullptr) return 1;
  std::set<std::string_view> parts{""};
  for (const auto& entry : opened->entries()) parts.insert(entry.part);
  return std::max<std::size_t>(parts.size() - 1, 1);
}

std::optional<std::size_t> TensorSource::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

std::map<std::string, std::string> TensorSource::metadata() const {
  const auto* opened = std::get_if<SafetensorsFile>(&content_);
  return opened == nullptr ? std::map<std::string, std::string>() : opened->metadata();
}

std::vector<NamedTensor> read_all(const TensorSource& source) {
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < source.names().size(); ++i) {
    tensors.push_back({source.names()[i], source.read(i)});
  }
  return tensors;
}

}  // namespace lockstep
