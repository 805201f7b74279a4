// SPDX-License-Identifier: BSD-3-Clause
// Writes the files of the reference, and prints man pages as roff.
#include "tools/cli/reference.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/file/whole_file.h"
#include "tools/cli/help.h"

namespace lockstep::cli {
namespace {

// Text for a line of roff: its dashes can be copied into a shell, and none of its characters is a
// command.
std::string in_roff(const std::string& text) {
  std::string escaped;
  for (const char letter : text) {
    const bool at_start = escaped.empty() || escaped.back() == '\n';
    if (at_start && (letter == '.' || letter == '\'')) escaped += "\\&";
    if (letter == '\\') {
      escaped += "\\e";
    } else if (letter == '-') {
      escaped += "\\-";
    } else {
      escaped += letter;
    }
  }
  return escaped;
}

// A description whose further lines are the items of a list.
std::string paragraph(const std::string& text) {
  std::string roff;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!roff.empty()) roff += ".br\n";
    const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
    roff += in_roff(line.substr(begin)) + "\n";
  }
  return roff;
}

std::string bold(const std::string& text) {
  return "\\fB" + in_roff(text) + "\\fR";
}

std::string italic(const std::string& text) {
  return "\\fI" + in_roff(text) + "\\fR";
}

std::string synopsis(const ::CLI::App& app, const std::string& command) {
  std::string line = bold(command) + " [" + italic("OPTIONS") + "]";
  for (const ::CLI::Option* argument : positionals(app)) {
    const std::string name = italic(argument->get_name(true, false));
    line += argument->get_required() ? " " + name : fmt::format(" [{}...]", name);
  }
  if (!app.get_subcommands(nullptr).empty()) line += " " + italic("SUBCOMMAND");
  return line + "\n";
}

std::string item(const std::string& head, const std::string& text) {
  return ".TP\n" + head + "\n" + paragraph(text);
}

std::string options(const ::CLI::App& app) {
  std::string roff;
  for (const ::CLI::Option* argument : positionals(app)) {
    roff += item(italic(argument->get_name(true, false)), argument->get_description());
  }
  for (const std::string& group : app.get_groups()) {
    std::string items;
    for (const ::CLI::Option* option : shown_options(app)) {
      if (option->get_group() != group) continue;
      std::string head;
      for (const std::string& name : names_of(*option)) {
        head += (head.empty() ? "" : ", ") + bold(name);
      }
      const std::string value = value_name_of(*option);
      items += item(value.empty() ? head : head + " " + italic(value), description_of(*option));
    }
    if (!items.empty()) roff += ".SS " + in_roff(group) + "\n" + items;
  }
  return roff;
}

// The lines of the footer, which are commands and their purposes.
std::string examples(const ::CLI::App& app) {
  std::istringstream lines(app.get_footer());
  std::string line;
  std::getline(lines, line);  // "Examples:"
  std::string roff = ".nf\n";
  while (std::getline(lines, line)) roff += in_roff(line) + "\n";
  return roff + ".fi\n";
}

std::string with_small_initial(std::string text) {
  if (!text.empty()) {
    text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  }
  return text;
}

void write(const std::filesystem::path& file, const std::string& text) {
  WholeFile whole(file);
  whole.write(text.data(), text.size());
  whole.commit();
}

}  // namespace

std::string man_page(const ::CLI::App& app, const std::string& version) {
  const bool is_whole = app.get_parent() == nullptr;
  const std::string command = is_whole ? app.get_name() : "lockstep " + app.get_name();
  std::string title = command;
  std::ranges::replace(title, ' ', '-');
  std::string capitals = title;
  std::ranges::transform(capitals, capitals.begin(), [](unsigned char letter) {
    return static_cast<char>(std::toupper(letter));
  });
  std::string summary = with_small_initial(app.get_description());
  if (summary.ends_with('.')) summary.pop_back();
  std::string page =
      fmt::format(".TH {} 1 \"\" \"Lockstep {}\" \"Lockstep\"\n.SH NAME\n{} \\- {}\n",
                  in_roff(capitals), version, in_roff(title), in_roff(summary));
  page += ".SH SYNOPSIS\n" + synopsis(app, command);
  const auto subcommands = app.get_subcommands(nullptr);
  if (!subcommands.empty()) {
    page += ".SH SUBCOMMANDS\n";
    for (const ::CLI::App* sub : subcommands) {
      if (!sub->get_group().empty()) page += item(bold(sub->get_name()), sub->get_description());
    }
  }
  page += ".SH OPTIONS\n" + options(app);
  if (!is_whole) {
    for (const ::CLI::App* sub : subcommands) {
      const std::string name = command + " " + sub->get_name();
      std::string heading = name.substr(std::string("lockstep ").size());
      page += ".SH " + in_roff(heading) + "\n" + synopsis(*sub, name) + options(*sub) +
              ".SS Examples\n" + examples(*sub);
    }
  }
  page += ".SH EXAMPLES\n" + examples(app) + ".SH SEE ALSO\n";
  std::string others;
  const ::CLI::App& whole = is_whole ? app : *app.get_parent();
  if (!is_whole) others = bold("lockstep") + "(1)";
  for (const ::CLI::App* verb : whole.get_subcommands(nullptr)) {
    if (verb == &app || verb->get_group().empty()) continue;
    others += (others.empty() ? "" : ",\n") + bold("lockstep-" + verb->get_name()) + "(1)";
  }
  return page + others + "\n";
}

void ReferenceCommand::describe(::CLI::App& app) {
  app.add_option("DIR", folder, "Existing folder for the files")->required();
  add_examples(app, {{"lockstep reference ~/.lockstep && source ~/.lockstep/lockstep.bash",
                      "Complete in this bash, without an installation"}});
}

void ReferenceCommand::run(const ::CLI::App& whole) const {
  const std::filesystem::path into(folder);
  write(into / "lockstep.bash", bash_completion(whole));
  write(into / "_lockstep", zsh_completion(whole));
  write(into / "lockstep.fish", fish_completion(whole));
  write(into / "lockstep.1", man_page(whole, LOCKSTEP_VERSION));
  for (const ::CLI::App* verb : whole.get_subcommands(nullptr)) {
    if (verb->get_group().empty()) continue;
    write(into / ("lockstep-" + verb->get_name() + ".1"), man_page(*verb, LOCKSTEP_VERSION));
  }
}

}  // namespace lockstep::cli
