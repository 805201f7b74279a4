// SPDX-License-Identifier: BSD-3-Clause
// Reads tensors straight into their memory, and writes them one after another.
#include "lockstep/checkpoint/safetensors.h"

#include <fmt/format.h>

#include "lockstep/checkpoint/in_quotes.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/checkpoint/safetensors_layout.h"
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
  std::vector<SafetensorsItem> items;
  for (const auto& [name, tensor] : tensors) {
    items.push_back({name, &element_type_of(tensor, name), tensor.sizes().vec()});
  }
  const SafetensorsLayout layout = lay_out_safetensors(items, metadata);
  WholeFile out(file);
  out.write(layout.head.data(), layout.head.size());
  for (const std::size_t i : layout.order) {
    const at::Tensor elements = in_index_order(tensors[i].tensor);
    const auto bytes = bytes_of(elements);
    out.write(bytes.data(), bytes.size());
  }
  out.commit();
}

}  // namespace lockstep
