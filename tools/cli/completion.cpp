// SPDX-License-Identifier: BSD-3-Clause
// Prints completion scripts for bash, zsh and fish.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/cli/help.h"
#include "tools/cli/reference.h"

namespace lockstep::cli {
namespace {

std::string words(const std::vector<std::string>& words, const char* separator = " ") {
  return fmt::format("{}", fmt::join(words, separator));
}

std::vector<std::string> shown_subcommands(const ::CLI::App& app) {
  std::vector<std::string> names;
  for (const ::CLI::App* sub : app.get_subcommands(nullptr)) {
    if (!sub->get_group().empty()) names.push_back(sub->get_name());
  }
  return names;
}

// The first line of a description, up to its default, without what shells would interpret.
std::string in_one_line(const std::string& description) {
  std::string text;
  for (const char letter : description.substr(0, description.find('\n'))) {
    if (letter == '\'') {
      text += "\u2019";  // a typographic apostrophe
    } else if (std::string_view("\"`$[]\\").find(letter) == std::string_view::npos) {
      text += letter;
    }
  }
  text.resize(std::min(text.find(" (default"), text.size()));
  if (text.ends_with(':')) text.pop_back();
  return text;
}

// What can be typed where no value of an option is expected.
std::vector<std::string> candidates(const ::CLI::App& app) {
  std::vector<std::string> all = shown_subcommands(app);
  for (const ::CLI::Option* argument : positionals(app)) {
    for (const std::string& value : values_of(*argument)) all.push_back(value);
  }
  for (const ::CLI::Option* option : shown_options(app)) {
    for (const std::string& name : names_of(*option)) all.push_back(name);
  }
  return all;
}

std::string without_colons(std::string text) {
  std::ranges::replace(text, ':', ',');
  return text;
}

// What zsh offers for a value: ":N:", ":MODE:(single dp)" or ":FILE:_files".
std::string zsh_value(const ::CLI::Option& option, const std::string& name) {
  const std::vector<std::string> values = values_of(option);
  return fmt::format(":{}:{}", without_colons(name),
                     !values.empty()      ? "(" + words(values) + ")"
                     : takes_path(option) ? "_files"
                                          : "");
}

std::string zsh_function(const std::vector<std::string>& path) {
  std::string name = "_" + words(path, "_");
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string zsh_arguments(const ::CLI::App& app) {
  std::string lines;
  for (const ::CLI::Option* option : shown_options(app)) {
    const std::string value = value_name_of(*option);
    for (const std::string& name : names_of(*option)) {
      lines += fmt::format(" \\\n    '{}[{}]{}'", name, in_one_line(option->get_description()),
                           value.empty() ? "" : zsh_value(*option, value));
    }
  }
  for (const ::CLI::Option* argument : positionals(app)) {
    const std::string name = argument->get_name(true, false);
    lines +=
        fmt::format(" \\\n    '{}{}'", argument->get_required() ? ":" : "*:",
                    (argument->get_required() ? "" : ":") + zsh_value(*argument, name).substr(1));
  }
  return lines;
}

}  // namespace

std::string bash_completion(const ::CLI::App& app) {
  std::string paths;
  std::string values;
  std::string all;
  for_each_app(app, [&](const std::vector<std::string>& path, const ::CLI::App& at) {
    const std::string here = words(path);
    if (path.size() > 1) paths += fmt::format("{}\"{}\"", paths.empty() ? "" : " | ", here);
    for (const ::CLI::Option* option : shown_options(at)) {
      const std::vector<std::string> choices = values_of(*option);
      if (value_name_of(*option).empty()) continue;
      std::string pattern;
      for (const std::string& name : names_of(*option)) {
        pattern += fmt::format("{}\"{} {}\"", pattern.empty() ? "" : " | ", here, name);
      }
      values += choices.empty() ? fmt::format("    {}) return ;;\n", pattern)
                                : fmt::format("    {}) words=\"{}\" ;;\n", pattern, words(choices));
    }
    all += fmt::format("      \"{}\") words=\"{}\" ;;\n", here, words(candidates(at)));
  });
  return fmt::format(R"(# bash completion for lockstep
_lockstep() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}
  local path=lockstep words="" i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$path ${{COMP_WORDS[i]}}" in
      {}) path="$path ${{COMP_WORDS[i]}}" ;;
    esac
  done
  COMPREPLY=()
  # Where there is no word to offer, bash completes files.
  case "$path $previous" in
{}  esac
  if [[ -z $words ]]; then
    case $path in
{}    esac
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
complete -o default -F _lockstep lockstep
)",
                     paths, values, all);
}

std::string zsh_completion(const ::CLI::App& app) {
  std::string functions;
  for_each_app(app, [&](const std::vector<std::string>& path, const ::CLI::App& at) {
    const std::string function = zsh_function(path);
    if (shown_subcommands(at).empty()) {
      functions += fmt::format("{}() {{\n  _arguments -S{}\n}}\n\n", function, zsh_arguments(at));
      return;
    }
    std::string names;
    std::string calls;
    for (const ::CLI::App* sub : at.get_subcommands(nullptr)) {
      if (sub->get_group().empty()) continue;
      names += fmt::format("        '{}:{}'\n", sub->get_name(),
                           without_colons(in_one_line(sub->get_description())));
      std::vector<std::string> below = path;
      below.push_back(sub->get_name());
      calls += fmt::format("        {}) {} ;;\n", sub->get_name(), zsh_function(below));
    }
    functions += fmt::format(R"({}() {{
  local curcontext=$curcontext state line
  local -a subcommands
  _arguments -C{} \
    '1: :->subcommand' \
    '*:: :->rest'
  case $state in
    subcommand)
      subcommands=(
{}      )
      _describe subcommand subcommands ;;
    rest)
      case $words[1] in
{}      esac ;;
  esac
}}

)",
                             function, zsh_arguments(at), names, calls);
  });
  return "#compdef lockstep\n# zsh completion for lockstep\n\n" + functions + "_lockstep \"$@\"\n";
}

std::string fish_completion(const ::CLI::App& app) {
  std::string script = "# fish completion for lockstep\n";
  for_each_app(app, [&](const std::vector<std::string>& path, const ::CLI::App& at) {
    std::string seen = path.size() == 1 ? "__fish_use_subcommand" : "";
    for (std::size_t i = 1; i < path.size(); ++i) {
      seen += fmt::format("{}__fish_seen_subcommand_from {}", i == 1 ? "" : "; and ", path[i]);
    }
    const std::string start = fmt::format("complete -c lockstep -n '{}'", seen);
    for (const ::CLI::App* sub : at.get_subcommands(nullptr)) {
      if (sub->get_group().empty()) continue;
      script += fmt::format("{} -f -a {} -d '{}'\n", start, sub->get_name(),
                            in_one_line(sub->get_description()));
    }
    for (const ::CLI::Option* argument : positionals(at)) {
      const std::vector<std::string> values = values_of(*argument);
      if (!values.empty()) script += fmt::format("{} -f -a '{}'\n", start, words(values));
    }
    for (const ::CLI::Option* option : shown_options(at)) {
      std::string names;
      for (const std::string& name : option->get_snames()) names += " -s " + name;
      for (const std::string& name : option->get_lnames()) names += " -l " + name;
      const std::vector<std::string> values = values_of(*option);
      const bool is_flag = value_name_of(*option).empty();
      const std::string value = is_flag               ? ""
                                : !values.empty()     ? fmt::format(" -x -a '{}'", words(values))
                                : takes_path(*option) ? " -r -F"
                                                      : " -x";
      script += fmt::format("{}{}{} -d '{}'\n", start, names, value,
                            in_one_line(option->get_description()));
    }
  });
  return script;
}

}  // namespace lockstep::cli
