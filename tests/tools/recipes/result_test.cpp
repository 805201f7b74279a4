// SPDX-License-Identifier: BSD-3-Clause
// Results, errors and comparisons as JSON and as a table.
#include <cmath>
#include <sstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/parallel/model_checks.h"
#include "tools/compare/comparison_output.h"
#include "tools/recipes/train_result.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

TrainResult some_result() {
  return {.recipe = "mlp",
          .mode = "ddp",
          .ranks = 2,
          .replicas = 1,
          .threads = 1,
          .device = "cpu",
          .seed = 7,
          .batch_size = 128,
          .global_batch_size = 256,
          .learning_rate = 1e-3,
          .learning_rate_scale = 2,
          .epochs = 5,
          .amp = "bf16",
          .seconds = 10.5,
          .seconds_per_epoch = 2.1,
          .samples_per_second = 28571.4,
          .loss = 0.25,
          .losses = {{0.5, 0.75}, {1, 0.25}},
          .peak_mb = 300.5,
          .fullest_peak_mb = 160.25,
          .core_wait = 0.43,
          .bytes_moved_per_step = 814'120,
          .accuracy = 0.875,
          .bits_per_character = 2.25,
          .test_bits_per_character = 2.5,
          .weight = {},
          .bias = {}};
}

TEST(TrainResult, ComesBackFromJson) {
  const TrainResult result = some_result();
  const TrainResult again = train_result_from_json(to_json(result));
  EXPECT_EQ(to_json(again), to_json(result));
  EXPECT_EQ(again.samples_per_second, result.samples_per_second);
  EXPECT_EQ(again.accuracy, result.accuracy);
  EXPECT_EQ(again.bits_per_character, 2.25);
  EXPECT_EQ(again.test_bits_per_character, 2.5);
  EXPECT_EQ(again.weight, std::nullopt);
  ASSERT_EQ(again.losses.size(), 2u);
  EXPECT_EQ(again.losses[0].loss, 0.75);
  EXPECT_EQ(again.fullest_peak_mb, 160.25);
}

TEST(TrainResult, OfATrainingThatDivergedIsStillJson) {
  TrainResult result = some_result();
  result.loss = std::nan("");
  result.losses.back().loss = std::nan("");
  result.weight = std::nan("");
  EXPECT_TRUE(nlohmann::json::parse(to_json(result)).at("loss").is_null());
  const TrainResult again = train_result_from_json(to_json(result));
  EXPECT_TRUE(std::isnan(again.loss));
  EXPECT_TRUE(std::isnan(again.losses.back().loss));
  EXPECT_TRUE(std::isnan(again.weight.value()));
}

TEST(TrainResult, SaysThatTheLoadExceedsTheCores) {
  TrainResult result = some_result();
  const auto json = nlohmann::json::parse(to_json(result));
  EXPECT_EQ(json.at("core_wait"), 0.43);
  EXPECT_THAT(json.at("load").get<std::string>(), HasSubstr("a rank waited for one 43 % of its"));
  result.core_wait = 0.02;
  EXPECT_FALSE(nlohmann::json::parse(to_json(result)).contains("load"));
}

TEST(TrainResult, RefusesOtherTexts) {
  EXPECT_THROW(train_result_from_json("no json"), Error);
  EXPECT_THROW(train_result_from_json("{\"recipe\": \"mlp\"}"), Error);
}

TEST(ErrorToJson, NamesTheKind) {
  const auto json = nlohmann::json::parse(error_to_json(UsageError("bad \"name\" \xff")));
  EXPECT_EQ(json.at("schema_version"), 1);
  EXPECT_EQ(json.at("error").at("kind"), "usage");
  EXPECT_THAT(json.at("error").at("message").get<std::string>(), HasSubstr("bad \"name\""));
  const auto lost = nlohmann::json::parse(error_to_json(PeerLost(1, "gone")))["error"];
  EXPECT_EQ(lost["kind"], "peer_lost");
  EXPECT_EQ(lost["rank"], 1);
  const auto kind_of = [](const std::exception& error) {
    return nlohmann::json::parse(error_to_json(error))["error"]["kind"];
  };
  EXPECT_EQ(kind_of(NonFiniteGradient("inf")), "not_finite");
  EXPECT_EQ(kind_of(OutOfSync("differs")), "out_of_sync");
  EXPECT_EQ(kind_of(std::runtime_error("x")), "error");
}

TEST(ErrorToJson, HasNoStackTraceOfLibtorchs) {
  const std::runtime_error error(
      "sizes differ\nException raised from f at a.cpp:1 (most recent call first):\n"
      "frame #0: f() + 0x1 (0x7f in a.so)\n");
  EXPECT_EQ(nlohmann::json::parse(error_to_json(error))["error"]["message"], "sizes differ");
}

TEST(ErrorToJson, ARankThatASignalKilledIsLostAndOneThatFailedIsNot) {
  const auto json_of = [](int signal) {
    const RankFailure failure{
        .rank = 2, .pid = 1, .exit_code = 1, .signal = signal, .cause = "", .last_lines = {}};
    return nlohmann::json::parse(error_to_json(RankFailed(failure, "rank 2 failed")))["error"];
  };
  EXPECT_EQ(json_of(9)["kind"], "peer_lost");
  EXPECT_EQ(json_of(9)["rank"], 2);
  EXPECT_EQ(json_of(0)["kind"], "error");
}

Comparison some_comparison() {
  Comparison comparison{.global_batch_size = 256, .batch_size = 128, .cores = 2};
  TrainResult single = some_result();
  single.mode = "single";
  single.ranks = 1;
  single.seconds_per_epoch = 4.2;
  single.bytes_moved_per_step = 0;
  single.peak_mb = {};
  single.core_wait = {};
  comparison.rows.push_back({.result = single, .needs = needs_of(TrainingMode::single)});
  comparison.rows.push_back({.result = some_result(),
                             .speedup = 2,
                             .efficiency = 1,
                             .needs = needs_of(TrainingMode::distributed)});
  comparison.rows_same_rank_batch = comparison.rows;
  comparison.rows_same_rank_batch[0].result.batch_size = 64;
  comparison.rows_same_rank_batch[1].speedup = 1.75;
  return comparison;
}

TEST(Comparison, IsTablesOfAlignedColumns) {
  const std::string table = to_table(some_comparison());
  std::istringstream lines(table);
  std::vector<std::string> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(line);
  ASSERT_THAT(rows, SizeIs(29));
  for (const std::string& row : rows) EXPECT_LE(row.size(), 80u) << row;
  EXPECT_EQ(rows[0], "Global batch of 256 in every row, so that all take the same steps:");
  EXPECT_EQ(rows[9],
            "Batch of 128 on each rank or replica in every row, so that more ranks take fewer");
  EXPECT_EQ(rows[10], "steps:");
  // The name of a column may take two lines, and the last column continues below its row.
  for (const std::size_t first : {1, 11}) {
    EXPECT_THAT(rows[first], EndsWith(" final"));
    for (const char* name : {"mode", "ranks", "threads", "s/epoch", "samples/s", "loss", "accuracy",
                             "bits/char", "speedup"}) {
      EXPECT_THAT(rows[first + 1], HasSubstr(name));
    }
    EXPECT_EQ(rows[first + 2], "    efficiency");
    for (const std::size_t row : {first + 3, first + 5}) {
      EXPECT_EQ(rows[row].size(), rows[first + 1].size());
      EXPECT_THAT(rows[row], HasSubstr("87.50 %"));
      EXPECT_EQ(rows[row + 1], "         100 %");
    }
  }
  EXPECT_THAT(rows[6], EndsWith("2.00"));
  EXPECT_THAT(rows[16], EndsWith("1.75"));

  for (const std::size_t blank : {8, 18, 26}) EXPECT_EQ(rows[blank], "");
  EXPECT_EQ(rows[19], "Costs, with the global batch of 256:");
  EXPECT_THAT(rows[24], MatchesRegex("single +1 +[?] +160 +0[.]000 +0 +one device"));
  EXPECT_THAT(rows[25], MatchesRegex("ddp +2 +30[01] +160 +0[.]814 +[1-9] +many machines"));
  EXPECT_THAT(rows[27], HasSubstr("The load exceeds the cores: a rank waited for one 43 %"));
}

TEST(Comparison, NeedsMoreLinesTheFurtherItReaches) {
  EXPECT_EQ(needs_of(TrainingMode::single).lines, 0);
  EXPECT_GT(needs_of(TrainingMode::data_parallel).lines, 0);
  EXPECT_GT(needs_of(TrainingMode::distributed).lines, needs_of(TrainingMode::data_parallel).lines);
}

TEST(Comparison, IsJsonWithRows) {
  const auto json = nlohmann::json::parse(to_json(some_comparison()));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("batch_size", "cores", "device", "epochs", "global_batch_size",
                                "load", "recipe", "rows", "rows_same_rank_batch", "schema_version",
                                "seed", "versions"));
  EXPECT_THAT(json["load"].get<std::string>(), HasSubstr("waited for one 43 % of its time"));
  ASSERT_THAT(json.at("rows"), SizeIs(2));
  EXPECT_EQ(json["rows"][1]["speedup"], 2.0);
  EXPECT_EQ(json["rows"][1]["mode"], "ddp");
  ASSERT_THAT(json["rows_same_rank_batch"], SizeIs(2));
  EXPECT_EQ(json["rows_same_rank_batch"][0]["batch_size"], 64);
  EXPECT_EQ(json["rows_same_rank_batch"][1]["speedup"], 1.75);
  EXPECT_EQ(json["recipe"], "mlp");
}

}  // namespace
}  // namespace lockstep
