// SPDX-License-Identifier: BSD-3-Clause
// Parses numbers that people write in options and environment variables. Strict: a decimal number
// with nothing around it; no overflow, infinity or nan.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// Includes both ends. Number is int, std::int64_t or double.
template <class Number>
struct Range {
  Number least;
  Number most;

  // False for nan.
  constexpr bool contains(Number value) const { return value >= least && value <= most; }
};

// nullopt unless the whole text is a number in the range.
template <class Number>
std::optional<Number> parse_number(std::string_view text, const Range<Number>& range);

// "a whole number from 1 to 65535"
template <class Number>
std::string in_words(const Range<Number>& range);

// Like parse_number, but throws UsageError for everything else: `--epochs "ten": give a whole
// number from 1 to 1000`, where `what` is --epochs.
template <class Number>
Number read_number(std::string_view what, std::string_view text, const Range<Number>& range);

}  // namespace lockstep
