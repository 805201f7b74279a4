// SPDX-License-Identifier: BSD-3-Clause
// Lines, logs and reports made from the output of ranks.
#include "lockstep/launch/rank_output.h"

#include <fstream>
#include <sstream>

#include "support/private_tmpdir.h"
#include "support/process_table.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Collected {
  RankOutput::Sink sink() {
    return [this](const OutputPart& part) {
      lines.push_back((part.line.stream == OutputStream::out ? "out:" : "err:") +
                      std::string(part.line.text) + (part.ends_line ? "" : "..."));
    };
  }
  std::vector<std::string> lines;
};

TEST(RankOutput, JoinsPiecesToLines) {
  Collected collected;
  RankOutput output(3, collected.sink(), "");
  output.add(OutputStream::out, "on");
  output.add(OutputStream::err, "other\nstr");
  output.add(OutputStream::out, "e\n\ntwo\nrest");
  output.add(OutputStream::err, "eam\n");
  output.finish(OutputStream::out);
  output.finish(OutputStream::err);
  EXPECT_THAT(collected.lines,
              ElementsAre("err:other", "out:one", "out:", "out:two", "err:stream", "out:rest"));
}

TEST(RankOutput, PassesAnUnfinishedLineOnAfterAMoment) {
  Collected collected;
  RankOutput output(0, collected.sink(), "");
  output.add(OutputStream::out, "one");
  output.pass_on_unfinished(OutputStream::out);
  EXPECT_THAT(collected.lines, IsEmpty()) << "its rest may be on its way";
  ASSERT_TRUE(output.next_unfinished());
  EXPECT_TRUE(testing::eventually([&] { return output.next_unfinished()->passed(); }));
  output.pass_on_unfinished(OutputStream::out);
  EXPECT_FALSE(output.next_unfinished());
  output.add(OutputStream::out, "two\nthree");
  output.finish(OutputStream::out);
  EXPECT_THAT(collected.lines, ElementsAre("out:one...", "out:two", "out:three"));
  EXPECT_THAT(output.last_lines(), ElementsAre("onetwo", "three"));
}

TEST(RankOutput, RemembersWhatAProgressBarShowsLast) {
  RankOutput output(0, {}, "");
  for (int i = 0; i < 1000; ++i) {
    output.add(OutputStream::err, "\rstep " + std::to_string(i) + " of many");
  }
  output.add(OutputStream::err, "\r\ndone\r\n");
  EXPECT_THAT(output.last_lines(), ElementsAre("step 999 of many", "done"));
}

TEST(LineMixer, EndsALineForAnotherWriter) {
  LineMixer mixer;
  EXPECT_EQ(mixer.end_line(), "");
  EXPECT_EQ(mixer.add(0, "[0] ", "whole", true), "[0] whole\n");
  EXPECT_EQ(mixer.add(0, "[0] ", "begun", false), "[0] begun");
  EXPECT_EQ(mixer.add(0, "[0] ", " and", false), " and");
  EXPECT_EQ(mixer.add(1, "[1] ", "other", true), "\n[1] other\n");
  EXPECT_EQ(mixer.add(0, "[0] ", " ended", true), "[0]  ended\n");
  EXPECT_EQ(mixer.add(0, "[0] ", "", true), "[0] \n");
  EXPECT_EQ(mixer.add(1, "[1] ", "begun", false), "[1] begun");
  EXPECT_EQ(mixer.end_line(), "\n");
  EXPECT_EQ(mixer.end_line(), "");
}

TEST(LineMixer, RepeatsThePrefixWhereALineIsDrawnAgain) {
  LineMixer mixer;
  EXPECT_EQ(mixer.add(0, "[0] ", "\r1 %", false), "\r[0] 1 %");
  EXPECT_EQ(mixer.add(0, "[0] ", "\r", false), "\r");
  EXPECT_EQ(mixer.add(0, "[0] ", "2 %\r", true), "[0] 2 %\r\n");
  EXPECT_EQ(mixer.add(0, "", "\r1\r\r2\r", true), "\r1\r\r2\r\n") << "without a prefix, nothing";
}

TEST(RankOutput, RemembersTheLastLinesWithinBounds) {
  RankOutput output(0, {}, "");
  for (int i = 0; i < 100; ++i) output.add(OutputStream::out, std::to_string(i) + "\n");
  output.add(OutputStream::err, std::string(5000, 'x') + "\n");
  const auto lines = output.last_lines();
  ASSERT_EQ(lines.size(), RankOutput::kRememberedLines);
  EXPECT_EQ(lines.front(), "81");
  EXPECT_EQ(lines.back(), std::string(RankOutput::kRememberedLineBytes, 'x'));
}

TEST(RankOutput, RemembersNoStackTraceOfLibtorchs) {
  Collected collected;
  RankOutput output(0, collected.sink(), "");
  output.add(OutputStream::out, "frame #1 of the video\n");
  output.add(OutputStream::err,
             "train: sizes do not match\nException raised from check at ../a.cpp:1 (most recent "
             "call first):\n");
  for (int i = 0; i < 60; ++i) {
    output.add(OutputStream::err, "frame #" + std::to_string(i) + ": f() + 0x1 (0x7f in a.so)\n");
    output.add(OutputStream::out, i == 30 ? "frame #2 of the video\n" : "");
  }
  output.add(OutputStream::err, "\n");
  EXPECT_THAT(output.last_lines(), ElementsAre("frame #1 of the video", "train: sizes do not match",
                                               "frame #2 of the video", ""));
  EXPECT_EQ(collected.lines.size(), 65u) << "the screen has them";
  EXPECT_EQ(without_stack_trace("one\ntwo\nException raised from f at a.cpp:1 (most recent call "
                                "first):\nframe #0: f()\nframe #1: g()\nthree"),
            "one\ntwo\nthree");
}

TEST(StackTraceFilter, KnowsEveryFormOfLibtorchs) {
  EXPECT_EQ(without_stack_trace("[enforce fail at alloc.cpp:1] err == 0. no memory\n"
                                "frame #0: c10::ThrowEnforceNotMet() + 0x74 (0x7f in a.so)\n"
                                "frame #1: <unknown function> + 0x3 (0x7f in b.so)\nadvice"),
            "[enforce fail at alloc.cpp:1] err == 0. no memory\nadvice");
  EXPECT_EQ(without_stack_trace("sizes\nException raised from f at a.cpp:1 (most recent call "
                                "first):\nC++ CapturedTraceback:\n#4 f() from a.cpp:1\n"
                                "#5 main from ??:0\nadvice"),
            "sizes\nadvice");
  EXPECT_EQ(
      without_stack_trace("[W socket.cpp:1] lost. Exception raised from recv at a.hpp:1 (most "
                          "recent call first):\nframe #0: f() + 0x1 (0x7f in a.so)\nadvice"),
      "[W socket.cpp:1] lost. Exception raised from recv at a.hpp:1 (most recent call "
      "first):\nadvice");
  EXPECT_EQ(without_stack_trace("[rank1]: sizes\n[rank1]: Exception raised from f at a.cpp:1 (most "
                                "recent call first):\n[rank1]: frame #0: f() + 0x1 (0x7f in a.so)"),
            "[rank1]: sizes");
  EXPECT_EQ(without_stack_trace("[rank 1] Exception raised from f at a.cpp:1 (most recent call "
                                "first):\n[rank 1] frame #0: f() + 0x1 (0x7f in a.so)\n[rank 1] b"),
            "[rank 1] b");
  const std::string mine = "frame #0: of my video\n#4 is mine";
  EXPECT_EQ(without_stack_trace(mine), mine);
}

TEST(RankOutput, CutsALineWithoutEnd) {
  Collected collected;
  RankOutput output(0, collected.sink(), "");
  for (std::size_t i = 0; i < RankOutput::kLongestLine; i += 1024) {
    output.add(OutputStream::out, std::string(1024, 'x'));
  }
  ASSERT_EQ(collected.lines.size(), 1u);
  EXPECT_EQ(collected.lines[0].size(), RankOutput::kLongestLine + 4);
}

TEST(RankOutput, KeepsALogOfBothStreams) {
  const testing::PrivateTmpdir folder;
  const std::string name = log_file(folder.path(), 7);
  {
    RankOutput output(7, {}, name);
    output.add(OutputStream::out, "one\n");
    output.add(OutputStream::err, "two");
    output.finish(OutputStream::err);
  }
  std::stringstream text;
  text << std::ifstream(folder.path() / "rank_7.log").rdbuf();
  EXPECT_EQ(text.str(), "one\ntwo\n");
  EXPECT_THROW(RankOutput(0, {}, log_file("/nowhere", 0)), BackendError);
}

TEST(RankPrefix, IsColouredOnlyIfWanted) {
  EXPECT_EQ(rank_prefix(2, false), "[rank 2] ");
  EXPECT_THAT(rank_prefix(2, true), HasSubstr("[rank 2]\033[0m "));
  EXPECT_NE(rank_prefix(2, true).substr(0, 5), rank_prefix(3, true).substr(0, 5));
}

}  // namespace
}  // namespace lockstep
