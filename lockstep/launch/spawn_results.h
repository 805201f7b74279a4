// SPDX-License-Identifier: BSD-3-Clause
// Turns the result of a rank of spawn() into bytes, and back in the process that called it.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/core/plain_object.h"

namespace at {
class Tensor;
}

namespace lockstep {
namespace spawn_detail {

// Specialized for each type that a rank can return.
template <class T>
struct ResultBytes;

// join packs texts into one; split unpacks them.
std::string join(const std::vector<std::string>& texts);
std::vector<std::string> split(std::string_view joined);

// BackendError: the bytes are not a result of this type.
[[noreturn]] void refuse_bytes(std::size_t bytes, std::string_view expected);

}  // namespace spawn_detail

// A type that the function of spawn() can return: a PlainObject, std::string, at::Tensor, or a
// std::vector of these.
template <class T>
concept SpawnResult = requires {
  spawn_detail::ResultBytes<T>::unpack;
};

namespace spawn_detail {

template <>
struct ResultBytes<std::string> {
  static std::string pack(std::string text) { return text; }
  static std::string unpack(std::string bytes) { return bytes; }
};

template <PlainObject T>
struct ResultBytes<T> {
  static std::string pack(const T& object) {
    return std::string(reinterpret_cast<const char*>(&object), sizeof object);
  }
  static T unpack(const std::string& bytes) {
    if (bytes.size() != sizeof(T)) refuse_bytes(bytes.size(), std::to_string(sizeof(T)));
    T object;
    std::memcpy(&object, bytes.data(), sizeof object);
    return object;
  }
};

// Its functions are compiled with libtorch, so that this header does not need it.
template <>
struct ResultBytes<at::Tensor> {
  static std::string pack(const at::Tensor& tensor);
  static at::Tensor unpack(const std::string& bytes);
};

template <SpawnResult T>
struct ResultBytes<std::vector<T>> {
  static std::string pack(const std::vector<T>& list) {
    if constexpr (std::is_same_v<T, bool>) {
      return std::string(list.begin(), list.end());
    } else if constexpr (PlainObject<T>) {
      return std::string(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T));
    } else {
      std::vector<std::string> elements;
      for (const T& element : list) elements.push_back(ResultBytes<T>::pack(element));
      return join(elements);
    }
  }
  static std::vector<T> unpack(const std::string& bytes) {
    if constexpr (std::is_same_v<T, bool>) {
      return std::vector<bool>(bytes.begin(), bytes.end());
    } else if constexpr (PlainObject<T>) {
      if (bytes.size() % sizeof(T) != 0) {
        refuse_bytes(bytes.size(), "a multiple of " + std::to_string(sizeof(T)));
      }
      std::vector<T> list(bytes.size() / sizeof(T));
      if (!bytes.empty()) std::memcpy(list.data(), bytes.data(), bytes.size());
      return list;
    } else {
      std::vector<T> list;
      for (std::string& element : split(bytes)) {
        list.push_back(ResultBytes<T>::unpack(std::move(element)));
      }
      return list;
    }
  }
};

}  // namespace spawn_detail
}  // namespace lockstep
