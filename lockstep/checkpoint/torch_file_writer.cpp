// SPDX-License-Identifier: BSD-3-Clause
// Writes the pickle of an OrderedDict, then each storage.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/in_quotes.h"
#include "lockstep/checkpoint/pickle_machine.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/checkpoint/tensor_bytes.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/checkpoint/zip_writer.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// What Python's pickler writes for these values with protocol 2.
class StateDictPickle {
 public:
  StateDictPickle() {
    text_ = "\x80\x02";
    global("collections\nOrderedDict");
    text_ += ")R(";
  }

  void add(const NamedTensor& named, const ElementType& type, std::size_t storage) {
    const bool of_bytes = type.storage.empty();
    const auto elements = static_cast<std::uint64_t>(named.tensor.numel());
    string(named.name);
    global(of_bytes ? "torch._utils\n_rebuild_tensor_v3" : "torch._utils\n_rebuild_tensor_v2");
    text_ += "((";
    string("storage");
    global(of_bytes ? "torch.storage\nUntypedStorage" : "torch\n" + std::string(type.storage));
    string(std::to_string(storage));
    string("cpu");
    number(of_bytes ? elements * type.bytes : elements);
    text_ += "tQ";
    number(0);
    sizes(named.tensor.sizes().vec());
    sizes(contiguous_strides(named.tensor.sizes().vec()));
    text_ += '\x89';
    global("collections\nOrderedDict");
    text_ += ")R";
    if (of_bytes) global("torch\n" + std::string(type.dtype));
    text_ += "tR";
  }

  std::string finish() { return std::move(text_) + "u."; }

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
  // The first time by its name, then from the memo.
  void global(const std::string& name) {
    const auto [slot, is_new] = memo_.try_emplace(name, memo_.size());
    if (is_new) text_ += "c" + name + "\n";
    text_ += is_new ? 'q' : 'h';
    little_endian(slot->second, 1);
  }
  void string(const std::string& text) {
    text_ += 'X';
    little_endian(text.size(), 4);
    text_ += text;
  }
  void number(std::uint64_t value) {
    constexpr std::uint64_t kMost32 = 0x7fffffff;
    const bool small = value <= kMost32;
    text_ += small ? "J" : "\x8a\x08";
    little_endian(value, small ? 4 : 8);
  }
  void sizes(const std::vector<std::int64_t>& values) {
    text_ += '(';
    for (const std::int64_t value : values) number(static_cast<std::uint64_t>(value));
    text_ += 't';
  }

  std::string text_;
  std::unordered_map<std::string, std::size_t> memo_;
};

// Tensors with the same elements in memory have the same key.
auto memory_key(const at::Tensor& tensor) {
  return std::tuple(tensor.data_ptr(), tensor.device().str(), tensor.scalar_type(),
                    tensor.sizes().vec(), tensor.strides().vec(), tensor.is_conj(),
                    tensor.is_neg());
}

void check_torch_name(const std::string& name) {
  if (name.size() > kMostNameBytes) {
    throw UsageError(fmt::format("a tensor cannot have the name {}", in_quotes(name)));
  }
  try {
    static_cast<void>(nlohmann::json(name).dump());
  } catch (const nlohmann::json::exception&) {
    throw UsageError(fmt::format("the name {} is not UTF-8", in_quotes(name)));
  }
}

}  // namespace

void write_torch_file(const std::filesystem::path& file, std::span<const NamedTensor> tensors) {
  if (tensors.size() > kMostStoredTensors) {
    throw UsageError(fmt::format("{} tensors are too many for one file, which has at most {}",
                                 tensors.size(), kMostStoredTensors));
  }
  std::set<std::string_view> names;
  std::map<decltype(memory_key(at::Tensor())), std::size_t> known;
  std::vector<at::Tensor> storages;
  StateDictPickle pickle;
  for (const NamedTensor& named : tensors) {
    check_torch_name(named.name);
    if (!names.insert(named.name).second) {
      throw UsageError(fmt::format("two tensors have the name {}", in_quotes(named.name)));
    }
    const ElementType& type = element_type_of(named.tensor, named.name);
    // Empty tensors have no memory that they could share.
    std::size_t storage = storages.size();
    if (named.tensor.numel() > 0) {
      storage = known.try_emplace(memory_key(named.tensor), storage).first->second;
    }
    if (storage == storages.size()) storages.push_back(named.tensor);
    pickle.add(named, type, storage);
  }
  const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  const std::string text = pickle.finish();
  if (text.size() > kMostPickleBytes) {
    throw UsageError(fmt::format(
        "the names take a pickle of {} bytes, and at most {} are read; write several files",
        text.size(), kMostPickleBytes));
  }
  WholeFile out(file);
  ZipWriter archive(out);
  archive.add("archive/data.pkl", bytes(text));
  archive.add("archive/byteorder", bytes("little"));
  for (std::size_t i = 0; i < storages.size(); ++i) {
    const at::Tensor elements = in_index_order(storages[i]);
    archive.add("archive/data/" + std::to_string(i), bytes_of(elements));
  }
  archive.add("archive/version", bytes("3\n"));
  archive.finish();
  out.commit();
}

}  // namespace lockstep
