// SPDX-License-Identifier: BSD-3-Clause
// Reads integer variables, and refuses malformed ones with a UsageError.
#include "lockstep/core/environment.h"

#include <cctype>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// The Service whose port Kubernetes puts into the variable: "master" for MASTER_PORT.
std::string service_of(std::string_view variable) {
  std::string service(variable.substr(0, variable.rfind('_')));
  for (char& c : service) c = c == '_' ? '-' : static_cast<char>(std::tolower(c));
  return service;
}

std::string_view without_wrapping(std::string_view text) {
  constexpr std::string_view kAround = " \t\r\n\"'";
  const auto first = text.find_first_not_of(kAround);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kAround) + 1 - first);
}

// `number` is the part of `text` that must be a number.
int read_variable(const char* name, const std::string& text, std::string_view number,
                  const Range<int>& range) {
  if (const auto value = parse_number(number, range)) return *value;
  if (text.find("://") != std::string::npos && std::string_view(name).ends_with("_PORT")) {
    throw UsageError(fmt::format(
        "{}=\"{}\" in the environment is the address of a Kubernetes Service named \"{}\": "
        "Kubernetes sets such variables (service links) in every container of the Service's "
        "namespace. Set enableServiceLinks: false in the pod's spec, or rename the Service; then "
        "give {}, or unset it",
        name, text, service_of(name), in_words(range)));
  }
  if (parse_number(without_wrapping(number), range)) {
    throw UsageError(
        fmt::format("{}=\"{}\" in the environment has spaces or quotes around its number: give {} "
                    "without them (docker's --env-file keeps quotes), or unset it",
                    name, text, in_words(range)));
  }
  throw UsageError(fmt::format("{}=\"{}\" in the environment: give {}, or unset it", name, text,
                               in_words(range)));
}

}  // namespace

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int> environment_int(const char* name, const Range<int>& range) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  return read_variable(name, *text, *text, range);
}

std::optional<int> omp_num_threads() {
  constexpr const char* kName = "OMP_NUM_THREADS";
  const auto text = environment(kName);
  if (!text) return std::nullopt;
  return read_variable(kName, *text, text->substr(0, text->find(',')), kFrom1);
}

}  // namespace lockstep
