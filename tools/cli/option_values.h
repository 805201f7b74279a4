// SPDX-License-Identifier: BSD-3-Clause
// Options whose values Lockstep parses itself: numbers, since versions of CLI11 differ in which
// ones they accept and in their error messages, words from a list, lists and paths.
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"
#include "lockstep/core/number.h"
#include "tools/cli/help.h"

namespace lockstep::cli {

// Numbers of ranks, machines or threads. No machine has more cores, and the product of two such
// numbers fits an int.
constexpr Range<int> kCounts{1, 32'768};

// "-n,--nproc-per-node,--nproc_per_node" -> "--nproc-per-node"
inline std::string name_in_errors(const std::string& names) {
  const std::string from_first_long = names.substr(names.find("--"));
  return from_first_long.substr(0, from_first_long.find(','));
}

// Describes an option with one number in this range, which `set` gets. Parsing throws read_number's
// UsageError.
template <class Number>
::CLI::Option* add_number_to(::CLI::App& app, const std::string& names,
                             const std::function<void(Number)>& set, const Range<Number>& range,
                             const std::string& description) {
  const auto read = [set, range, name = name_in_errors(names)](const std::string& text) {
    set(read_number(name, text, range));
  };
  return app.add_option_function<std::string>(names, read, description)->type_name("N");
}

// Stores the number in `value`, a Number or an optional of it, which must outlive the parser.
template <class Value, class Number>
::CLI::Option* add_number(::CLI::App& app, const std::string& names, Value& value,
                          const Range<Number>& range, const std::string& description) {
  return add_number_to<Number>(
      app, names, [&value](Number number) { value = number; }, range, description);
}

// Lets an option take these values only, which help and completion list. Parsing throws a
// UsageError that lists them, and names the closest.
inline ::CLI::Option* choose_from(::CLI::Option* option, const std::vector<std::string>& values) {
  const auto check = [values, name = name_in_errors(option->get_name())](const std::string& text) {
    if (std::ranges::find(values, text) != values.end()) return std::string();
    const std::string meant = closest(text, values);
    throw UsageError(fmt::format("{} \"{}\": give one of {}{}", name, text, fmt::join(values, ", "),
                                 meant.empty() ? "" : fmt::format("; did you mean {}?", meant)));
  };
  return option->check(::CLI::Validator(check, fmt::format("{{{}}}", fmt::join(values, ","))));
}

// Describes an option with a path, which must outlive the parser.
inline ::CLI::Option* add_path(::CLI::App& app, const std::string& names,
                               std::optional<std::filesystem::path>& path,
                               const std::string& description) {
  return app.add_option_function<std::string>(
      names, [&path](const std::string& text) { path = text; }, description);
}

// Describes an option with several values, separated by commas or spaces, each parsed by the
// function `read`. CLI11's own delimiter would drop empty values.
template <class Value>
::CLI::Option* add_list(::CLI::App& app, const std::string& names, std::vector<Value>& values,
                        const std::function<Value(const std::string&)>& read,
                        const std::string& description) {
  const auto read_all = [&values, read](const std::vector<std::string>& texts) {
    values.clear();
    for (const std::string& text : texts) {
      for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
        end = text.find(',', begin);
        values.push_back(read(text.substr(begin, end - begin)));
      }
    }
  };
  return app.add_option_function<std::vector<std::string>>(names, read_all, description);
}

// Describes an option with several numbers.
template <class Number>
::CLI::Option* add_numbers(::CLI::App& app, const std::string& names, std::vector<Number>& values,
                           const Range<Number>& range, const std::string& description) {
  const auto read = [range, name = name_in_errors(names)](const std::string& text) {
    return read_number(name, text, range);
  };
  return add_list<Number>(app, names, values, read, description)->type_name("N,...");
}

}  // namespace lockstep::cli
