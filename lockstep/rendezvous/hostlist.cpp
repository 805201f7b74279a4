// SPDX-License-Identifier: BSD-3-Clause
// Reads the whole list, and expands its first hosts.
#include "lockstep/rendezvous/hostlist.h"

#include <cstdint>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/number.h"

namespace lockstep {
namespace {

constexpr std::string_view kSeparators = ", \t\n";
constexpr std::size_t kLongestName = 255;
constexpr const char* kTooLong = "a name is longer than host names may be";
constexpr Range<std::int64_t> kNumbers{0, std::numeric_limits<std::int64_t>::max() - 1};

// "007-012"; a single number is a range of one.
struct NumberRange {
  std::int64_t first;
  std::int64_t last;
  int digits;
};

// Text, then a set; the last part of a name may have no set.
struct NamePart {
  std::string text;
  std::vector<NumberRange> set;
};

class HostList {
 public:
  explicit HostList(std::string_view list) : list_(list) {}

  std::vector<std::string> expand(std::size_t at_most) {
    at_most_ = at_most;
    bool any = false;
    for (std::string_view rest = list_; !rest.empty();) {
      const std::size_t end = end_of_name(rest);
      if (end > 0) {
        any = true;
        parts_ = read_name(rest.substr(0, end));
        add_hosts(0, "");
      }
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    if (!any) refuse("it has no host");
    return std::move(hosts_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    // Hostile lists are long.
    constexpr std::size_t kShown = 200;
    throw UsageError(fmt::format(
        "\"{}{}\" is not a list of hosts as Slurm writes them (node[01-04,07],other): {}",
        list_.substr(0, kShown), list_.size() > kShown ? "..." : "", why));
  }

  // Up to the first separator outside brackets.
  static std::size_t end_of_name(std::string_view rest) {
    bool inside = false;
    for (std::size_t i = 0; i < rest.size(); ++i) {
      if (rest[i] == '[') inside = true;
      if (rest[i] == ']') inside = false;
      if (!inside && kSeparators.find(rest[i]) != std::string_view::npos) return i;
    }
    return rest.size();
  }

  std::vector<NamePart> read_name(std::string_view name) const {
    std::vector<NamePart> parts;
    std::size_t length = 0;
    while (!name.empty()) {
      const std::size_t open = name.find('[');
      NamePart part{std::string(name.substr(0, open)), {}};
      if (part.text.find(']') != std::string::npos) refuse("a ] has no [ before it");
      name.remove_prefix(part.text.size());
      length += part.text.size();
      if (!name.empty()) {
        const std::size_t close = name.find(']');
        if (close == std::string_view::npos) refuse("a [ has no ] behind it");
        part.set = read_set(name.substr(1, close - 1));
        name.remove_prefix(close + 1);
        length += 1;
      }
      if (length > kLongestName) refuse(kTooLong);
      parts.push_back(std::move(part));
    }
    return parts;
  }

  std::vector<NumberRange> read_set(std::string_view set) const {
    std::vector<NumberRange> ranges;
    while (true) {
      const std::size_t comma = set.find(',');
      ranges.push_back(read_range(set.substr(0, comma)));
      if (comma == std::string_view::npos) return ranges;
      set.remove_prefix(comma + 1);
    }
  }

  NumberRange read_range(std::string_view range) const {
    const std::size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const auto first = parse_number(low, kNumbers);
    const auto last =
        dash == std::string_view::npos ? first : parse_number(range.substr(dash + 1), kNumbers);
    if (!first || !last || *first > *last || low.size() > kLongestName) {
      refuse(fmt::format("\"{}\" is neither a number nor a range such as 01-04",
                         range.substr(0, kLongestName)));
    }
    return {*first, *last, static_cast<int>(low.size())};
  }

  // Adds each name that begins with `name` and continues with the parts from this one. Parts are
  // fewer than the characters of a name.
  void add_hosts(std::size_t number, const std::string& name) {
    if (hosts_.size() >= at_most_) return;
    if (number == parts_.size()) {
      if (name.size() > kLongestName) refuse(kTooLong);
      hosts_.push_back(name);
      return;
    }
    const NamePart& part = parts_[number];
    if (part.set.empty()) add_hosts(number + 1, name + part.text);
    for (const NumberRange& range : part.set) {
      for (auto i = range.first; i <= range.last && hosts_.size() < at_most_; ++i) {
        add_hosts(number + 1, fmt::format("{}{}{:0{}}", name, part.text, i, range.digits));
      }
    }
  }

  std::string_view list_;
  std::size_t at_most_ = 0;
  std::vector<NamePart> parts_;
  std::vector<std::string> hosts_;
};

}  // namespace

std::vector<std::string> expand_hostlist(std::string_view list, std::size_t at_most) {
  return HostList(list).expand(at_most);
}

}  // namespace lockstep
