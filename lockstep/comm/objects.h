// SPDX-License-Identifier: BSD-3-Clause
// Public. Strings and other objects between ranks, like torch.distributed's broadcast_object_list
// and all_gather_object. Collective calls, blocking; errors as for tensors.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/group_argument.h"
#include "lockstep/core/plain_object.h"

namespace lockstep {

// Returns root's string on every rank; the other ranks' arguments are ignored.
std::string broadcast_object(std::string_view object, int root, GroupArgument group);
// Returns every rank's string, in rank order. Lengths may differ.
std::vector<std::string> all_gather_object(std::string_view object, GroupArgument group);

// nlohmann::json, or a type with the same interface.
template <class T>
concept JsonObject = requires(const T& object, const std::vector<std::uint8_t>& bytes) {
  { object.dump() } -> std::convertible_to<std::string>;
  object.flatten().items();
  { T::to_msgpack(object) } -> std::convertible_to<std::vector<std::uint8_t>>;
  { T::from_msgpack(bytes) } -> std::convertible_to<T>;
};

namespace detail {

// A JSON value as bytes, or the reason why it cannot be packed. Numbers keep their values, also NaN
// and infinity, which JSON's text cannot express.
std::string packed_json(const std::vector<std::uint8_t>& message);
std::string packed_fault(const std::string& place, const std::exception& fault);
// The bytes of packed_json(), which rank `from` passed. UsageError for bytes of packed_fault(), or
// of another type.
std::vector<std::uint8_t> unpacked_json(const std::string& bytes, int from,
                                        const ProcessGroup& group);
[[noreturn]] void refuse_json(const std::string& why, const ProcessGroup& group);
// UsageError if the sizes differ, because ranks used different types.
void check_object_size(std::size_t bytes, std::size_t expected, const ProcessGroup& group);

// The path of the first text in a JSON value that is not UTF-8, such as "/names/3".
template <class T>
std::string place_of_fault(const T& object) {
  const T flat = object.flatten();
  for (const auto& entry : flat.items()) {
    const std::string place = T(entry.key()).dump(-1, ' ', false, T::error_handler_t::replace);
    try {
      static_cast<void>(T{entry.key(), entry.value()}.dump());
    } catch (const std::exception&) {
      return place;
    }
  }
  return "an unknown place";
}

template <class T>
std::string packed(const T& object) {
  if constexpr (JsonObject<T>) {
    try {
      static_cast<void>(object.dump());
      return packed_json(T::to_msgpack(object));
    } catch (const std::exception& fault) {
      // All ranks throw it, so that none waits for this one.
      return packed_fault(place_of_fault(object), fault);
    }
  } else {
    return std::string(reinterpret_cast<const char*>(&object), sizeof object);
  }
}

// The object that rank `from` passed.
template <class T>
T unpacked(const std::string& bytes, int from, const ProcessGroup& group) {
  if constexpr (JsonObject<T>) {
    const std::vector<std::uint8_t> message = unpacked_json(bytes, from, group);
    try {
      return T::from_msgpack(message);
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

// Values arrive as they were passed. Text in JSON must be UTF-8: UsageError on every rank, which
// names the rank that passed other text; the group stays usable.
template <class T>
requires PlainObject<T> || JsonObject<T> T broadcast_object(const T& object, int root,
                                                            GroupArgument group) {
  const std::string own = group.get().rank() == root ? detail::packed(object) : "";
  return detail::unpacked<T>(broadcast_object(std::string_view(own), root, group), root,
                             group.get());
}

template <class T>
requires PlainObject<T> || JsonObject<T> std::vector<T> all_gather_object(const T& object,
                                                                          GroupArgument group) {
  const std::string own = detail::packed(object);
  std::vector<T> objects;
  for (const std::string& bytes : all_gather_object(std::string_view(own), group)) {
    const auto from = static_cast<int>(objects.size());
    objects.push_back(detail::unpacked<T>(bytes, from, group.get()));
  }
  return objects;
}

}  // namespace lockstep
