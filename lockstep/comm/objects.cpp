// SPDX-License-Identifier: BSD-3-Clause
// An object travels as its length and its bytes.
#include "lockstep/comm/objects.h"

#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// The first byte of a packed JSON value, and of the reason why there is none.
constexpr char kJson = 'J';
constexpr char kFault = 'F';

// Tensors that own their memory: a transport may use it after a failure.
at::Tensor bytes_of(std::string_view object, std::int64_t size) {
  const at::Tensor bytes = at::zeros({size}, at::kByte);
  if (!object.empty()) std::memcpy(bytes.data_ptr(), object.data(), object.size());
  return bytes;
}

at::Tensor length_of(std::string_view object) {
  return at::full({1}, static_cast<std::int64_t>(object.size()), at::kLong);
}

std::string string_of(const at::Tensor& bytes) {
  return std::string(static_cast<const char*>(bytes.data_ptr()), bytes.nbytes());
}

}  // namespace

std::string broadcast_object(std::string_view object, int root, GroupArgument argument) {
  const CallScope scope(CallOrigin::broadcast_object);
  ProcessGroup& group = argument.get();
  const at::Tensor length = length_of(object);
  group.broadcast(length, root).wait();
  const std::int64_t size = length.item<std::int64_t>();
  const at::Tensor bytes = bytes_of(group.rank() == root ? object : "", size);
  group.broadcast(bytes, root).wait();
  return string_of(bytes);
}

std::vector<std::string> all_gather_object(std::string_view object, GroupArgument argument) {
  const CallScope scope(CallOrigin::all_gather_object);
  ProcessGroup& group = argument.get();
  const at::Tensor lengths = at::empty({group.size()}, at::kLong);
  group.all_gather_into_tensor(lengths, length_of(object)).wait();
  // Every rank passes `longest` bytes, the length of the longest object.
  const std::int64_t longest = lengths.max().item<std::int64_t>();
  const at::Tensor all = at::empty({group.size(), longest}, at::kByte);
  group.all_gather_into_tensor(all, bytes_of(object, longest)).wait();
  std::vector<std::string> objects;
  for (int rank = 0; rank < group.size(); ++rank) {
    objects.push_back(string_of(all[rank].narrow(0, 0, lengths[rank].item<std::int64_t>())));
  }
  return objects;
}

void detail::check_object_size(std::size_t bytes, std::size_t expected, const ProcessGroup& group) {
  if (bytes == expected) return;
  throw UsageError(
      group.context(),
      fmt::format("an object has {} bytes here and {} on another rank", expected, bytes),
      "all ranks must name the same type");
}

// The first byte distinguishes the two kinds from each other, and from objects of another type.
std::string detail::packed_json(const std::vector<std::uint8_t>& message) {
  std::string bytes(1, kJson);
  bytes.append(message.begin(), message.end());
  return bytes;
}

std::string detail::packed_fault(const std::string& place, const std::exception& fault) {
  return fmt::format("{}at {}: {}", kFault, place, fault.what());
}

std::vector<std::uint8_t> detail::unpacked_json(const std::string& bytes, int from,
                                                const ProcessGroup& group) {
  if (bytes.starts_with(kFault)) {
    throw UsageError(group.context(),
                     fmt::format("the JSON that rank {} passed has text that is not UTF-8, {}",
                                 from, bytes.substr(1)),
                     "convert the text, or pass bytes as nlohmann::json::binary");
  }
  if (!bytes.starts_with(kJson)) {
    refuse_json(fmt::format("{} bytes of something else", bytes.size()), group);
  }
  return {bytes.begin() + 1, bytes.end()};
}

void detail::refuse_json(const std::string& why, const ProcessGroup& group) {
  throw UsageError(group.context(), fmt::format("another rank did not pass JSON: {}", why),
                   "all ranks must name the same type");
}

}  // namespace lockstep
