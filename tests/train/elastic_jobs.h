// SPDX-License-Identifier: BSD-3-Clause
// Runs elastic jobs of elastic_program, and compares their states with that of the training in one
// process.
#pragma once

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "support/marked_processes.h"
#include "support/program.h"
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::testing {

class ElasticJobs : public ::testing::Test {
 protected:
  using Words = std::vector<std::string>;

  static std::string hash_in(const Ended& ended) {
    const auto begin = ended.out.find("hash ");
    return begin == std::string::npos ? "none: " + ended.out + ended.err
                                      : ended.out.substr(begin + 5, 64);
  }

  // The hash of the training of this model in one process. `model` may have further arguments.
  static std::string undisturbed(const Words& model) {
    static std::map<Words, std::string> known;
    std::string& hash = known[model];
    if (hash.empty()) {
      Words command{ELASTIC_PROGRAM};
      command.insert(command.end(), model.begin(), model.end());
      hash = hash_in(run_to_end(command));
    }
    return hash;
  }

  static Ended run(int ranks, const std::string& bounds, const Words& arguments,
                   const Words& launcher = {}) {
    Words command{LOCKSTEP_PROGRAM, "run", "-n", std::to_string(ranks), "--elastic", bounds};
    command.insert(command.end(), launcher.begin(), launcher.end());
    command.insert(command.end(), {"--", ELASTIC_PROGRAM});
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run_to_end(command);
  }

  // That each "die=..." among the faults has come about: a job to which nothing happens ends with
  // the undisturbed state, too.
  static void expect_deaths(const Words& faults, const std::string& text) {
    for (const std::string& fault : faults) {
      if (!fault.starts_with("die=")) continue;
      EXPECT_THAT(text, ::testing::ContainsRegex(sign_of(fault))) << fault;
    }
  }

  // Runs the job, and expects its faults and the undisturbed state. Returns what it wrote. `most`:
  // the ranks to which it may grow, if they are more.
  static std::string expect_undisturbed(int ranks, const Words& model, const Words& faults,
                                        int most = 0) {
    Words arguments = model;
    arguments.insert(arguments.end(), faults.begin(), faults.end());
    const Ended ended = run(ranks, fmt::format("1:{}", std::max(ranks, most)), arguments);
    const std::string text = ended.out + ended.err;
    EXPECT_EQ(ended.code, 0) << fmt::format("{}", fmt::join(arguments, " ")) << "\n" << text;
    EXPECT_EQ(hash_in(ended), undisturbed(model))
        << fmt::format("{}", fmt::join(arguments, " ")) << "\n"
        << text;
    expect_deaths(faults, text);
    return text;
  }

 private:
  // What says that "die=MEMBER:PLACE:NUMBER[:HOW]" has come about, as a regular expression.
  static std::string sign_of(const std::string& death) {
    std::istringstream parts(death.substr(death.find('=') + 1));
    std::string member;
    std::string place;
    std::string number;
    std::string how = "kill";
    std::getline(std::getline(std::getline(parts, member, ':'), place, ':'), number, ':');
    // Only the launcher can tell of a death within a call or a step.
    if (place == "call" || place == "adopting" || place == "step") {
      return fmt::format(R"(member {} \([^)]*\) was lost: killed by signal 9)", member);
    }
    if (!parts.eof()) std::getline(parts, how);
    return fmt::format(R"(member {} \(process [0-9]+\) at {} {}: {})", member, place, number, how);
  }

  const MarkedProcesses marked_;
};

}  // namespace lockstep::testing
