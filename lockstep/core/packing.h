// SPDX-License-Identifier: BSD-3-Clause
// Packs values into bytes, one after another, and unpacks them in another process that runs the
// same version of Lockstep: what ranks, launchers and keepers tell each other.
//
// A number, a bool or an enumerator takes 8 bytes in this machine's byte order. A text is its
// length and its bytes; a vector is its length and its elements; an optional is a vector of at most
// one element; a pair is its two members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep {

template <class T>
concept PackedNumber = std::is_integral_v<T> || std::is_enum_v<T>;

class Packing {
 public:
  template <PackedNumber Number>
  void add(Number number) {
    const auto wide = static_cast<std::int64_t>(number);
    bytes_.append(reinterpret_cast<const char*>(&wide), sizeof wide);
  }
  void add(std::string_view text) {
    add(text.size());
    bytes_.append(text);
  }
  template <class Value>
  void add(const std::vector<Value>& values) {
    add(values.size());
    for (const Value& value : values) add(value);
  }
  template <class Value>
  void add(const std::optional<Value>& value) {
    add(value.has_value());
    if (value) add(*value);
  }
  template <class First, class Second>
  void add(const std::pair<First, Second>& pair) {
    add(pair.first);
    add(pair.second);
  }

  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

template <class... Values>
std::string pack(const Values&... values) {
  Packing packing;
  (packing.add(values), ...);
  return packing.take();
}

// Reads values back in the order in which they were packed. Throws BackendError if the bytes end
// too early, or if a number does not fit its type. Enumerators are not checked. The bytes must
// outlive this object and each std::string_view that it returns.
class Unpacking {
 public:
  explicit Unpacking(std::string_view bytes) : rest_(bytes) {}

  bool done() const { return rest_.empty(); }

  template <class Value>
  Value next() {
    Value value{};
    read(value);
    return value;
  }

  template <class... Values>
  void read_all(Values&... values) {
    (read(values), ...);
  }

 private:
  template <PackedNumber Number>
  void read(Number& number) {
    std::int64_t wide = 0;
    std::memcpy(&wide, take(sizeof wide).data(), sizeof wide);
    number = static_cast<Number>(wide);
    if (static_cast<std::int64_t>(number) != wide) {
      throw BackendError("a packed number does not fit its type");
    }
  }
  void read(std::string_view& text) { text = take(next<std::size_t>()); }
  void read(std::string& text) { text = next<std::string_view>(); }
  template <class Value>
  void read(std::vector<Value>& values) {
    // Each element takes a byte at least, so that a wrong length ends at the end of the bytes.
    for (auto left = next<std::size_t>(); left > 0; --left) values.push_back(next<Value>());
  }
  template <class Value>
  void read(std::optional<Value>& value) {
    if (next<bool>()) value = next<Value>();
  }
  template <class First, class Second>
  void read(std::pair<First, Second>& pair) {
    read(pair.first);
    read(pair.second);
  }

  std::string_view take(std::size_t length) {
    if (length > rest_.size()) throw BackendError("packed values end too early");
    const std::string_view taken = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return taken;
  }

  std::string_view rest_;
};

// Unpacks all values of the bytes. BackendError as from Unpacking, or if bytes are left.
template <class... Values>
void unpack(std::string_view bytes, Values&... values) {
  Unpacking packed(bytes);
  packed.read_all(values...);
  if (!packed.done()) throw BackendError("packed values are followed by other bytes");
}

}  // namespace lockstep
