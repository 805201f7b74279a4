// SPDX-License-Identifier: BSD-3-Clause
// Help within the terminal's width, and what a mistyped word was meant to be.
#include "tools/cli/help.h"

#include <algorithm>
#include <sstream>

#include <gmock/gmock.h>

#include "lockstep/core/error.h"
#include "tools/cli/option_values.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Closest, FindsMistypedWords) {
  const std::vector<std::string> options{"--epochs", "--lr", "--seed", "--nproc-per-node"};
  EXPECT_EQ(cli::closest("--epoch", options), "--epochs");
  EXPECT_EQ(cli::closest("--epocsh", options), "--epochs");
  EXPECT_EQ(cli::closest("--nproc", options), "--nproc-per-node");
  EXPECT_EQ(cli::closest("--momentum", options), "");
  EXPECT_EQ(cli::closest("trian", {"run", "train"}), "train");
  EXPECT_EQ(cli::closest("fly", {"run", "new"}), "");
  EXPECT_EQ(cli::closest("", {"run"}), "");
}

struct SomeApp {
  SomeApp() {
    cli::use_wrapped_help(app);
    sub = app.add_subcommand("train", "Train a net");
    sub->add_option("RECIPE", text, "Recipe:\n  mlp: two layers\n  cnn: two convolutions")
        ->required();
    cli::choose_from(
        sub->add_option(
            "--mode", text,
            "Mode of training, with a text that is so long that it needs a second line"),
        {"single", "ddp"})
        ->group("Ranks");
    sub->add_option("--save", text, "File for the net")->type_name("FILE");
    sub->add_option("--endpoint", text, "Address")->type_name("HOST:PORT");
    sub->add_option("--internal", text, "")->group("");
    sub->add_flag("--json", json, "Print one object")->needs("--save");
    cli::add_examples(*sub, {{"some train mlp", "Train it"}});
  }

  std::string complaint(std::vector<std::string> words) {
    std::ranges::reverse(words);
    try {
      try {
        app.parse(words);
      } catch (const ::CLI::ParseError& error) {
        if (error.get_exit_code() != 0) cli::throw_complaint(app, error);
        cli::require_known_subcommand(app, error);
      }
    } catch (const UsageError& usage) {
      return usage.what();
    }
    return {};
  }

  ::CLI::App app{"Data-parallel training.", "some"};
  ::CLI::App* sub = nullptr;
  std::string text;
  bool json = false;
};

TEST(Help, IsInGroupsWithinTheWidthAndEndsWithExamples) {
  SomeApp some;
  const std::string help = some.sub->help();
  EXPECT_THAT(help, HasSubstr("\nRanks:\n  --mode {single,ddp}       Mode of training, with"));
  EXPECT_THAT(help, HasSubstr("\n                              mlp: two layers\n"));
  EXPECT_THAT(help, HasSubstr("\nOptions:\n  -h, --help"));
  EXPECT_THAT(help, HasSubstr("  --json                    Print one object; needs --save\n"));
  EXPECT_THAT(help, HasSubstr("  --save FILE               File for the net\n"));
  EXPECT_THAT(help, HasSubstr("Examples:\n  some train mlp\n      Train it\n"));
  EXPECT_THAT(help, Not(HasSubstr("--internal")));
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(Help, KnowsTheFactsOfAnOption) {
  SomeApp some;
  const auto option = [&](const char* name) -> const ::CLI::Option& {
    return *some.sub->get_option(name);
  };
  EXPECT_THAT(cli::values_of(option("--mode")), ElementsAre("single", "ddp"));
  EXPECT_THAT(cli::values_of(option("RECIPE")), ElementsAre("mlp", "cnn"));
  EXPECT_THAT(cli::values_of(option("--save")), ElementsAre());
  EXPECT_TRUE(cli::takes_path(option("--save")));
  EXPECT_FALSE(cli::takes_path(option("--mode")));
  EXPECT_EQ(cli::value_name_of(option("--json")), "");
  EXPECT_EQ(cli::value_name_of(option("--endpoint")), "HOST:PORT");
  EXPECT_THAT(cli::names_of(option("--help")), ElementsAre("-h", "--help"));
}

TEST(Complaint, NamesTheWordThatWasMeant) {
  EXPECT_EQ(SomeApp().complaint({"train", "--mod=ddp", "mlp"}),
            "there is no option --mod; did you mean --mode? (see lockstep train --help)");
  EXPECT_EQ(SomeApp().complaint({"train", "--velocity"}),
            "there is no option --velocity (see lockstep train --help)");
  EXPECT_THAT(SomeApp().complaint({"trian", "--help"}), HasSubstr("; did you mean train?"));
  EXPECT_EQ(SomeApp().complaint({"train", "--help"}), "");
  EXPECT_THAT(SomeApp().complaint({"trian"}),
              HasSubstr("there is no subcommand trian; did you mean train?"));
  EXPECT_THAT(SomeApp().complaint({"fly"}),
              HasSubstr("there is no subcommand fly; the subcommands are train ("));
}

TEST(Complaint, NamesTheOptionAndItsValues) {
  EXPECT_EQ(SomeApp().complaint({"train", "mlp", "--mode", "ddb"}),
            "--mode \"ddb\": give one of single, ddp; did you mean ddp?");
  EXPECT_EQ(SomeApp().complaint({"train", "mlp", "--mode", "sharded"}),
            "--mode \"sharded\": give one of single, ddp");
  EXPECT_EQ(SomeApp().complaint({"train", "mlp", "--save"}),
            "--save is given no value; write --save FILE (see lockstep train --help)");
  EXPECT_EQ(SomeApp().complaint({"train", "--save", "net.pt", "--json=maybe", "mlp"}),
            "--json is a flag; leave out its value, or give true or false (see lockstep train "
            "--help)");
  EXPECT_EQ(SomeApp().complaint({"train", "mlp", "cnn"}),
            "\"cnn\" is one argument too many; give RECIPE (see lockstep train --help)");
  EXPECT_EQ(SomeApp().complaint({"train"}),
            "RECIPE is required; give one of mlp, cnn (see lockstep train --help)");
}

}  // namespace
}  // namespace lockstep
