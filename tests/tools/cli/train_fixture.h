// SPDX-License-Identifier: BSD-3-Clause
// `lockstep train` and `lockstep compare` from outside, with images that a net learns at once.
#pragma once

#include <string>
#include <vector>

#include "support/program.h"
#include "support/temporary_folder.h"
#include "tests/tools/recipes/tiny_images.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace lockstep {

class TrainFixture : public ::testing::Test {
 protected:
  TrainFixture() { testing::write_tiny_images(folder_); }
  std::string data() const { return folder_.path(); }
  const testing::TemporaryFolder& folder() const { return folder_; }

  static testing::Ended run_lockstep(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), LOCKSTEP_PROGRAM);
    return testing::run_to_end(arguments);
  }

  static std::vector<std::string> keys(const nlohmann::json& json) {
    std::vector<std::string> names;
    for (const auto& [name, value] : json.items()) names.push_back(name);
    return names;
  }

 private:
  testing::TemporaryFolder folder_;
};

}  // namespace lockstep
