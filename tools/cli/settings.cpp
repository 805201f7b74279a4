// SPDX-License-Identifier: BSD-3-Clause
// Rewrites settings as options.
#include "settings.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"

namespace lockstep::cli {
namespace {

constexpr std::string_view kSet = "--set";
// A recipe's options: those that decide what a training run learns. `compare` has not all of them.
constexpr std::array kKeys{
    "epochs",     "batch-size",       "global-batch-size", "lr", "scale-lr", "seed", "data",
    "curriculum", "curriculum-start", "curriculum-steps",  "amp"};

std::vector<std::string> keys_of(const ::CLI::App& app) {
  std::vector<std::string> keys;
  for (const std::string key : kKeys) {
    if (app.get_option_no_throw("--" + key) != nullptr) keys.push_back(key);
  }
  return keys;
}

std::string as_option(const std::string& setting, const ::CLI::App& app) {
  const std::size_t equals = setting.find('=');
  std::string key = setting.substr(0, equals);
  std::ranges::replace(key, '_', '-');
  const auto keys = keys_of(app);
  if (std::ranges::count(keys, key) == 0) {
    throw UsageError(fmt::format("--set \"{}\": there is no option \"{}\"; the options are {}",
                                 setting, key, fmt::join(keys, ", ")));
  }
  if (equals == std::string::npos || equals + 1 == setting.size()) {
    throw UsageError(fmt::format("--set \"{}\": give a value, as in --set lr=0.1", setting));
  }
  return fmt::format("--{}={}", key, setting.substr(equals + 1));
}

}  // namespace

void describe_settings(::CLI::App& app) {
  app.add_option("--set")
      ->description(
          fmt::format("Set one of the options {}; may be repeated", fmt::join(keys_of(app), ", ")))
      ->type_name("KEY=VALUE");
}

std::vector<std::string> expand_settings(const std::vector<std::string>& arguments,
                                         const ::CLI::App& app) {
  std::vector<std::string> expanded;
  for (auto argument = arguments.begin(); argument != arguments.end(); ++argument) {
    if (*argument == kSet && argument + 1 != arguments.end()) {
      expanded.push_back(as_option(*++argument, app));
    } else if (argument->starts_with(std::string(kSet) + "=")) {
      expanded.push_back(as_option(argument->substr(kSet.size() + 1), app));
    } else {
      expanded.push_back(*argument);
    }
  }
  return expanded;
}

}  // namespace lockstep::cli
