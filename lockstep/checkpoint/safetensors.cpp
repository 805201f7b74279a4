// SPDX-License-Identifier: BSD-3-Clause
// Reads tensors straight into their memory, and writes them one after another.
#include "lockstep/checkpoint/safetensors.h"

#include <utility>

#include <fmt/format.h>

#include "lockstep/checkpoint/safetensors/safetensors_header.h"
#include "lockstep/checkpoint/safetensors/safetensors_index.h"
#include "lockstep/checkpoint/safetensors/safetensors_layout.h"
#include "lockstep/checkpoint/tensor_file/other_format.h"
#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/core/file/whole_file.h"
#include "lockstep/core/in_quotes.h"

namespace lockstep {

struct SafetensorsFile::Content {
  Content(StoredBytes bytes, const std::string& file) : name(file) {
    SafetensorsHeader header = read_safetensors_header(bytes, name);
    parts.push_back({"", name, std::move(bytes), std::move(header)});
    gather();
  }
  explicit Content(const std::filesystem::path& index)
      : name(index.string()), parts(open_safetensors_parts(index)) {
    gather();
  }

  void gather() {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (SafetensorsEntry& entry : parts[i].header.entries) {
        entry.part = parts[i].file;
        entries.push_back(std::move(entry));
        part_of.push_back(i);
      }
      parts[i].header.entries.clear();
      metadata.merge(parts[i].header.metadata);
    }
  }

  const SafetensorsEntry& entry(std::size_t index) const {
    if (index < entries.size()) return entries[index];
    throw UsageError(
        fmt::format("{}: there is no entry {}; it has {}", name, index, entries.size()));
  }
  at::Tensor read(std::size_t index, const ElementType& type) const {
    const SafetensorsPart& part = parts[part_of[index]];
    const SafetensorsEntry& entry = entries[index];
    const auto read = [&](std::span<std::byte> output) {
      part.bytes.read(part.header.data_offset + entry.begin, output);
    };
    return with_memory_errors(part.path, [&] {
      return tensor_from_bytes(type, (entry.end - entry.begin) / type.bytes, read,
                               fmt::format("{}: entry {}", part.path, in_quotes(entry.name)));
    });
  }

  std::string name;
  std::vector<SafetensorsPart> parts;
  std::vector<SafetensorsEntry> entries;  // the entries of all parts
  std::vector<std::size_t> part_of;       // for each entry, the index of its part
  std::map<std::string, std::string> metadata;
};

namespace {

// Returns the type of an entry that cannot be read, and why it cannot.
std::string type_fault(const SafetensorsEntry& entry) {
  const bool is_known = find_safetensors_type(entry.dtype) != nullptr;
  return fmt::format("{} ({})", in_quotes(entry.dtype),
                     is_known ? "this libtorch lacks it; build Lockstep with a later one"
                              : "Lockstep does not know it");
}

// CheckpointError, listing the entries that cannot be read, and how to read the others.
void require_readable(const SafetensorsFile& opened, const std::string& file) {
  constexpr std::size_t kMost = 5;
  std::size_t count = 0;
  std::string text;
  for (std::size_t i = 0; i < opened.entries().size(); ++i) {
    if (opened.can_read(i) || ++count > kMost) continue;
    const SafetensorsEntry& entry = opened.entries()[i];
    text += fmt::format("{}{} of type {}", count == 1 ? "" : ", ", in_quotes(entry.name),
                        type_fault(entry));
  }
  if (count == 0) return;
  if (count > kMost) text += fmt::format(" and {} more", count - kMost);
  throw CheckpointError(fmt::format(
      "{}: {} of {} entries cannot be read: {}; read the others one by one with SafetensorsFile, "
      "and the bytes of these with its read_bytes",
      file, count, opened.entries().size(), text));
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& file)
    : content_(with_memory_errors(file.string(), [&] {
        StoredBytes bytes = bytes_in_tensor_file(file);
        return is_json_text(bytes) ? std::make_unique<Content>(file)
                                   : std::make_unique<Content>(std::move(bytes), file.string());
      })) {}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> bytes, std::string name)
    : content_(with_memory_errors(
          name, [&] { return std::make_unique<Content>(bytes_in_memory(bytes), name); })) {}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::vector<SafetensorsEntry>& SafetensorsFile::entries() const {
  return content_->entries;
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return content_->metadata;
}

bool SafetensorsFile::can_read(std::size_t index) const {
  const ElementType* type = find_safetensors_type(content_->entry(index).dtype);
  return type != nullptr && type->type;
}

at::Tensor SafetensorsFile::read(std::size_t index) const {
  const SafetensorsEntry& entry = content_->entry(index);
  if (!can_read(index)) {
    throw CheckpointError(fmt::format(
        "{}: entry {} has elements of type {}; convert the file, or take its bytes with read_bytes",
        content_->parts[content_->part_of[index]].path, in_quotes(entry.name), type_fault(entry)));
  }
  return content_->read(index, *find_safetensors_type(entry.dtype)).view(entry.shape);
}

at::Tensor SafetensorsFile::read_bytes(std::size_t index) const {
  content_->entry(index);  // throws if there is none
  return content_->read(index, *find_element_type(at::kByte));
}

Safetensors read_safetensors(const std::filesystem::path& file) {
  const SafetensorsFile opened(file);
  require_readable(opened, file.string());
  // Each tensor may fit by itself, but all stay in memory together.
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
  std::vector<TensorToSave> items;
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
