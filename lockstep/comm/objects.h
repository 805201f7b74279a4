// SPDX-License-Identifier: BSD-3-Clause
// Strings and other objects between ranks, like torch.distributed's broadcast_object_list and
// all_gather_object. Collective calls, blocking; errors as for tensors.
#pragma once

#include <concepts>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/group_argument.h"
#include "lockstep/core/plain_object.h"

namespace lockstep {

// Root's string, on every rank; the other ranks' arguments are ignored.
std::string broadcast_object(std::string_view object, int root, GroupArgument group);
// Every rank's string, in rank order. Lengths may differ.
std::vector<std::string> all_gather_object(std::string_view object, GroupArgument group);

// nlohmann::json, or a type with the same interface.
template <class T>
concept JsonObject = requires(const T& object) {
  { object.dump() } -> std::convertible_to<std::string>;
  { T::parse(std::string()) } -> std::convertible_to<T>;
};

namespace detail {

template <class T>
std::string packed(const T& object) {
  if constexpr (JsonObject<T>) {
    return object.dump();
  } else {
    return std::string(reinterpret_cast<const char*>(&object), sizeof object);
  }
}

// UsageError if the sizes differ, because ranks used different types.
void check_object_size(std::size_t bytes, std::size_t expected, const ProcessGroup& group);
// UsageError for bytes that are not JSON.
[[noreturn]] void refuse_json(const std::string& why, const ProcessGroup& group);

template <class T>
T unpacked(const std::string& bytes, const ProcessGroup& group) {
  if constexpr (JsonObject<T>) {
    try {
      return T::parse(bytes);
    } catch (const std::exception& error) {
      refuse_json(error.what(), group);
    }
  } else {
    check_object_size(bytes.size(), sizeof(T), group);
    T object;
    std::memcpy(&object, bytes.data(), sizeof object);
    return object;
  }
}

}  // namespace detail

template <class T>
requires PlainObject<T> || JsonObject<T> T broadcast_object(const T& object, int root,
                                                            GroupArgument group) {
  const std::string own = group.get().rank() == root ? detail::packed(object) : "";
  return detail::unpacked<T>(broadcast_object(std::string_view(own), root, group), group.get());
}

template <class T>
requires PlainObject<T> || JsonObject<T> std::vector<T> all_gather_object(const T& object,
                                                                          GroupArgument group) {
  const std::string own = detail::packed(object);
  std::vector<T> objects;
  for (const std::string& bytes : all_gather_object(std::string_view(own), group)) {
    objects.push_back(detail::unpacked<T>(bytes, group.get()));
  }
  return objects;
}

}  // namespace lockstep
