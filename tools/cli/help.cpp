// SPDX-License-Identifier: BSD-3-Clause
// Lays out help, and finds what a mistyped word was meant to be.
#include "tools/cli/help.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"
#include "tools/cli/programs.h"
#include "tools/report/text_table.h"

namespace lockstep::cli {
namespace {

constexpr std::size_t kTextColumn = 28;
// Longer lines are hard to read, however wide the terminal is.
constexpr int kMostColumns = 100;
constexpr const char* kDefaultGroup = "Options";

int help_columns() {
  return std::min(text_columns(), kMostColumns);
}

// "  --epochs N                Number of epochs", with the text below if the names are long.
std::string entry(const std::string& names, const std::string& text) {
  std::string line = "  " + names;
  if (line.size() + 2 <= kTextColumn) {
    line.resize(kTextColumn, ' ');
  } else {
    line += '\n' + std::string(kTextColumn, ' ');
  }
  return line + wrapped(text, kTextColumn, help_columns()) + '\n';
}

class WrappedHelp : public ::CLI::Formatter {
 public:
  std::string make_description(const ::CLI::App* app) const override {
    const std::string text = app->get_description();
    return text.empty() ? "" : wrapped(text, 0, help_columns()) + "\n\n";
  }

  std::string make_option(const ::CLI::Option* option, bool is_positional) const override {
    if (is_positional) return entry(option->get_name(true, false), option->get_description());
    std::string names;
    for (const std::string& name : names_of(*option)) {
      names += (names.empty() ? "" : ", ") + name;
    }
    const std::string value = value_name_of(*option);
    return entry(value.empty() ? names : names + " " + value, description_of(*option));
  }

  std::string make_help(const ::CLI::App* app, std::string name,
                        ::CLI::AppFormatMode mode) const override {
    return make_description(app) + make_usage(app, name) + make_positionals(app) + groups(*app) +
           make_subcommands(app, mode) + "\n" + make_footer(app);
  }

  std::string make_subcommand(const ::CLI::App* sub) const override {
    return entry(sub->get_name(), sub->get_description());
  }

 private:
  // The options in their groups; the group of --help comes last.
  std::string groups(const ::CLI::App& app) const {
    std::vector<std::string> groups = app.get_groups();
    std::ranges::stable_partition(groups,
                                  [](const std::string& name) { return name != kDefaultGroup; });
    std::string text;
    for (const std::string& group : groups) {
      std::string entries;
      for (const ::CLI::Option* option : shown_options(app)) {
        if (option->get_group() == group) entries += make_option(option, false);
      }
      if (!entries.empty()) text += fmt::format("\n{}:\n{}", group, entries);
    }
    return text;
  }
};

std::vector<std::string> option_names(const ::CLI::App& app) {
  std::vector<std::string> names;
  for (const ::CLI::Option* option : shown_options(app)) {
    for (const std::string& name : names_of(*option)) names.push_back(name);
  }
  return names;
}

std::vector<std::string> subcommand_names(const ::CLI::App& app) {
  std::vector<std::string> names;
  for (const ::CLI::App* sub : app.get_subcommands(nullptr)) names.push_back(sub->get_name());
  return names;
}

// The number of insertions, deletions, substitutions and swaps of neighbours between two words.
std::size_t edit_distance(const std::string& one, const std::string& other) {
  std::vector<std::vector<std::size_t>> distance(one.size() + 1,
                                                 std::vector<std::size_t>(other.size() + 1));
  for (std::size_t i = 0; i <= one.size(); ++i) distance[i][0] = i;
  std::iota(distance[0].begin(), distance[0].end(), 0);
  for (std::size_t i = 1; i <= one.size(); ++i) {
    for (std::size_t j = 1; j <= other.size(); ++j) {
      const std::size_t substituted = one[i - 1] == other[j - 1] ? 0 : 1;
      distance[i][j] = std::min(
          {distance[i - 1][j] + 1, distance[i][j - 1] + 1, distance[i - 1][j - 1] + substituted});
      if (i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1]) {
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
      }
    }
  }
  return distance.back().back();
}

// Names the closest word, or else all of them if they are `listed`.
std::string unknown(const char* what, const std::string& word,
                    const std::vector<std::string>& known, bool listed) {
  const std::string meant = closest(word, known);
  std::string text = fmt::format("there is no {} {}", what, word);
  if (!meant.empty()) return text + fmt::format("; did you mean {}?", meant);
  return listed ? text + fmt::format("; the {}s are {}", what, fmt::join(known, ", ")) : text;
}

// The first option that a message of the parser names: "--epochs: 1 required N missing".
const ::CLI::Option* option_in(const ::CLI::App& app, const std::string& message) {
  std::istringstream words(message);
  for (std::string word; words >> word;) {
    if (word.ends_with(':')) word.pop_back();
    if (const ::CLI::Option* option = app.get_option_no_throw(word)) return option;
  }
  return nullptr;
}

std::string one_of(const ::CLI::Option& option) {
  const std::vector<std::string> values = values_of(option);
  return values.empty() ? "" : fmt::format("; give one of {}", fmt::join(values, ", "));
}

std::string too_many(const ::CLI::App& app, const std::string& word) {
  std::string taken;
  for (const ::CLI::Option* argument : positionals(app)) {
    taken += " " + argument->get_name(true, false);
  }
  return fmt::format("\"{}\" is one argument too many; {}", word,
                     taken.empty() ? "there are only options" : "give" + taken);
}

// The parser's complaint in our words. `app` is the subcommand that was given, and `left` are the
// words that it could not use.
std::string in_our_words(const ::CLI::App& app, const std::vector<std::string>& left,
                         const ::CLI::ParseError& error) {
  const std::vector<std::string> subcommands = subcommand_names(app);
  const auto unknown_option =
      std::ranges::find_if(left, [](const std::string& word) { return word.starts_with('-'); });
  if (unknown_option != left.end()) {
    return unknown("option", unknown_option->substr(0, unknown_option->find('=')),
                   option_names(app), false);
  }
  if (!left.empty()) {
    return subcommands.empty() ? too_many(app, left.front())
                               : unknown("subcommand", left.front(), subcommands, true);
  }
  const std::string what = error.what();
  const ::CLI::Option* option = option_in(app, what);
  if (dynamic_cast<const ::CLI::RequiredError*>(&error) != nullptr) {
    if (option != nullptr) return what + one_of(*option);
    if (!subcommands.empty()) {
      return fmt::format("a subcommand is required; give one of {}", fmt::join(subcommands, ", "));
    }
  }
  if (option == nullptr) return what;
  if (dynamic_cast<const ::CLI::ArgumentMismatch*>(&error) != nullptr) {
    return fmt::format("{} is given no value; write {} {}{}", option->get_name(),
                       option->get_name(), value_name_of(*option), one_of(*option));
  }
  const bool is_flag = value_name_of(*option).empty();
  if (is_flag && dynamic_cast<const ::CLI::ConversionError*>(&error) != nullptr) {
    return fmt::format("{} is a flag; leave out its value, or give true or false",
                       option->get_name());
  }
  return what;
}

}  // namespace

void use_wrapped_help(::CLI::App& app) {
  app.formatter(std::make_shared<WrappedHelp>());
}

void add_examples(::CLI::App& app, std::initializer_list<Example> examples) {
  std::string text = "Examples:";
  for (const Example& example : examples) {
    text += fmt::format("\n  {}\n      {}", example.command, example.purpose);
  }
  app.footer(text);
}

void add_first_examples(::CLI::App& app) {
  add_examples(app, {{"lockstep help train", "Read about a subcommand"},
                     {"lockstep train mlp --ranks 2", "Train a first net on two ranks"}});
}

void describe_help(::CLI::App& app) {
  std::string verbs = "Subcommand to explain:";
  for (const Verb& verb : kVerbs) verbs += fmt::format("\n  {}: {}", verb.name, verb.summary);
  app.add_option("SUBCOMMAND")->description(verbs);
  add_examples(app, {{"lockstep help train", "Read about a subcommand"},
                     {"lockstep help bench step", "Read about one below it"}});
}

void throw_complaint(const ::CLI::App& app, const ::CLI::ParseError& error) {
  const ::CLI::App* deepest = &app;
  std::string command = "lockstep";
  while (!deepest->get_subcommands().empty()) {
    deepest = deepest->get_subcommands().front();
    command += " " + deepest->get_name();
  }
  throw UsageError(fmt::format("{} (see {} --help)",
                               in_our_words(*deepest, app.remaining(true), error), command));
}

void require_known_subcommand(const ::CLI::App& app, const ::CLI::ParseError& asked) {
  const ::CLI::App* deepest = &app;
  while (!deepest->get_subcommands().empty()) deepest = deepest->get_subcommands().front();
  const std::vector<std::string> left = app.remaining(true);
  if (left.empty() || left.front().starts_with('-')) return;
  if (!subcommand_names(*deepest).empty()) throw_complaint(app, asked);
}

std::string closest(const std::string& word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kFewestLetters = 3;
  std::string best;
  std::size_t least = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const bool begins = word.size() >= kFewestLetters + 2 && candidate.starts_with(word);
    const std::size_t distance = begins ? 1 : edit_distance(word, candidate);
    if (distance >= least) continue;
    least = distance;
    best = candidate;
  }
  return best;
}

std::vector<std::string> names_of(const ::CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string description_of(const ::CLI::Option& option) {
  std::string text = option.get_description();
  for (const ::CLI::Option* needed : option.get_needs()) {
    text += fmt::format("; needs {}", needed->get_name());
  }
  return text;
}

std::string value_name_of(const ::CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};
  const std::string type = option.get_type_name();
  // The check's list of values follows.
  const std::size_t colon = type.find(":{");
  // "TEXT" is the parser's word for an option without one.
  const bool is_named = type.substr(0, colon) != "TEXT";
  return is_named || colon == std::string::npos ? type.substr(0, colon) : type.substr(colon + 1);
}

std::vector<std::string> values_of(const ::CLI::Option& option) {
  std::vector<std::string> values;
  const auto add_each = [&](std::string_view text, char at) {
    while (!text.empty()) {
      values.emplace_back(text.substr(0, text.find(at)));
      text.remove_prefix(std::min(text.size(), values.back().size() + 1));
    }
  };
  const std::string type = option.get_type_name();
  const std::size_t begin = type.find('{');
  if (begin != std::string::npos) {
    add_each(std::string_view(type).substr(begin + 1, type.find('}') - begin - 1), ',');
    return values;
  }
  // "Recipe to train:\n  linear: a line fitted by SGD", a line for each.
  const std::string text = option.get_description();
  for (std::size_t at = text.find("\n  "); at != std::string::npos;
       at = text.find("\n  ", at + 1)) {
    const std::size_t colon = text.find(':', at);
    if (colon != std::string::npos) values.push_back(text.substr(at + 3, colon - at - 3));
  }
  return values;
}

bool takes_path(const ::CLI::Option& option) {
  const std::string name =
      option.get_positional() ? option.get_name(true, false) : value_name_of(option);
  return name.starts_with("FILE") || name == "DIR" || name == "PATH" || name == "OUTPUT" ||
         name == "SECOND" || name == "PROGRAM";
}

std::vector<const ::CLI::Option*> shown_options(const ::CLI::App& app) {
  return app.get_options([](const ::CLI::Option* option) {
    return option->nonpositional() && !option->get_group().empty();
  });
}

std::vector<const ::CLI::Option*> positionals(const ::CLI::App& app) {
  return app.get_options([](const ::CLI::Option* option) { return option->get_positional(); });
}

void for_each_app(
    const ::CLI::App& app,
    const std::function<void(const std::vector<std::string>& words, const ::CLI::App&)>& function) {
  std::vector<std::string> words;
  const std::function<void(const ::CLI::App&)> visit = [&](const ::CLI::App& visited) {
    if (visited.get_group().empty()) return;
    words.push_back(visited.get_name());
    function(words, visited);
    for (const ::CLI::App* sub : visited.get_subcommands(nullptr)) visit(*sub);
    words.pop_back();
  };
  visit(app);
}

}  // namespace lockstep::cli
