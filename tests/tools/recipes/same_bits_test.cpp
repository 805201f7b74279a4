// SPDX-License-Identifier: BSD-3-Clause
// Each recipe, trained in microbatches, ends with the same bits in one process, in replicas and on
// any number of ranks.
#include <memory>
#include <string>
#include <vector>

#include "support/temporary_folder.h"
#include "tests/tools/recipes/tiny_data.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/launch/spawn.h"
#include "tools/recipes/recipe.h"
#include "tools/recipes/train.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::SizeIs;

// Three steps of four microbatches of three samples; the last step lacks one.
constexpr std::int64_t kMicrobatchesOfStep = 4;
constexpr std::int64_t kSamplesOfMicrobatch = 3;
constexpr std::uint32_t kSamplesOfThreeSteps = 35;

RecipeOptions three_steps(const Recipe& recipe, const testing::TemporaryFolder& folder) {
  RecipeOptions options{.epochs = 1,
                        .batch_size = kSamplesOfMicrobatch,
                        .data_folder = testing::tiny_data(recipe, folder, kSamplesOfThreeSteps),
                        .seed = 5};
  options.trainer.microbatches = kMicrobatchesOfStep;
  return options;
}

// Returns the SHA-256 on each rank.
std::vector<std::string> hashes_of_recipe(const std::string& recipe, RecipeOptions options,
                                          TrainingMode mode, int parts) {
  const bool distributed = mode == TrainingMode::distributed;
  options.trainer.mode = mode;
  options.trainer.data_parallel.replicas = mode == TrainingMode::data_parallel ? parts : 1;
  return spawn(
      distributed ? parts : 1,
      [&](int) {
        const auto group = init_process_group({.device = at::kCPU});
        return train(find_recipe(recipe), options, group, [](const std::string&) {}).sha256;
      },
      {.threads = 1, .prefix = false});
}

void expect_hash_in_all_modes(const std::string& recipe, const RecipeOptions& options,
                              const std::string& hash) {
  EXPECT_THAT(hashes_of_recipe(recipe, options, TrainingMode::data_parallel, 2), Each(hash))
      << "2 replicas";
  for (const int ranks : {1, 2, 3}) {
    EXPECT_THAT(hashes_of_recipe(recipe, options, TrainingMode::distributed, ranks), Each(hash))
        << ranks << " ranks";
  }
}

std::string hash_of_one_process(const std::string& recipe, const RecipeOptions& options) {
  const std::string hash = hashes_of_recipe(recipe, options, TrainingMode::single, 1).front();
  EXPECT_THAT(hash, SizeIs(64));
  return hash;
}

class SameBits : public ::testing::TestWithParam<const char*> {};

TEST_P(SameBits, InAllModesAndForAllNumbersOfRanks) {
  const testing::TemporaryFolder folder;
  const RecipeOptions options = three_steps(find_recipe(GetParam()), folder);
  expect_hash_in_all_modes(GetParam(), options, hash_of_one_process(GetParam(), options));
}

INSTANTIATE_TEST_SUITE_P(Recipes, SameBits,
                         ::testing::Values("linear", "mlp", "cnn", "resnet18", "char-transformer"));

class SameBitsOfBlocks : public ::testing::TestWithParam<const char*> {};

TEST_P(SameBitsOfBlocks, InBfloat16AndIfTheyAreComputedAgain) {
  const testing::TemporaryFolder folder;
  RecipeOptions options = three_steps(find_recipe(GetParam()), folder);
  options.trainer.amp = at::kBFloat16;
  const std::string hash = hash_of_one_process(GetParam(), options);
  options.recompute = true;
  expect_hash_in_all_modes(GetParam(), options, hash);
}

INSTANTIATE_TEST_SUITE_P(Recipes, SameBitsOfBlocks,
                         ::testing::Values("resnet18", "char-transformer"));

}  // namespace
}  // namespace lockstep
