// SPDX-License-Identifier: BSD-3-Clause
// Finds the pickle and the storages in the archive.
#include "lockstep/checkpoint/torch_file.h"

#include <array>
#include <map>
#include <set>

#include <fmt/format.h>

#include "lockstep/checkpoint/in_quotes.h"
#include "lockstep/checkpoint/pickle_machine.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/checkpoint/tensor_bytes.h"
#include "lockstep/checkpoint/zip_archive.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

void require_zip(const StoredBytes& bytes, const std::string& name) {
  std::array<unsigned char, 4> begin{};
  if (bytes.size >= begin.size()) bytes.read(0, std::as_writable_bytes(std::span(begin)));
  if (begin[0] == 'P' && begin[1] == 'K') return;
  throw CheckpointError(
      fmt::format("{}: it is not a zip archive, as torch.save writes{}", name,
                  begin[0] == 0x80
                      ? "; files from before PyTorch 1.6 are not read: load it in Python, and save "
                        "it again"
                      : ""));
}

// "archive/" of the one entry "archive/data.pkl".
std::string folder_in(const ZipArchive& archive) {
  constexpr std::string_view kPickle = "/data.pkl";
  std::string folder;
  for (const ZipEntry& entry : archive.entries()) {
    if (!entry.name.ends_with(kPickle)) continue;
    if (!folder.empty()) archive.fail("it has several pickles (data.pkl)");
    folder = entry.name.substr(0, entry.name.size() - kPickle.size() + 1);
  }
  if (folder.empty()) archive.fail("it has no pickle (data.pkl), which torch.save writes");
  for (const ZipEntry& entry : archive.entries()) {
    if (entry.name.starts_with(folder)) continue;
    archive.fail(
        fmt::format("entry {} is not in the folder {}", in_quotes(entry.name), in_quotes(folder)));
  }
  if (archive.find(folder + "constants.pkl") != nullptr) {
    archive.fail(
        "it is a TorchScript archive, which torch::save of C++ and torch.jit.save write; load it "
        "with torch::load or torch.jit.load, and save its state dict");
  }
  return folder;
}

// Reads each storage once.
class Storages {
 public:
  Storages(const ZipArchive& archive, std::string folder)
      : archive_(archive), folder_(std::move(folder)) {}

  at::Tensor read(const PickledStorage& storage, const ElementType& type) {
    const std::string name = fmt::format("{}data/{}", folder_, storage.key);
    const ZipEntry* entry = archive_.find(name);
    if (entry == nullptr) archive_.fail(fmt::format("there is no storage {}", in_quotes(name)));
    const std::uint64_t unit = storage.type == nullptr ? 1 : storage.type->bytes;
    const std::uint64_t bytes = storage.count * unit;
    if (bytes != entry->size || bytes % type.bytes != 0) {
      archive_.fail(fmt::format("entry {} has {} bytes, but by the pickle {} elements of {}",
                                in_quotes(name), entry->size, storage.count * unit / type.bytes,
                                type.dtype));
    }
    const auto [found, is_new] = known_.try_emplace(name, Known{&type, {}});
    if (found->second.type != &type) {
      archive_.fail(fmt::format("the pickle gives entry {} two types, {} and {}", in_quotes(name),
                                found->second.type->dtype, type.dtype));
    }
    if (is_new) {
      found->second.elements = tensor_from_bytes(
          type, bytes / type.bytes,
          [&](std::span<std::byte> output) { archive_.read(*entry, output); },
          fmt::format("{}: entry {}", file_name(), in_quotes(name)));
    }
    return found->second.elements;
  }

  bool has_read(const std::string& name) const { return known_.contains(name); }

 private:
  struct Known {
    const ElementType* type;
    at::Tensor elements;
  };

  const std::string& file_name() const { return archive_.file(); }

  const ZipArchive& archive_;
  std::string folder_;
  std::map<std::string, Known> known_;
};

TorchValue read_archive(StoredBytes bytes, const std::string& name) {
  require_zip(bytes, name);
  const ZipArchive archive(std::move(bytes), name);
  const std::string folder = folder_in(archive);
  if (const ZipEntry* order = archive.find(folder + "byteorder")) {
    constexpr std::uint64_t kMost = 16;
    const std::string text = order->size <= kMost ? archive.read_text(*order) : "unknown";
    if (text != "little") {
      archive.fail(fmt::format("its numbers have the byte order {}, and only \"little\" is read",
                               in_quotes(text)));
    }
  }
  const ZipEntry& pickle = *archive.find(folder + "data.pkl");
  if (pickle.size > kMostPickleBytes) {
    archive.fail(fmt::format("its pickle has {} bytes, and at most {} are read", pickle.size,
                             kMostPickleBytes));
  }
  // Each storage may fit by itself, but they stay in memory together.
  std::uint64_t stored = 0;
  for (const ZipEntry& entry : archive.entries()) stored += entry.size;
  require_memory_for(stored, fmt::format("{}: the sum of its entries", name));
  Storages storages(archive, folder);
  TorchValue value = read_pickle(
      archive.read_text(pickle),
      [&](const PickledStorage& storage, const ElementType& type) {
        return storages.read(storage, type);
      },
      name);
  for (const ZipEntry& entry : archive.entries()) {
    if (!storages.has_read(entry.name)) archive.check(entry);
  }
  return value;
}

bool is_state_dict(const TorchValue& value) {
  const auto* dict = std::get_if<TorchValue::Dict>(&value.data);
  if (dict == nullptr) return false;
  for (const auto& [key, item] : *dict) {
    if (!std::holds_alternative<std::string>(key.data)) return false;
    if (!std::holds_alternative<at::Tensor>(item.data)) return false;
  }
  return true;
}

std::string parts_text(const TorchValue& value) {
  constexpr int kMost = 20;
  int parts = 0;
  std::string text;
  if (const auto* dict = std::get_if<TorchValue::Dict>(&value.data)) {
    for (const auto& [key, item] : *dict) {
      const auto* name = std::get_if<std::string>(&key.data);
      if (name == nullptr || !is_state_dict(item)) continue;
      if (++parts > kMost) continue;
      text += fmt::format("{}{}", text.empty() ? "" : ", ", in_quotes(*name));
    }
  }
  if (parts > kMost) text += fmt::format(" and {} more", parts - kMost);
  return text.empty() ? "no part of it is one" : "these parts are: " + text;
}

void append_tensors(const TorchValue& value, const std::string& name,
                    std::vector<NamedTensor>& tensors) {
  const auto below = [&](const auto& key) {
    return name.empty() ? fmt::format("{}", key) : fmt::format("{}.{}", name, key);
  };
  const auto append_items = [&](const TorchValue::List& items) {
    for (std::size_t i = 0; i < items.size(); ++i) append_tensors(items[i], below(i), tensors);
  };
  // Keys of a hostile file could repeat in more names than memory holds.
  if (name.size() > kMostNameBytes || tensors.size() > kMostStoredTensors) {
    throw CheckpointError(
        fmt::format("it has more than {} tensors, or a name longer than {} bytes: {}",
                    kMostStoredTensors, kMostNameBytes, in_quotes(name)));
  }
  if (const auto* tensor = std::get_if<at::Tensor>(&value.data)) {
    tensors.push_back({name, *tensor});
  } else if (const auto* list = std::get_if<TorchValue::List>(&value.data)) {
    append_items(*list);
  } else if (const auto* tuple = std::get_if<TorchValue::Tuple>(&value.data)) {
    append_items(tuple->items);
  } else if (const auto* dict = std::get_if<TorchValue::Dict>(&value.data)) {
    for (const auto& [key, item] : *dict) {
      if (const auto* text = std::get_if<std::string>(&key.data)) {
        append_tensors(item, below(*text), tensors);
      } else {
        append_tensors(item, below(std::get<std::int64_t>(key.data)), tensors);
      }
    }
  }
}

}  // namespace

const TorchValue* TorchValue::find(std::string_view key) const {
  const auto* dict = std::get_if<Dict>(&data);
  if (dict == nullptr) return nullptr;
  for (const auto& [name, value] : *dict) {
    const auto* text = std::get_if<std::string>(&name.data);
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

TorchValue read_torch_file(const std::filesystem::path& file) {
  return with_memory_errors(file.string(),
                            [&] { return read_archive(bytes_in_file(file), file.string()); });
}

TorchValue read_torch_file(std::span<const std::byte> bytes, const std::string& name) {
  return with_memory_errors(name, [&] { return read_archive(bytes_in_memory(bytes), name); });
}

std::vector<NamedTensor> state_dict_of(const TorchValue& value, std::string_view part) {
  const TorchValue* found = part.empty() ? &value : value.find(part);
  if (found == nullptr || !is_state_dict(*found)) {
    throw CheckpointError(
        fmt::format("{} is not a dict of names and tensors; {}",
                    part.empty() ? "the saved value" : fmt::format("the part {}", in_quotes(part)),
                    parts_text(value)));
  }
  std::vector<NamedTensor> tensors;
  for (const auto& [key, item] : std::get<TorchValue::Dict>(found->data)) {
    tensors.push_back({std::get<std::string>(key.data), std::get<at::Tensor>(item.data)});
  }
  return tensors;
}

std::vector<NamedTensor> all_tensors(const TorchValue& value) {
  std::vector<NamedTensor> tensors;
  append_tensors(value, "", tensors);
  std::set<std::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    if (names.insert(name).second) continue;
    throw CheckpointError(fmt::format("two tensors have the name {}", in_quotes(name)));
  }
  return tensors;
}

}  // namespace lockstep
