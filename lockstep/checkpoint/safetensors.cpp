// SPDX-License-Identifier: BSD-3-Clause
// Reads tensors straight into their memory, and writes them one after another.
#include "lockstep/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "lockstep/checkpoint/in_quotes.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/checkpoint/tensor_bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/core/whole_file.h"

namespace lockstep {

struct SafetensorsFile::Content {
  Content(StoredBytes stored, std::string file)
      : name(std::move(file)),
        bytes(std::move(stored)),
        header(with_memory_errors(name, [&] { return read_safetensors_header(bytes, name); })) {}

  std::string name;
  StoredBytes bytes;
  SafetensorsHeader header;
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& file)
    : content_(std::make_unique<Content>(bytes_in_file(file), file.string())) {}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> bytes, std::string name)
    : content_(std::make_unique<Content>(bytes_in_memory(bytes), std::move(name))) {}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::vector<SafetensorsEntry>& SafetensorsFile::entries() const {
  return content_->header.entries;
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return content_->header.metadata;
}

at::Tensor SafetensorsFile::read(std::size_t index) const {
  if (index >= entries().size()) {
    throw UsageError(fmt::format("{}: there is no entry {}; it has {}", content_->name, index,
                                 entries().size()));
  }
  const SafetensorsEntry& entry = entries()[index];
  const ElementType& type = *find_safetensors_type(entry.dtype);
  const auto read = [&](std::span<std::byte> output) {
    content_->bytes.read(content_->header.data_offset + entry.begin, output);
  };
  return with_memory_errors(content_->name, [&] {
    return tensor_from_bytes(type, (entry.end - entry.begin) / type.bytes, read,
                             fmt::format("{}: entry {}", content_->name, in_quotes(entry.name)))
        .view(entry.shape);
  });
}

Safetensors read_safetensors(const std::filesystem::path& file) {
  const SafetensorsFile opened(file);
  // Each may fit by itself, but they stay in memory together.
  std::uint64_t bytes = 0;
  for (const auto& entry : opened.entries()) bytes += entry.end - entry.begin;
  require_memory_for(bytes, fmt::format("{}: the sum of its tensors", file.string()));
  Safetensors result{.tensors = {}, .metadata = opened.metadata()};
  for (std::size_t i = 0; i < opened.entries().size(); ++i) {
    result.tensors.push_back({opened.entries()[i].name, opened.read(i)});
  }
  return result;
}

void write_safetensors(const std::filesystem::path& file, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  if (tensors.size() > kMostStoredTensors) {
    throw UsageError(fmt::format("{} tensors are too many for one file, which has at most {}",
                                 tensors.size(), kMostStoredTensors));
  }
  std::set<std::string_view> names;
  std::vector<SafetensorsEntry> entries;
  std::vector<std::uint64_t> widths;
  for (const auto& [name, tensor] : tensors) {
    if (name == kSafetensorsMetadata || name.size() > kMostNameBytes) {
      throw UsageError(
          fmt::format("a tensor in a safetensors file cannot have the name {}", in_quotes(name)));
    }
    if (!names.insert(name).second) {
      throw UsageError(fmt::format("two tensors have the name {}", in_quotes(name)));
    }
    const ElementType& type = element_type_of(tensor, name);
    if (type.safetensors.empty()) {
      throw UsageError(fmt::format("the tensor {} is of type {}, which safetensors lacks",
                                   in_quotes(name), type.dtype));
    }
    entries.push_back({name, std::string(type.safetensors), tensor.sizes().vec()});
    widths.push_back(type.bytes);
  }
  // Wide elements first: every tensor then is aligned in a file that is mapped into memory.
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t i) { return widths[i]; });
  std::uint64_t next = 0;
  for (const std::size_t i : order) {
    entries[i].begin = next;
    next += static_cast<std::uint64_t>(tensors[i].tensor.numel()) * widths[i];
    entries[i].end = next;
  }
  const std::string header = safetensors_header_text(entries, metadata);
  const std::uint64_t length = header.size();
  WholeFile out(file);
  out.write(&length, sizeof(length));
  out.write(header.data(), header.size());
  for (const std::size_t i : order) {
    const at::Tensor elements = in_index_order(tensors[i].tensor);
    const auto bytes = bytes_of(elements);
    out.write(bytes.data(), bytes.size());
  }
  out.commit();
}

}  // namespace lockstep
