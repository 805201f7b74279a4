// SPDX-License-Identifier: BSD-3-Clause
// `lockstep verify` as a user runs it, and `lockstep train --microbatches`.
#include <set>
#include <string>
#include <vector>

#include "tests/tools/cli/train_fixture.h"
#include "tests/tools/recipes/tiny_text.h"
#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::Ended;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Json = nlohmann::json;

class VerifyCommand : public TrainFixture {};

TEST_F(VerifyCommand, FindsTheSameBitsInAllModes) {
  const Ended ended =
      run_lockstep({"verify", "cnn", "--device", "cpu", "--data", data(), "--epochs", "1",
                    "--batch-size", "8", "--ranks", "1,2,3", "--json"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const Json json = Json::parse(ended.out);
  EXPECT_EQ(json["recipe"], "cnn");
  EXPECT_EQ(json["microbatches"], 3);
  EXPECT_EQ(json["identical"], true);
  EXPECT_EQ(json["depends_on"]["threads"], 1);
  ASSERT_THAT(json["rows"], SizeIs(7));
  std::set<std::string> hashes;
  for (const Json& row : json["rows"]) hashes.insert(row["sha256"].get<std::string>());
  EXPECT_THAT(hashes, SizeIs(1));
  EXPECT_THAT(*hashes.begin(), SizeIs(64));
}

// A transformer has other operators: embeddings, attention, layer norms.
TEST_F(VerifyCommand, PrintsATableAndWhatTheBitsDependOn) {
  testing::write_tiny_text(folder(), 24);
  const Ended ended =
      run_lockstep({"verify", "char-transformer", "--device", "cpu", "--data",
                    (folder().path() / "text").string(), "--epochs", "1", "--batch-size", "2",
                    "--modes", "single,ddp", "--ranks", "3", "--microbatches", "4"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("identical: 2 runs of char-transformer in 4 microbatches"));
  EXPECT_THAT(ended.out, HasSubstr("The bits depend on the processor"));
}

TEST_F(VerifyCommand, TrainWithMicrobatchesReportsItsHash) {
  const std::vector<std::string> train{"train",          "linear", "--device",     "cpu",
                                       "--epochs",       "1",      "--batch-size", "8",
                                       "--microbatches", "4",      "--json"};
  const Json alone = Json::parse(run_lockstep(train).out);
  std::vector<std::string> on_three = train;
  on_three.insert(on_three.end(), {"--ranks", "3"});
  const Json together = Json::parse(run_lockstep(on_three).out);
  EXPECT_EQ(alone["microbatches"], 4);
  EXPECT_EQ(alone["global_batch_size"], 32);
  EXPECT_EQ(together["global_batch_size"], 32);
  EXPECT_EQ(together["sha256"], alone["sha256"]);
  EXPECT_THAT(alone["sha256"].get<std::string>(), SizeIs(64));
}

TEST_F(VerifyCommand, TrainWithABalancedLoadHasTheSameHash) {
  std::vector<std::string> train{"train",        "linear", "--device",       "cpu", "--epochs", "1",
                                 "--batch-size", "8",      "--microbatches", "4",   "--json"};
  const Json even = Json::parse(run_lockstep(train).out);
  train.insert(train.end(), {"--ranks", "2", "--balance-load"});
  EXPECT_EQ(Json::parse(run_lockstep(train).out)["sha256"], even["sha256"]);
  const Ended whole = run_lockstep({"train", "linear", "--balance-load"});
  EXPECT_EQ(whole.code, 2);
  EXPECT_THAT(whole.err, HasSubstr("--microbatches"));
}

TEST_F(VerifyCommand, RefusesMoreRanksThanMicrobatches) {
  const Ended ended =
      run_lockstep({"verify", "linear", "--device", "cpu", "--ranks", "4", "--microbatches", "3"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("3 microbatches cannot be divided among 4 ranks"));
}

}  // namespace
}  // namespace lockstep
