// SPDX-License-Identifier: BSD-3-Clause
// Man pages and completion know each option that the subcommands' help shows, and the programs that
// read them accept them.
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "support/program.h"
#include "support/skip_or_fail.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::Ended;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::run_to_end;

class Reference : public ::testing::Test {
 protected:
  Reference() {
    const Ended ended = run_to_end({LOCKSTEP_PROGRAM, "reference", folder_.path()});
    EXPECT_EQ(ended.code, 0) << ended.err;
  }

  std::string file(const std::string& name) const { return folder_.path() / name; }
  std::string text_of(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(file(name)).rdbuf();
    return text.str();
  }

 private:
  const testing::TemporaryFolder folder_;
};

std::string help_of(const std::string& verb) {
  const Ended ended =
      run_to_end({"sh", "-c", std::string(LOCKSTEP_PROGRAM) + " " + verb + " --help"});
  EXPECT_EQ(ended.code, 0) << verb << ended.err;
  return ended.out;
}

// The long options at the starts of lines.
std::set<std::string> options_in(const std::string& help) {
  std::set<std::string> options;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  -")) continue;
    const std::regex name("--[a-z][a-z0-9_-]*");
    const std::string names = line.substr(0, line.find("  ", 2));
    for (std::sregex_iterator it(names.begin(), names.end(), name), end; it != end; ++it) {
      options.insert(it->str());
    }
  }
  return options;
}

// The words below "Subcommands:".
std::vector<std::string> subcommands_in(const std::string& help) {
  std::vector<std::string> names;
  std::istringstream lines(help.substr(std::min(help.find("\nSubcommands:\n"), help.size())));
  std::string line;
  std::getline(lines, line);
  std::getline(lines, line);
  while (std::getline(lines, line) && line.starts_with("  ")) {
    if (line[2] != ' ') names.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  return names;
}

std::string in_roff(std::string text) {
  for (std::size_t at = 0; (at = text.find('-', at)) != std::string::npos; at += 2) {
    text.insert(at, "\\");
  }
  return text;
}

// The lines of a script that start with the text.
std::string lines_with(const std::string& script, const std::string& start) {
  std::string found;
  std::istringstream lines(script);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(start) != std::string::npos) found += line + "\n";
  }
  return found;
}

std::string function_in(const std::string& script, const std::string& name) {
  const std::size_t begin = script.find("\n" + name + "() {\n");
  if (begin == std::string::npos) return {};
  return script.substr(begin, script.find("\n}\n", begin) - begin);
}

TEST_F(Reference, HasEachOptionOfEachVerb) {
  const std::string bash = text_of("lockstep.bash");
  const std::string zsh = text_of("_lockstep");
  const std::string fish = text_of("lockstep.fish");
  const auto check = [&](const std::string& verb, const std::string& page) {
    std::string function = "_lockstep_" + verb;
    std::string seen = "__fish_seen_subcommand_from " + verb;
    for (char& letter : function) {
      if (letter == ' ' || letter == '-') letter = '_';
    }
    if (const auto space = verb.find(' '); space != std::string::npos) {
      seen = "__fish_seen_subcommand_from " + verb.substr(0, space) +
             "; and __fish_seen_subcommand_from " + verb.substr(space + 1);
    }
    const std::string in_bash = lines_with(bash, "\"lockstep " + verb + "\") words=");
    const std::string in_zsh = function_in(zsh, function);
    const std::string in_fish = lines_with(fish, "'" + seen + "'");
    const auto options = options_in(help_of(verb));
    EXPECT_THAT(options, Not(IsEmpty())) << verb;
    for (const std::string& option : options) {
      EXPECT_THAT(in_bash, ::testing::ContainsRegex(option + "[ \"]")) << verb;
      EXPECT_THAT(in_zsh, HasSubstr("'" + option + "[")) << verb;
      EXPECT_THAT(in_fish, HasSubstr(" -l " + option.substr(2) + " ")) << verb;
      EXPECT_THAT(page, HasSubstr("\\fB" + in_roff(option) + "\\fR")) << verb;
    }
  };
  const auto verbs = subcommands_in(help_of(""));
  EXPECT_THAT(verbs, ::testing::ElementsAre("new", "run", "resize", "train", "compare", "verify",
                                            "bench", "doctor", "checkpoint", "reference", "help"));
  for (const std::string& verb : verbs) {
    const std::string page = text_of("lockstep-" + verb + ".1");
    check(verb, page);
    for (const std::string& below : subcommands_in(help_of(verb))) check(verb + " " + below, page);
  }
}

TEST_F(Reference, SaysWhatAnOptionNeeds) {
  EXPECT_THAT(text_of("lockstep-train.1"), HasSubstr("; needs \\-\\-checkpoint\\-dir\n"));
}

TEST_F(Reference, OffersTheValuesOfOptions) {
  EXPECT_THAT(text_of("lockstep.bash"),
              HasSubstr("\"lockstep train --mode\") words=\"single dp ddp\" ;;"));
  EXPECT_THAT(text_of("_lockstep"), HasSubstr(":MODE:(single dp ddp)'"));
  EXPECT_THAT(text_of("_lockstep"), HasSubstr(":RECIPE:(linear mlp cnn"));
  EXPECT_THAT(text_of("lockstep.fish"), HasSubstr("-x -a 'single dp ddp'"));
}

TEST_F(Reference, CompletesInBash) {
  const auto completed = [&](const std::string& words) {
    const Ended ended = run_to_end(
        {"bash", "-c",
         "source \"$0\"; COMP_WORDS=(" + words +
             "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _lockstep; echo \"${COMPREPLY[@]}\"",
         file("lockstep.bash")});
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(ended.err, "");
    return ended.out;
  };
  EXPECT_EQ(completed("lockstep tr"), "train\n");
  EXPECT_EQ(completed("lockstep help tr"), "train\n");
  EXPECT_EQ(completed("lockstep train --ep"), "--epochs\n");
  EXPECT_EQ(completed("lockstep train --mode d"), "dp ddp\n");
  EXPECT_EQ(completed("lockstep train mlp --save n"), "\n");  // files
  EXPECT_EQ(completed("lockstep bench step --opt"), "--optimizer\n");
  EXPECT_EQ(completed("lockstep train resn"), "resnet18\n");
}

TEST_F(Reference, IsAcceptedByTheProgramsThatReadIt) {
  const Ended bash = run_to_end({"bash", "-n", file("lockstep.bash")});
  EXPECT_EQ(bash.code, 0) << bash.err;
  const auto is_there = [](const std::string& program) {
    return run_to_end({"sh", "-c", "command -v " + program}).code == 0;
  };
  if (is_there("zsh")) {
    EXPECT_EQ(run_to_end({"zsh", "-n", file("_lockstep")}).err, "");
  }
  if (is_there("fish")) {
    EXPECT_EQ(run_to_end({"fish", "-n", file("lockstep.fish")}).err, "");
  }
  for (const auto& entry : std::filesystem::directory_iterator(file(""))) {
    const std::string page = entry.path();
    if (!page.ends_with(".1")) continue;
    if (is_there("groff")) {
      const Ended shown = run_to_end({"groff", "-man", "-Tutf8", "-ww", page});
      EXPECT_EQ(shown.err, "") << page;
      EXPECT_THAT(shown.out, HasSubstr("lockstep")) << page;
    }
    if (is_there("mandoc")) {
      EXPECT_EQ(run_to_end({"mandoc", "-Tlint", "-Werror", page}).code, 0) << page;
    }
  }
}

}  // namespace
}  // namespace lockstep
