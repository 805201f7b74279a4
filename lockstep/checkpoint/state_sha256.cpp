// SPDX-License-Identifier: BSD-3-Clause
// Adds each value behind its kind and its size, so that different states cannot give one text.
#include "lockstep/checkpoint/state_sha256.h"

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <variant>

#include "lockstep/checkpoint/sha256.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

class StateHash {
 public:
  void add(std::uint64_t number) { add_bytes(&number, sizeof number); }

  void add(std::string_view text) {
    add(std::uint64_t{text.size()});
    add_bytes(text.data(), text.size());
  }

  void add(const at::Tensor& tensor) {
    add(static_cast<std::uint64_t>(tensor.scalar_type()));
    add(static_cast<std::uint64_t>(tensor.dim()));
    for (const std::int64_t size : tensor.sizes()) add(static_cast<std::uint64_t>(size));
    const at::Tensor here = on_host(tensor);
    add_bytes(here.data_ptr(), here.nbytes());
  }

  void add(const TorchValue& value) {
    add(std::uint64_t{value.data.index()});
    std::visit([this](const auto& data) { add_data(data); }, value.data);
  }

  std::string finish() { return hash_.finish(); }

 private:
  void add_bytes(const void* bytes, std::size_t count) {
    hash_.add({static_cast<const std::byte*>(bytes), count});
  }

  template <class Data>
  void add_data(const Data& data) {
    if constexpr (std::is_same_v<Data, double>) {
      add(std::bit_cast<std::uint64_t>(data));
    } else if constexpr (std::is_integral_v<Data>) {
      add(static_cast<std::uint64_t>(data));
    } else if constexpr (std::is_same_v<Data, std::string>) {
      add(std::string_view(data));
    } else if constexpr (std::is_same_v<Data, at::Tensor>) {
      add(data);
    } else if constexpr (std::is_same_v<Data, TorchValue::List>) {
      add(std::uint64_t{data.size()});
      for (const TorchValue& item : data) add(item);
    } else if constexpr (std::is_same_v<Data, TorchValue::Tuple>) {
      add_data(data.items);
    } else if constexpr (std::is_same_v<Data, TorchValue::Dict>) {
      add(std::uint64_t{data.size()});
      for (const auto& [key, item] : data) {
        add(key);
        add(item);
      }
    }
  }

  Sha256 hash_;
};

}  // namespace

std::string state_sha256(const torch::nn::Module& module,
                         const torch::optim::Optimizer& optimizer) {
  StateHash hash;
  for (const auto& [name, tensor] : state_dict(module)) {
    hash.add(std::string_view(name));
    hash.add(tensor);
  }
  hash.add(optimizer_state_dict(optimizer));
  return hash.finish();
}

}  // namespace lockstep
