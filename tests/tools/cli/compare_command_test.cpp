// SPDX-License-Identifier: BSD-3-Clause
// `lockstep compare` as a user runs it.
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/cli/train_fixture.h"
#include <gmock/gmock.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::Ended;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;
using Json = nlohmann::json;

class CompareCommand : public TrainFixture {};

TEST_F(CompareCommand, CompareStartsItsRanksItself) {
  const Ended ended = run_lockstep(
      {"run", "-n", "2", "--no-prefix", LOCKSTEP_PROGRAM, "compare", "linear", "--device", "cpu"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("one of 2 ranks, but compare starts its own ranks"));
}

TEST_F(CompareCommand, ComparesThreeModes) {
  const std::vector<std::string> arguments{"compare", "mlp",      "--device", "cpu",     "--data",
                                           data(),    "--epochs", "2",        "--ranks", "2"};
  auto with_json = arguments;
  with_json.emplace_back("--json");
  const Ended ended = run_lockstep(with_json);
  ASSERT_EQ(ended.code, 0) << ended.err;
  const Json json = Json::parse(ended.out);
  EXPECT_THAT(keys(json), IsSupersetOf({"schema_version", "versions", "recipe", "device", "seed",
                                        "epochs", "global_batch_size", "batch_size", "cores",
                                        "rows", "rows_same_rank_batch"}));
  EXPECT_EQ(json["global_batch_size"], 128);
  EXPECT_EQ(json["batch_size"], 64);
  const auto& rows = json["rows"];
  ASSERT_THAT(rows, SizeIs(4));
  for (const auto& row : rows) {
    EXPECT_THAT(keys(row), IsSupersetOf({"mode", "ranks", "threads", "seconds_per_epoch", "loss",
                                         "samples_per_second", "accuracy", "speedup", "efficiency",
                                         "batch_size"}));
    EXPECT_EQ(row["global_batch_size"], 128);
    EXPECT_NEAR(row["loss"], rows[0]["loss"], 0.05);
  }
  EXPECT_EQ(rows[0]["mode"], "single");
  EXPECT_EQ(rows[0]["threads"], 1);
  EXPECT_EQ(rows[0]["speedup"], 1.0);
  EXPECT_EQ(rows[1]["mode"], "single");
  EXPECT_EQ(rows[1]["threads"], json["cores"]);
  EXPECT_EQ(rows[2]["mode"], "dp");
  EXPECT_EQ(rows[2]["ranks"], 1);
  EXPECT_EQ(rows[2]["replicas"], 2);
  EXPECT_EQ(rows[3]["mode"], "ddp");
  EXPECT_EQ(rows[3]["ranks"], 2);
  for (int row : {2, 3}) EXPECT_EQ(rows[row]["batch_size"], 64);
  EXPECT_EQ(rows[0]["bytes_moved_per_step"], 0);
  // Gradients of 203,530 floats at least. Each of 2 ranks sends half of them, and half of the new
  // parameters.
  EXPECT_GT(rows[2]["bytes_moved_per_step"], 203'530 * 4);
  EXPECT_GE(rows[3]["bytes_moved_per_step"], 203'530 * 4);
  EXPECT_LT(rows[3]["bytes_moved_per_step"], 203'530 * 4 * 1.01);
  EXPECT_EQ(rows[2]["peak_mb"], rows[2]["fullest_peak_mb"]);
  EXPECT_GT(rows[3]["peak_mb"], rows[3]["fullest_peak_mb"]);
  EXPECT_EQ(rows[3]["losses"].size(), json["epochs"].get<std::size_t>() * 3);
  const auto& same_rank_batch = json["rows_same_rank_batch"];
  ASSERT_THAT(same_rank_batch, SizeIs(4));
  for (std::size_t row = 0; row < 4; ++row) {
    EXPECT_EQ(same_rank_batch[row]["batch_size"], 64);
    EXPECT_EQ(same_rank_batch[row]["global_batch_size"], row < 2 ? 64 : 128);
    for (const char* same : {"mode", "ranks", "replicas", "threads"}) {
      EXPECT_EQ(same_rank_batch[row][same], rows[row][same]);
    }
    // dp and ddp ran once for both views.
    EXPECT_EQ(same_rank_batch[row]["seconds"] == rows[row]["seconds"], row >= 2);
    EXPECT_NEAR(same_rank_batch[row]["speedup"].get<double>(),
                same_rank_batch[row]["samples_per_second"].get<double>() /
                    same_rank_batch[0]["samples_per_second"].get<double>(),
                0.001);
  }
  EXPECT_THAT(ended.err, AllOf(HasSubstr("[single, 1 thread, global batch 128] "),
                               HasSubstr("[single, 1 thread, global batch 64] "),
                               HasSubstr("[ddp, 2 ranks, 1 thread, global batch 128] ")));

  auto with_one_copy = arguments;
  with_one_copy.emplace_back("--one-copy");
  const Ended table = run_lockstep(with_one_copy);
  ASSERT_EQ(table.code, 0) << table.err;
  std::istringstream lines(table.out);
  int lines_of_rows = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
    if (line.starts_with("single ") || line.starts_with("dp ") || line.starts_with("ddp ")) {
      ++lines_of_rows;
    }
  }
  EXPECT_EQ(lines_of_rows, 3 * 4);
  EXPECT_THAT(table.out, HasSubstr("efficiency"));
}

TEST_F(CompareCommand, ComparesWithTheGivenBatches) {
  const Ended ended = run_lockstep({"compare", "linear", "--device", "cpu", "--epochs", "1",
                                    "--modes", "single,ddp", "--ranks", "1,2",
                                    "--global-batch-size", "40", "--scale-lr", "--json"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const Json json = Json::parse(ended.out);
  EXPECT_EQ(json["batch_size"], 20);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["global_batch_size"], 40);
    EXPECT_EQ(row["learning_rate_scale"], 2);
  }
  for (const auto& row : json["rows_same_rank_batch"]) {
    EXPECT_EQ(row["batch_size"], 20);
    EXPECT_EQ(row["learning_rate_scale"], row["ranks"]);
  }
}

}  // namespace
}  // namespace lockstep
