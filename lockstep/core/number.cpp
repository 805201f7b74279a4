// SPDX-License-Identifier: BSD-3-Clause
// Parses with std::from_chars, for the three number types in use.
#include "lockstep/core/number.h"

#include <charconv>
#include <concepts>
#include <cstdint>

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {

template <class Number>
std::optional<Number> parse_number(std::string_view text, const Range<Number>& range) {
  Number value{};
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || end != last || !range.contains(value)) return std::nullopt;
  return value;
}

template <class Number>
std::string in_words(const Range<Number>& range) {
  return fmt::format("a {}number from {} to {}", std::integral<Number> ? "whole " : "", range.least,
                     range.most);
}

template <class Number>
Number read_number(std::string_view what, std::string_view text, const Range<Number>& range) {
  if (const auto value = parse_number(text, range)) return *value;
  throw UsageError(fmt::format("{} \"{}\": give {}", what, text, in_words(range)));
}

template std::optional<int> parse_number(std::string_view, const Range<int>&);
template std::optional<std::int64_t> parse_number(std::string_view, const Range<std::int64_t>&);
template std::optional<double> parse_number(std::string_view, const Range<double>&);
template std::string in_words(const Range<int>&);
template std::string in_words(const Range<std::int64_t>&);
template std::string in_words(const Range<double>&);
template int read_number(std::string_view, std::string_view, const Range<int>&);
template std::int64_t read_number(std::string_view, std::string_view, const Range<std::int64_t>&);
template double read_number(std::string_view, std::string_view, const Range<double>&);

}  // namespace lockstep
