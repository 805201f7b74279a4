// SPDX-License-Identifier: BSD-3-Clause
// Options that take numbers. Lockstep parses them itself, since versions of CLI11 differ in which
// numbers they accept and in their error messages.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "lockstep/core/number.h"

namespace lockstep::cli {

// How many ranks, machines or threads an option may ask for. No machine has more cores, and the
// product of two such counts fits an int.
constexpr Range<int> kCounts{1, 32'768};

// "-n,--nproc-per-node,--nproc_per_node" -> "--nproc-per-node"
inline std::string name_in_errors(const std::string& names) {
  const std::string from_first_long = names.substr(names.find("--"));
  return from_first_long.substr(0, from_first_long.find(','));
}

// Describes an option with one number in this range. Value is Number, or an optional of it. The
// value must outlive the parser. Parsing throws read_number's UsageError.
template <class Value, class Number>
::CLI::Option* add_number(::CLI::App& app, const std::string& names, Value& value,
                          const Range<Number>& range, const std::string& description) {
  const auto read = [&value, range, name = name_in_errors(names)](const std::string& text) {
    value = read_number(name, text, range);
  };
  auto* option = app.add_option_function<std::string>(names, read, description)->type_name("N");
  if constexpr (std::same_as<Value, Number>) option->default_str(fmt::format("{}", value));
  return option;
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

// The same with numbers.
template <class Number>
::CLI::Option* add_numbers(::CLI::App& app, const std::string& names, std::vector<Number>& values,
                           const Range<Number>& range, const std::string& description) {
  const auto read = [range, name = name_in_errors(names)](const std::string& text) {
    return read_number(name, text, range);
  };
  return add_list<Number>(app, names, values, read, description)->type_name("N,...");
}

}  // namespace lockstep::cli
