// SPDX-License-Identifier: BSD-3-Clause
// Finds the pickle and the storages in the archive.
#include "lockstep/checkpoint/torch_file.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/format.h>

#include "lockstep/checkpoint/tensor_file/other_format.h"
#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/checkpoint/torch_file/pickle_machine.h"
#include "lockstep/checkpoint/torch_file/zip_archive.h"
#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"

namespace lockstep {
namespace {

void require_zip(const StoredBytes& bytes, const std::string& name) {
  std::array<unsigned char, 9> begin{};
  const std::size_t size = std::min(bytes.size, begin.size());
  bytes.read(0, std::as_writable_bytes(std::span(begin)).first(size));
  if (begin[0] == 'P' && begin[1] == 'K') return;
  std::string why = other_format(bytes);
  if (why.empty() && begin[8] == '{') {
    why = "it is a safetensors file; read it with read_safetensors";
  }
  throw CheckpointError(fmt::format(
      "{}: {}", name,
      why.empty() ? "it is not a zip archive, as torch.save writes: it is damaged or incomplete"
                  : why));
}

// Names archives of other programs. TorchScript archives are also compressed.
void refuse_other_archives(const ZipArchive& archive) {
  for (const ZipEntry& entry : archive.entries()) {
    const std::string_view name = entry.name;
    if (name == "constants.pkl" || name.ends_with("/constants.pkl")) {
      archive.fail(
          "it is a TorchScript archive, which torch::save of C++ and torch.jit.save write; load it "
          "with torch::load or torch.jit.load, and save its state dict");
    }
    if (name == "archive_format" || name.ends_with("/archive_format")) {
      archive.fail("it is an exported program (torch.export); save its state dict in Python");
    }
    if (name.ends_with(".npy")) {
      archive.fail(
          "it is an archive of NumPy (numpy.savez); save the arrays in Python with "
          "safetensors.numpy.save_file");
    }
    if (name == "model.weights.h5") {
      archive.fail("it is a model of Keras; save its weights as safetensors in Python");
    }
  }
}

// Returns the folder of the only pickle: "archive/" if that is "archive/data.pkl".
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
  const ZipArchive archive(std::move(bytes), name, refuse_other_archives);
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
  // Each storage may fit by itself, but all stay in memory together.
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

std::string_view kind_of(const TorchValue& value) {
  constexpr std::array<std::string_view, 9> kKinds{"None",    "a bool",   "an integer",
                                                   "a float", "a string", "a tensor",
                                                   "a list",  "a tuple",  "a dict"};
  static_assert(std::variant_size_v<decltype(TorchValue::data)> == kKinds.size());
  return kKinds.at(value.data.index());
}

bool is_named_tensor(const std::pair<TorchValue, TorchValue>& item) {
  return std::holds_alternative<std::string>(item.first.data) &&
         std::holds_alternative<at::Tensor>(item.second.data);
}

bool is_state_dict(const TorchValue& value) {
  const auto* dict = std::get_if<TorchValue::Dict>(&value.data);
  return dict != nullptr && std::ranges::all_of(*dict, is_named_tensor);
}

// Describes what keeps a dict with tensors from being a state dict, such as a module's extra state;
// empty for any other value.
std::string describe_other_entry(const TorchValue& value) {
  const auto* dict = std::get_if<TorchValue::Dict>(&value.data);
  if (dict == nullptr) return "";
  const auto named = std::ranges::count_if(*dict, is_named_tensor);
  const auto other = std::ranges::find_if_not(*dict, is_named_tensor);
  if (named == 0 || other == dict->end()) return "";
  const auto* name = std::get_if<std::string>(&other->first.data);
  const auto others = std::ssize(*dict) - named;
  return fmt::format(
      "{}{}",
      name == nullptr ? fmt::format("it has the key {}, which is no name",
                                    std::get<std::int64_t>(other->first.data))
                      : fmt::format("its entry {} is {}", in_quotes(*name), kind_of(other->second)),
      others == 1 ? "" : fmt::format(" (and there are {} more)", others - 1));
}

// Lists the parts that state_dict_of() takes.
std::string parts_text(const TorchValue& value) {
  constexpr int kMost = 20;
  int parts = 0;
  std::string text;
  std::string other_entry;
  if (const auto* dict = std::get_if<TorchValue::Dict>(&value.data)) {
    for (const auto& [key, item] : *dict) {
      const auto* name = std::get_if<std::string>(&key.data);
      if (name == nullptr) continue;
      if (other_entry.empty()) {
        other_entry = describe_other_entry(item);
        if (!other_entry.empty())
          other_entry = fmt::format("of {}, {}", in_quotes(*name), other_entry);
      }
      if (!is_state_dict(item) || ++parts > kMost) continue;
      text += fmt::format("{}{}", text.empty() ? "" : ", ", in_quotes(*name));
    }
  }
  if (parts > kMost) text += fmt::format(" and {} more", parts - kMost);
  if (!text.empty()) return "these parts are: " + text;
  if (other_entry.empty()) return "no part of it is one";
  return fmt::format("no part of it is one: {}; take the tensors alone with all_tensors(part)",
                     other_entry);
}

void append_tensors(const TorchValue& value, const std::string& name,
                    std::vector<NamedTensor>& tensors) {
  const auto below = [&](const auto& key) {
    return name.empty() ? fmt::format("{}", key) : fmt::format("{}.{}", name, key);
  };
  const auto append_items = [&](const TorchValue::List& items) {
    for (std::size_t i = 0; i < items.size(); ++i) append_tensors(items[i], below(i), tensors);
  };
  // The names of a hostile file could repeat its keys until they fill the memory.
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

TorchValue read_torch_file(const std::filesystem::path& file) {
  return with_memory_errors(
      file.string(), [&] { return read_archive(bytes_in_tensor_file(file), file.string()); });
}

TorchValue read_torch_file(std::span<const std::byte> bytes, const std::string& name) {
  return with_memory_errors(name, [&] { return read_archive(bytes_in_memory(bytes), name); });
}

std::vector<NamedTensor> state_dict_of(const TorchValue& value, std::string_view part) {
  const TorchValue* found = part.empty() ? &value : value.find(part);
  if (found == nullptr && is_state_dict(value)) {
    throw CheckpointError(fmt::format(
        "there is no part {}, since the saved value is itself a dict of names and tensors; leave "
        "out the part",
        in_quotes(part)));
  }
  if (found == nullptr || !is_state_dict(*found)) {
    const std::string other_entry = found == nullptr ? "" : describe_other_entry(*found);
    throw CheckpointError(fmt::format(
        "{} is not a dict of names and tensors{}",
        part.empty() ? "the saved value" : fmt::format("the part {}", in_quotes(part)),
        other_entry.empty()
            ? "; " + parts_text(value)
            : fmt::format(": {}; take the tensors alone with all_tensors(value)", other_entry)));
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
