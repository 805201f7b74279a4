// SPDX-License-Identifier: BSD-3-Clause
// Writes the pickle of a value, then each storage.
#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/checkpoint/torch_file/pickle_machine.h"
#include "lockstep/checkpoint/torch_file/zip_writer.h"
#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"

namespace lockstep {
namespace {

void check_torch_text(const std::string& text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
  } catch (const nlohmann::json::exception&) {
    throw UsageError(fmt::format("the text {} is not UTF-8", in_quotes(text)));
  }
}

// Writes the pickle that Python makes of these values with protocol 2.
class PickleWriter {
 public:
  PickleWriter() { text_ = "\x80\x02"; }

  // Until end_dict(), the values added are alternately keys and their values.
  void begin_ordered_dict() {
    global("collections\nOrderedDict");
    text_ += ")R(";
  }
  void begin_dict() { text_ += "}("; }
  void end_dict() { text_ += 'u'; }
  void begin_list() { text_ += "]("; }
  void end_list() { text_ += 'e'; }
  void begin_tuple() { text_ += '('; }
  void end_tuple() { text_ += 't'; }

  void none() { text_ += 'N'; }
  void flag(bool value) { text_ += value ? '\x88' : '\x89'; }
  void real(double value) {
    text_ += 'G';
    little_endian(__builtin_bswap64(std::bit_cast<std::uint64_t>(value)), 8);
  }
  void number(std::int64_t value) {
    const bool small = std::in_range<std::int32_t>(value);
    text_ += small ? "J" : "\x8a\x08";
    little_endian(static_cast<std::uint64_t>(value), small ? 4 : 8);
  }
  void string(const std::string& text) {
    check_torch_text(text);
    // The length field has 32 bits.
    if (text.size() > kMostPickleBytes) {
      throw UsageError(fmt::format("string of {} bytes exceeds the format's limit", text.size()));
    }
    text_ += 'X';
    little_endian(text.size(), 4);
    text_ += text;
  }
  void tensor(const at::Tensor& tensor, const ElementType& type, std::size_t storage) {
    const bool of_bytes = type.storage.empty();
    const auto bytes = of_bytes ? static_cast<std::int64_t>(type.bytes) : 1;
    global(of_bytes ? "torch._utils\n_rebuild_tensor_v3" : "torch._utils\n_rebuild_tensor_v2");
    text_ += "((";
    string("storage");
    global(of_bytes ? "torch.storage\nUntypedStorage" : "torch\n" + std::string(type.storage));
    string(std::to_string(storage));
    string("cpu");
    number(tensor.numel() * bytes);
    text_ += "tQ";
    number(0);
    sizes(tensor.sizes().vec());
    sizes(contiguous_strides(tensor.sizes().vec()));
    flag(false);
    global("collections\nOrderedDict");
    text_ += ")R";
    if (of_bytes) global("torch\n" + std::string(type.dtype));
    text_ += "tR";
  }

  std::size_t size() const { return text_.size(); }
  std::string finish() { return std::move(text_) + "."; }

 private:
  static std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& sizes) {
    std::vector<std::int64_t> strides(sizes.size());
    std::int64_t next = 1;
    for (std::size_t i = sizes.size(); i-- > 0;) {
      strides[i] = next;
      next *= std::max<std::int64_t>(sizes[i], 1);
    }
    return strides;
  }

  void little_endian(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text_ += static_cast<char>((value >> (8 * i)) & 0xff);
  }
  // Refers to a function or class: the first time by its name, then from the memo.
  void global(const std::string& name) {
    const auto [slot, is_new] = memo_.try_emplace(name, memo_.size());
    if (is_new) text_ += "c" + name + "\n";
    text_ += is_new ? 'q' : 'h';
    little_endian(slot->second, 1);
  }
  void sizes(const std::vector<std::int64_t>& values) {
    text_ += '(';
    for (const std::int64_t value : values) number(value);
    text_ += 't';
  }

  std::string text_;
  std::unordered_map<std::string, std::size_t> memo_;
};

// Returns the same key for tensors with the same elements in memory.
auto memory_key(const at::Tensor& tensor) {
  return std::tuple(tensor.data_ptr(), tensor.device().str(), tensor.scalar_type(),
                    tensor.sizes().vec(), tensor.strides().vec(), tensor.is_conj(),
                    tensor.is_neg());
}

// A pickle and the storages that it refers to.
class TorchFileWriter {
 public:
  PickleWriter& pickle() { return pickle_; }

  // `name` is for messages.
  void add(const at::Tensor& tensor, const std::string& name) {
    if (++tensors_ > kMostStoredTensors) {
      throw UsageError(
          fmt::format("a file has at most {} tensors; write several files", kMostStoredTensors));
    }
    const ElementType& type = element_type_of(tensor, name);
    // Empty tensors have no memory to share.
    std::size_t storage = storages_.size();
    if (tensor.numel() > 0) {
      storage = known_.try_emplace(memory_key(tensor), storage).first->second;
    }
    if (storage == storages_.size()) storages_.push_back(tensor);
    pickle_.tensor(tensor, type, storage);
    check_size();
  }

  // `path` is for messages: the keys and positions that lead to the value.
  void add(const TorchValue& value, const std::string& path, int depth) {
    // read_torch_file has the same limit.
    constexpr int kMostDepth = 100;
    if (depth > kMostDepth) {
      throw UsageError(fmt::format("values are nested more than {} deep", kMostDepth));
    }
    check_size();
    std::visit([&](const auto& data) { append(data, path, depth); }, value.data);
  }

  void write(const std::filesystem::path& file) {
    const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text)); };
    check_size();
    const std::string text = pickle_.finish();
    WholeFile out(file);
    ZipWriter archive(out);
    archive.add("archive/data.pkl", bytes(text));
    archive.add("archive/byteorder", bytes("little"));
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      const at::Tensor elements = in_index_order(storages_[i]);
      archive.add("archive/data/" + std::to_string(i), bytes_of(elements));
    }
    archive.add("archive/version", bytes("3\n"));
    archive.finish();
    out.commit();
  }

 private:
  void check_size() const {
    // The final opcode takes one more byte.
    if (pickle_.size() < kMostPickleBytes) return;
    throw UsageError(
        fmt::format("the names and values take a pickle of more than {} bytes, which is not read; "
                    "write several files",
                    kMostPickleBytes));
  }

  void append(std::monostate, const std::string&, int) { pickle_.none(); }
  void append(bool value, const std::string&, int) { pickle_.flag(value); }
  void append(std::int64_t value, const std::string&, int) { pickle_.number(value); }
  void append(double value, const std::string&, int) { pickle_.real(value); }
  void append(const std::string& value, const std::string&, int) { pickle_.string(value); }
  void append(const at::Tensor& value, const std::string& path, int) { add(value, path); }
  void append(const TorchValue::List& list, const std::string& path, int depth) {
    pickle_.begin_list();
    append_items(list, path, depth);
    pickle_.end_list();
  }
  void append(const TorchValue::Tuple& tuple, const std::string& path, int depth) {
    pickle_.begin_tuple();
    append_items(tuple.items, path, depth);
    pickle_.end_tuple();
  }
  void append(const TorchValue::Dict& dict, const std::string& path, int depth) {
    std::set<std::variant<std::int64_t, std::string_view>> keys;
    pickle_.begin_dict();
    for (const auto& [key, value] : dict) {
      const auto* const text = std::get_if<std::string>(&key.data);
      const auto* const number = std::get_if<std::int64_t>(&key.data);
      if (text == nullptr && number == nullptr) {
        throw UsageError(fmt::format(
            "the dict {} has a key that is neither a string nor an integer", in_quotes(path)));
      }
      const std::string name = text != nullptr ? *text : std::to_string(*number);
      const bool is_new =
          text != nullptr ? keys.emplace(*text).second : keys.emplace(*number).second;
      if (!is_new) {
        throw UsageError(
            fmt::format("the dict {} has the key {} twice", in_quotes(path), in_quotes(name)));
      }
      add(key, path, depth + 1);
      add(value, below(path, name), depth + 1);
    }
    pickle_.end_dict();
  }
  void append_items(const TorchValue::List& items, const std::string& path, int depth) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      add(items[i], below(path, std::to_string(i)), depth + 1);
    }
  }
  static std::string below(const std::string& path, const std::string& key) {
    return path.empty() ? key : path + "." + key;
  }

  PickleWriter pickle_;
  std::map<decltype(memory_key(at::Tensor())), std::size_t> known_;
  std::vector<at::Tensor> storages_;
  std::uint64_t tensors_ = 0;
};

}  // namespace

void write_torch_file(const std::filesystem::path& file, std::span<const NamedTensor> tensors) {
  std::set<std::string_view> names;
  TorchFileWriter writer;
  writer.pickle().begin_ordered_dict();
  for (const auto& [name, tensor] : tensors) {
    if (name.size() > kMostNameBytes) {
      throw UsageError(fmt::format("a tensor cannot have the name {}", in_quotes(name)));
    }
    if (!names.insert(name).second) {
      throw UsageError(fmt::format("two tensors have the name {}", in_quotes(name)));
    }
    writer.pickle().string(name);
    writer.add(tensor, name);
  }
  writer.pickle().end_dict();
  writer.write(file);
}

void write_torch_file(const std::filesystem::path& file, const TorchValue& value) {
  TorchFileWriter writer;
  writer.add(value, "", 0);
  writer.write(file);
}

TorchValue dict_of(std::span<const NamedTensor> tensors) {
  TorchValue::Dict dict;
  for (const auto& [name, tensor] : tensors)
    dict.emplace_back(TorchValue{name}, TorchValue{tensor});
  return {std::move(dict)};
}

}  // namespace lockstep
