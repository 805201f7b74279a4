// SPDX-License-Identifier: BSD-3-Clause
// Public. Tells which types another process can read from their bytes.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <optional>
#include <ranges>
#include <type_traits>
#include <variant>

namespace lockstep {

namespace detail {

template <class T>
inline constexpr bool is_plain_object =
    std::is_trivially_copyable_v<T>&& std::default_initializable<T> && !std::is_pointer_v<T> &&
    !std::is_member_pointer_v<T> && !std::ranges::range<T>;

template <class T, std::size_t N>
inline constexpr bool is_plain_object<std::array<T, N>> = is_plain_object<T>;

template <class T>
inline constexpr bool is_plain_object<std::optional<T>> = is_plain_object<T>;

template <class... T>
inline constexpr bool is_plain_object<std::variant<T...>> = (is_plain_object<T> && ...);

}  // namespace detail

// A type whose bytes are its value, without pointers: numbers, enumerations, structs, and
// std::array, std::optional and std::variant of these. It has the same layout on every rank's
// machine. Other ranges are refused, since views only point to their elements. Pointers inside a
// struct cannot be seen, and must not be there.
template <class T>
concept PlainObject = detail::is_plain_object<T>;

}  // namespace lockstep
