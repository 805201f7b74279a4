// SPDX-License-Identifier: BSD-3-Clause
// The command's help, and what it shares with completion and man pages: the facts about an option.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// Gives the app, and the subcommands that are added later, help within the terminal's width.
void use_wrapped_help(::CLI::App& app);

struct Example {
  std::string command;
  // One line: "Train on two ranks".
  std::string purpose;
};

// Ends the app's help with examples.
void add_examples(::CLI::App& app, std::initializer_list<Example> examples);

// Ends the help of the whole command with examples.
void add_first_examples(::CLI::App& app);

// Describes `lockstep help [SUBCOMMAND...]`, which the program rewrites before it is parsed.
void describe_help(::CLI::App& app);

// Throws UsageError with a better text than the parser's: one that names the option and the value
// that it needs, the values that it takes, and the closest option or subcommand for a word that is
// unknown. It ends with the command whose help explains more.
[[noreturn]] void throw_complaint(const ::CLI::App& app, const ::CLI::ParseError& error);

// UsageError, as above, if a word stands where a subcommand is expected, and none has its name: the
// parser ignores that if it is asked for help.
void require_known_subcommand(const ::CLI::App& app, const ::CLI::ParseError& asked);

// The candidate that the word was meant to be: one that it begins, or that few edits make of it;
// empty if none is close.
std::string closest(const std::string& word, const std::vector<std::string>& candidates);

// The names of an option, with their dashes, the short ones first: "-n", "--nproc-per-node".
std::vector<std::string> names_of(const ::CLI::Option& option);
// What it does, and the options that it needs.
std::string description_of(const ::CLI::Option& option);
// The word for its value: "N", "FILE"; empty for a flag.
std::string value_name_of(const ::CLI::Option& option);
// The values from which the user chooses, as the option's check or its description lists them;
// empty if there is no such list.
std::vector<std::string> values_of(const ::CLI::Option& option);
// Whether the value is a file or a folder.
bool takes_path(const ::CLI::Option& option);
// The options and the positional arguments that help shows.
std::vector<const ::CLI::Option*> shown_options(const ::CLI::App& app);
std::vector<const ::CLI::Option*> positionals(const ::CLI::App& app);

// Calls the function for the app and for each shown subcommand at any depth, with the words that
// lead to it: "lockstep", "bench", "step".
void for_each_app(
    const ::CLI::App& app,
    const std::function<void(const std::vector<std::string>& words, const ::CLI::App&)>& function);

}  // namespace lockstep::cli
