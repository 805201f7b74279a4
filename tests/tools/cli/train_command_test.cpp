// SPDX-License-Identifier: BSD-3-Clause
// `lockstep train` as a user runs it.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "support/free_port.h"
#include "support/process_table.h"
#include "support/skip_or_fail.h"
#include "tests/tools/cli/train_fixture.h"
#include "tests/tools/recipes/tiny_text.h"
#include <gmock/gmock.h>
#include <signal.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::Ended;
using testing::free_port;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using testing::Program;
using Json = nlohmann::json;

const std::vector<std::string> kTrainKeys{"schema_version",
                                          "versions",
                                          "recipe",
                                          "mode",
                                          "ranks",
                                          "threads",
                                          "device",
                                          "seed",
                                          "batch_size",
                                          "global_batch_size",
                                          "epochs",
                                          "learning_rate",
                                          "seconds",
                                          "seconds_per_epoch",
                                          "loss",
                                          "samples_per_second",
                                          "learning_rate_scale"};

class TrainCommand : public TrainFixture {
 protected:
  struct WrongUse {
    std::vector<std::string> arguments;
    std::string message;
  };
  static void expect_refusals(const std::vector<WrongUse>& uses) {
    for (const auto& [arguments, message] : uses) {
      const Ended ended = run_lockstep(arguments);
      EXPECT_EQ(ended.code, 2) << message;
      EXPECT_THAT(ended.out, IsEmpty());
      EXPECT_THAT(ended.err, HasSubstr(message));
      EXPECT_EQ(std::ranges::count(ended.err, '\n'), 1) << ended.err;
    }
  }
};

TEST_F(TrainCommand, TrainsAloneAndPrintsItsProgress) {
  const Ended ended = run_lockstep({"train", "linear", "--device", "cpu", "--seed", "1"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("epoch 1/10, step 100/313: loss "),
                               HasSubstr("epoch 10/10: mean loss "),
                               HasSubstr("learned weight 2.00"), HasSubstr("bias 3.00")));
}

TEST_F(TrainCommand, StartsItsOwnRanksAndPrintsOneObject) {
  const Ended ended =
      run_lockstep({"train", "mlp", "--ranks", "2", "--device", "cpu", "--data", data(), "--epochs",
                    "2", "--global-batch-size", "30", "--json"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(std::ranges::count(ended.out, '\n'), 1);
  const Json json = Json::parse(ended.out);
  EXPECT_THAT(keys(json), IsSupersetOf(kTrainKeys));
  EXPECT_EQ(json["schema_version"], 1);
  EXPECT_THAT(keys(json["versions"]), ::testing::ElementsAre("libtorch", "lockstep"));
  EXPECT_EQ(json["mode"], "ddp");
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["batch_size"], 15);
  EXPECT_EQ(json["global_batch_size"], 30);
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_GT(json["accuracy"], 0.1);
  EXPECT_THAT(ended.err, HasSubstr("epoch 2/2: mean loss "));
}

TEST_F(TrainCommand, TwoJobsAtOnceDoNotDisturbEachOther) {
  const std::vector<std::string> command{
      LOCKSTEP_PROGRAM, "train", "linear",   "--ranks", "2",     "--device", "cpu",
      "--seed",         "1",     "--epochs", "3",       "--json"};
  std::array<Program, 2> jobs{Program(command), Program(command)};
  std::array<Json, 2> results;
  for (int job = 0; job < 2; ++job) {
    EXPECT_EQ(jobs[job].wait(), 0) << jobs[job].err();
    results[job] = Json::parse(jobs[job].out());
    EXPECT_EQ(results[job]["ranks"], 2);
  }
  EXPECT_EQ(results[0]["loss"], results[1]["loss"]);
}

TEST_F(TrainCommand, ABatchMayBeLargerThanARanksData) {
  const Ended ended = run_lockstep({"train", "linear", "--ranks", "2", "--device", "cpu",
                                    "--epochs", "1", "--batch-size", "1000000", "--json"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(Json::parse(ended.out)["batch_size"], 1'000'000);
}

TEST_F(TrainCommand, JoinsALauncher) {
  const std::string saved = folder().path() / "net.pt";
  const Ended ended =
      run_lockstep({"run", "-n", "2", "--no-prefix", LOCKSTEP_PROGRAM, "train", "linear",
                    "--device", "cpu", "--epochs", "1", "--save", saved, "--json"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const Json json = Json::parse(ended.out);
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["mode"], "ddp");
  EXPECT_THAT(keys(json), IsSupersetOf({"weight", "bias"}));
  EXPECT_TRUE(std::filesystem::exists(saved));

  const Ended torn =
      run_lockstep({"run", "-n", "2", LOCKSTEP_PROGRAM, "train", "linear", "--ranks", "3"});
  EXPECT_EQ(torn.code, 2);
  EXPECT_THAT(torn.err, AllOf(HasSubstr("--ranks 3"), HasSubstr("WORLD_SIZE=2")));
}

TEST_F(TrainCommand, EachRankOfALauncherSaysWhyTheNetCannotBeSaved) {
  const Ended ended = run_lockstep({"run", "-n", "2", LOCKSTEP_PROGRAM, "train", "linear",
                                    "--device", "cpu", "--save", "/absent/net.pt"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("cannot write \"/absent/net.pt\": No such file"),
                               Not(HasSubstr("left the group"))));
  EXPECT_THAT(ended.out, Not(HasSubstr("loss")));
}

// A disk of 256 KiB; the net takes 800.
TEST_F(TrainCommand, AFullDiskIsAnErrorAndKeepsTheOldNet) {
  if (Program({"unshare", "-m", "true"}).wait() != 0) {
    return testing::skip_or_fail("a mount needs a namespace of its own");
  }
  const std::string disk = folder().path() / "disk";
  std::filesystem::create_directory(disk);
  for (const std::string ranks : {"1", "2"}) {
    Program program({"unshare", "-m", "sh", "-c",
                     "mount -t tmpfs -o size=256k tmpfs $0; echo old >$0/net.pt; "
                     "\"$@\" --save $0/net.pt --json; code=$?; ls -A $0 >&2; cat $0/net.pt >&2; "
                     "exit $code",
                     disk, LOCKSTEP_PROGRAM, "train", "mlp", "--device", "cpu", "--data", data(),
                     "--epochs", "1", "--ranks", ranks});
    EXPECT_EQ(program.wait(), 1) << program.err();
    const Json error = Json::parse(program.out())["error"];
    EXPECT_EQ(error["kind"], "backend");
    EXPECT_THAT(error["message"].get<std::string>(),
                AllOf(HasSubstr("net.pt: No space left on device: 0.8 MiB are needed, 0.2 MiB are "
                                "free on " +
                                disk)));
    EXPECT_TRUE(program.err().ends_with("net.pt\nold\n")) << program.err();
  }
}

TEST_F(TrainCommand, WaitsForOthersAsLongAsItIsTold) {
  Program program({"env", "RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                   "MASTER_PORT=" + std::to_string(free_port()), LOCKSTEP_PROGRAM, "train",
                   "linear", "--device", "cpu", "--timeout", "0.5", "--json"});
  EXPECT_EQ(program.wait(), 1);
  EXPECT_EQ(Json::parse(program.out())["error"]["kind"], "timeout") << program.out();
}

TEST_F(TrainCommand, RefusesWrongValuesOnOneLine) {
  expect_refusals({
      {{"train", "linear", "--epochs", "99999999999999999999"},
       "--epochs \"99999999999999999999\": give a whole number from 1 to 1000000000"},
      {{"train", "linear", "--epochs", "1e3"}, "--epochs \"1e3\": give a whole number"},
      {{"train", "linear", "--batch-size", "0"}, "--batch-size \"0\": give a whole number from 1"},
      {{"train", "linear", "--lr", "inf"}, "--lr \"inf\": give a number from 1e-30 to 1e+30"},
      {{"train", "linear", "--lr", "1e308"}, "--lr \"1e308\": give a number from"},
      {{"train", "resnet18", "--image-size", "4"},
       "--image-size \"4\": give a whole number from 8 to 4096"},
      {{"train", "linear", "--timeout", "nan"}, "--timeout \"nan\": give a number from 0.001 to"},
      {{"train", "mlp", "--curriculum", "root", "--curriculum-start", "1.5"},
       "--curriculum-start \"1.5\": give a number from 1e-06 to 1"},
      {{"train", "mlp", "--set", "momentum=1"},
       "--set \"momentum=1\": there is no option \"momentum\"; the options are epochs, "
       "batch-size, global-batch-size, lr, scale-lr, seed, data, image-size, curriculum, "
       "curriculum-start, curriculum-steps, amp"},
      {{"compare", "mlp", "--set=momentum=1"},
       "the options are epochs, batch-size, global-batch-"
       "size, lr, scale-lr, seed, data, image-size\n"},
      {{"train", "linear", "--set", "lr"}, "--set \"lr\": give a value"},
      {{"train", "linear", "--set", "lr="}, "--set \"lr=\": give a value"},
      {{"train", "linear", "--set", "lr=inf"}, "--lr \"inf\": give a number from 1e-30 to 1e+30"},
      {{"train", "linear", "--set", "batch_size=0"}, "--batch-size \"0\": give a whole number"},
      {{"train", "linear", "--set", "scale_lr=maybe"}, "scale-lr"},
      {{"train", "linear", "--set"}, "--set"},
      {{"compare", "linear", "--ranks", "0"}, "--ranks \"0\": give a whole number from 1 to 32768"},
      {{"compare", "linear", "--ranks", "1,"}, "--ranks \"\": give a whole number"},
  });
}

TEST_F(TrainCommand, RefusesWrongUseOnOneLine) {
  expect_refusals({
      {{"train", "resnet"}, "choose one of linear, mlp, cnn, resnet18, char-transformer"},
      {{"train", "char-transformer", "--ranks", "2", "--data", "/absent"},
       "/absent: there is no such file"},
      {{"train", "char-transformer", "--data", "/dev/null"},
       "/dev/null: this is not a regular file"},
      {{"train", "char-transformer", "--curriculum", "root"},
       "recipe char-transformer has no images to sort"},
      {{"train", "resnet18", "--data", "/absent"}, "/absent: there is no such data folder"},
      {{"train", "mlp", "--data", "/absent"}, "/absent: there is no such data folder"},
      {{"train", "mlp", "--workers", "1"}, "recipe mlp reads no image files from these data"},
      {{"train", "mlp", "--bogus"}, "--bogus"},
      {{"train", "linear", "--seed", "9223372036854775808"}, "to 9223372036854775807"},
      {{"train", "linear", "--batch-size", "2", "--global-batch-size", "4"}, "give one of them"},
      {{"train", "linear", "--ranks", "2", "--global-batch-size", "3"}, "the number of ranks, 2"},
      {{"train", "linear", "--device", "cuda:99"}, "--device cuda:99"},
      {{"train", "linear", "--mode", "single", "--ranks", "2"}, "--ranks 2"},
      {{"train", "linear", "--save", "/absent/net.pt"}, "/absent/net.pt"},
      {{"train", "linear", "--ranks", "2", "--save", "/absent/net.pt"}, "/absent/net.pt"},
      {{"train", "linear", "--save", "/tmp"}, "this is not a file"},
      {{"train", "mlp", "--curriculum", "cubic"},
       "--curriculum \"cubic\": give one of linear, root, steps"},
      {{"train", "mlp", "--curriculum-steps", "5"}, "--curriculum"},
      {{"train", "linear", "--metrics", "/absent/m"}, "cannot write the metrics file /absent/m: "},
      {{"train", "linear", "--ranks", "2", "--device", "cpu", "--metrics", "/absent/m"},
       "cannot write the metrics file /absent/m: No such file or directory"},
      {{"train", "linear", "--trace", "/absent/t"}, "cannot write \"/absent/t\": No such file"},
      {{"train", "linear", "--ranks", "2", "--device", "cpu", "--trace", "/absent/t"},
       "cannot write \"/absent/t\": No such file"},
      {{"train", "linear", "--report", "/absent/r"}, "cannot write \"/absent/r\": No such file"},
      {{"train", "linear", "--curriculum", "root"}, "recipe linear has no images to sort"},
      {{"compare", "mlp", "--data", "/absent"}, "/absent: there is no such data folder"},
  });
}

TEST_F(TrainCommand, RefusesWrongUseAsAnObjectToo) {
  const Ended ended =
      run_lockstep({"train", "char-transformer", "--ranks", "2", "--data", "/absent", "--json"});
  EXPECT_EQ(ended.code, 2);
  const Json json = Json::parse(ended.out);
  EXPECT_EQ(json["schema_version"], 1);
  EXPECT_EQ(json["error"]["kind"], "usage");
  EXPECT_THAT(json["error"]["message"].get<std::string>(),
              HasSubstr("/absent: there is no such file"));
}

TEST_F(TrainCommand, TrainsTextAndCountsItsBits) {
  testing::write_tiny_text(folder(), 60);
  const Ended ended = run_lockstep({"train", "char-transformer", "--ranks", "2", "--device", "cpu",
                                    "--data", data() + "/text", "--epochs", "1", "--json"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const Json json = Json::parse(ended.out);
  EXPECT_THAT(keys(json), IsSupersetOf(kTrainKeys));
  EXPECT_THAT(keys(json),
              IsSupersetOf({"bits_per_character", "test_bits_per_character", "accuracy"}));
  EXPECT_LT(json["bits_per_character"], 8);
  EXPECT_THAT(ended.err, HasSubstr(" bits per character, "));
}

TEST_F(TrainCommand, CanBeStoppedThoughNobodyReads) {
  const std::string saved = folder().path() / "net.pt";
  Program program({LOCKSTEP_PROGRAM, "train", "linear", "--ranks", "2", "--device", "cpu",
                   "--epochs", "1", "--save", saved},
                  Program::Output::full);
  // The ranks have printed all that they had to say.
  ASSERT_TRUE(testing::eventually([&] { return std::filesystem::exists(saved); }));
  program.signal(SIGINT);
  EXPECT_EQ(program.wait_unread(), 128 + SIGINT);
  EXPECT_EQ(program.err(), "lockstep train: stopped by signal 2 (SIGINT)\n");
}

TEST_F(TrainCommand, EndsWithItsReader) {
  Program program({LOCKSTEP_PROGRAM, "train", "linear", "--ranks", "2", "--device", "cpu",
                   "--epochs", "100000"});
  program.wait_for("epoch 1/");
  program.close_output();
  EXPECT_EQ(program.wait(), 128 + SIGPIPE);
}

TEST_F(TrainCommand, OutputThatIsLostIsAFailure) {
  for (const std::string arguments :
       {"train linear --epochs 1", "train linear --epochs 1 --json",
        "train linear --epochs 1 --ranks 2", "train linear --epochs 1 --ranks 2 --json",
        "compare linear --epochs 1 --ranks 2", "compare linear --epochs 1 --ranks 2 --json"}) {
    Program program({"sh", "-c", LOCKSTEP_PROGRAM " " + arguments + " --device cpu >/dev/full"});
    EXPECT_EQ(program.wait(), 1) << arguments;
    EXPECT_THAT(program.err(),
                HasSubstr(": cannot write standard output: No space left on device\n"))
        << arguments;
  }
}

TEST_F(TrainCommand, ChecksGradientsAndRanks) {
  const Ended diverged = run_lockstep({"train", "linear", "--device", "cpu", "--ranks", "2", "--lr",
                                       "1e30", "--check-finite", "--json"});
  EXPECT_EQ(diverged.code, 1);
  const Json error = Json::parse(diverged.out)["error"];
  EXPECT_EQ(error["kind"], "not_finite") << error;
  EXPECT_THAT(error["message"].get<std::string>(),
              AllOf(HasSubstr("epoch 1/10, step "), HasSubstr("the gradient of 0.weight is not")));
  const Ended trained = run_lockstep({"train", "linear", "--device", "cpu", "--ranks", "2",
                                      "--epochs", "1", "--check-finite", "--check-in-sync", "50"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  const Ended alone = run_lockstep({"train", "linear", "--device", "cpu", "--check-in-sync", "1"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.err, HasSubstr("single training has one net"));
}

TEST_F(TrainCommand, HandsUpTheErrorOfItsRanks) {
  folder().write("t10k-labels-idx1-ubyte", "broken");
  const Ended ended =
      run_lockstep({"train", "mlp", "--ranks", "2", "--device", "cpu", "--data", data(), "--json"});
  EXPECT_EQ(ended.code, 2);
  const Json json = Json::parse(ended.out);
  EXPECT_THAT(json["error"]["message"].get<std::string>(),
              AllOf(HasSubstr("t10k-labels-idx1-ubyte"), Not(HasSubstr("\n"))));
}

}  // namespace
}  // namespace lockstep
