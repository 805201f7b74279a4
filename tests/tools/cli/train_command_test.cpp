// SPDX-License-Identifier: BSD-3-Clause
// `lockstep train` and `lockstep compare` as a user runs them.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "support/free_port.h"
#include "support/process_table.h"
#include "support/program.h"
#include "support/skip_or_fail.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <signal.h>

#include "tools/recipes/tiny_images.h"
#include "tools/recipes/tiny_text.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::SizeIs;
using Json = nlohmann::json;
using testing::Program;

struct Ended {
  int code;
  std::string out;
  std::string err;
};

Ended run_lockstep(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), LOCKSTEP_PROGRAM);
  Program program(arguments);
  const int code = program.wait();
  return {code, program.out(), program.err()};
}

std::vector<std::string> keys(const Json& json) {
  std::vector<std::string> names;
  for (const auto& [name, value] : json.items()) names.push_back(name);
  return names;
}

const std::vector<std::string> train_keys{"schema_version",
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

class TrainCommand : public ::testing::Test {
 protected:
  TrainCommand() { testing::write_tiny_images(folder_); }
  std::string data() const { return folder_.path(); }
  const testing::TemporaryFolder& folder() const { return folder_; }

 private:
  testing::TemporaryFolder folder_;
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
  EXPECT_THAT(keys(json), IsSupersetOf(train_keys));
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
  Program program({"env", "RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29419",
                   LOCKSTEP_PROGRAM, "train", "linear", "--device", "cpu", "--timeout", "0.5",
                   "--json"});
  EXPECT_EQ(program.wait(), 1);
  EXPECT_EQ(Json::parse(program.out())["error"]["kind"], "timeout") << program.out();
}

struct WrongUse {
  std::vector<std::string> arguments;
  std::string message;
};

void expect_refusals(const std::vector<WrongUse>& uses) {
  for (const auto& [arguments, message] : uses) {
    const Ended ended = run_lockstep(arguments);
    EXPECT_EQ(ended.code, 2) << message;
    EXPECT_THAT(ended.out, IsEmpty());
    EXPECT_THAT(ended.err, HasSubstr(message));
    EXPECT_EQ(std::ranges::count(ended.err, '\n'), 1) << ended.err;
  }
}

TEST_F(TrainCommand, RefusesWrongValuesOnOneLine) {
  expect_refusals({
      {{"train", "linear", "--epochs", "99999999999999999999"},
       "--epochs \"99999999999999999999\": give a whole number from 1 to 1000000000"},
      {{"train", "linear", "--epochs", "1e3"}, "--epochs \"1e3\": give a whole number"},
      {{"train", "linear", "--batch-size", "0"}, "--batch-size \"0\": give a whole number from 1"},
      {{"train", "linear", "--lr", "inf"}, "--lr \"inf\": give a number from 1e-30 to 1e+30"},
      {{"train", "linear", "--lr", "1e308"}, "--lr \"1e308\": give a number from"},
      {{"train", "linear", "--timeout", "nan"}, "--timeout \"nan\": give a number from 0.001 to"},
      {{"train", "mlp", "--curriculum", "root", "--curriculum-start", "1.5"},
       "--curriculum-start \"1.5\": give a number from 1e-06 to 1"},
      {{"train", "mlp", "--set", "momentum=1"},
       "--set \"momentum=1\": there is no option \"momentum\"; the options are epochs, "
       "batch-size, global-batch-size, lr, scale-lr, seed, data, curriculum, curriculum-start, "
       "curriculum-steps, amp"},
      {{"compare", "mlp", "--set=momentum=1"},
       "the options are epochs, batch-size, global-batch-"
       "size, lr, scale-lr, seed, data\n"},
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
      {{"train", "char-transformer", "--data", "/dev/null"}, "/dev/null: this is no regular file"},
      {{"train", "char-transformer", "--curriculum", "root"},
       "recipe char-transformer has no images to sort"},
      {{"train", "resnet18", "--data", "/absent"}, "/absent: there is no such data folder"},
      {{"train", "mlp", "--data", "/absent"}, "/absent: there is no such data folder"},
      {{"train", "mlp", "--bogus"}, "--bogus"},
      {{"train", "linear", "--seed", "9223372036854775808"}, "to 9223372036854775807"},
      {{"train", "linear", "--batch-size", "2", "--global-batch-size", "4"}, "give one of them"},
      {{"train", "linear", "--ranks", "2", "--global-batch-size", "3"}, "the number of ranks, 2"},
      {{"train", "linear", "--device", "cuda:99"}, "--device cuda:99"},
      {{"train", "linear", "--mode", "single", "--ranks", "2"}, "--ranks 2"},
      {{"train", "linear", "--save", "/absent/net.pt"}, "/absent/net.pt"},
      {{"train", "linear", "--ranks", "2", "--save", "/absent/net.pt"}, "/absent/net.pt"},
      {{"train", "linear", "--save", "/tmp"}, "this is not a file"},
      {{"train", "mlp", "--curriculum", "cubic"}, "cubic not in {linear,root,steps}"},
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
  EXPECT_THAT(keys(json), IsSupersetOf(train_keys));
  EXPECT_THAT(keys(json),
              IsSupersetOf({"bits_per_character", "test_bits_per_character", "accuracy"}));
  EXPECT_LT(json["bits_per_character"], 8);
  EXPECT_THAT(ended.err, HasSubstr(" bits per character, "));
}

TEST_F(TrainCommand, CompareStartsItsRanksItself) {
  const Ended ended = run_lockstep(
      {"run", "-n", "2", "--no-prefix", LOCKSTEP_PROGRAM, "compare", "linear", "--device", "cpu"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("one of 2 ranks, but compare starts its own ranks"));
}

std::vector<Json> lines_of(const std::string& file) {
  std::ifstream in(file);
  std::vector<Json> objects;
  for (std::string line; std::getline(in, line);) objects.push_back(Json::parse(line));
  return objects;
}

TEST_F(TrainCommand, AppendsMetricsAsTheTrainingGoesOn) {
  const std::string file = folder().path() / "metrics.jsonl";
  for (const int ranks : {1, 2}) {
    std::filesystem::remove(file);
    const Ended ended =
        run_lockstep({"train", "mlp", "--ranks", std::to_string(ranks), "--device", "cpu", "--data",
                      data(), "--epochs", "2", "--set", "global_batch_size=12", "--set=lr=0.002",
                      "--metrics", file, "--json"});
    ASSERT_EQ(ended.code, 0) << ended.err;
    const Json result = Json::parse(ended.out);
    EXPECT_EQ(result["global_batch_size"], 12);
    EXPECT_EQ(result["learning_rate"], 0.002);
    // 26 steps an epoch: records at 10, 20 and 26, and one of the epoch.
    const auto lines = lines_of(file);
    ASSERT_THAT(lines, SizeIs(8));
    std::vector<int> steps;
    for (const Json& line : lines) steps.push_back(line["step"]);
    EXPECT_THAT(steps, ::testing::ElementsAre(10, 20, 26, 26, 36, 46, 52, 52));
    for (const Json& line : lines) {
      EXPECT_EQ(line["epoch"], line["step"] <= 26 ? 1 : 2);
      EXPECT_GE(line["loss"], 0);
      if (line["kind"] == "epoch") continue;
      EXPECT_EQ(line["kind"], "step");
      EXPECT_EQ(line["learning_rate"], 0.002);
      EXPECT_GT(line["samples_per_second"], 0);
      EXPECT_GT(line["peak_mb"], 10);
    }
    EXPECT_EQ(lines[7]["kind"], "epoch");
    EXPECT_GT(lines[7]["seconds"], 0);
    EXPECT_EQ(lines[7]["loss"], result["loss"]);
    EXPECT_EQ(lines[7]["accuracy"], result["accuracy"]);
    EXPECT_EQ(lines[3]["kind"], "epoch");
    EXPECT_TRUE(lines[3].contains("accuracy"));
  }
}

TEST_F(TrainCommand, AnotherProgramCanFollowTheMetrics) {
  const std::string file = folder().path() / "metrics.jsonl";
  Program program({LOCKSTEP_PROGRAM, "train", "linear", "--ranks", "2", "--device", "cpu",
                   "--epochs", "100000", "--metrics", file});
  ASSERT_TRUE(testing::eventually([&] { return std::filesystem::exists(file); }));
  ASSERT_TRUE(testing::eventually([&] { return std::filesystem::file_size(file) > 1000; }));
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  const auto written = std::filesystem::file_size(file);
  // A later training goes on after it.
  const Ended ended =
      run_lockstep({"train", "linear", "--device", "cpu", "--epochs", "1", "--metrics", file});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_GT(std::filesystem::file_size(file), written);
}

// How many events of a name each rank has, by "rank/name".
std::map<std::string, int> events_in(const std::string& file) {
  std::ifstream in(file);
  std::map<std::string, int> counts;
  for (const Json& event : Json::parse(in)) {
    if (event["ph"] != "X") continue;
    ++counts[event["pid"].dump() + "/" + event["name"].get<std::string>()];
  }
  return counts;
}

TEST_F(TrainCommand, TracesEveryRank) {
  const std::string file = folder().path() / "trace.json";
  const Ended ended =
      run_lockstep({"train", "mlp", "--ranks", "2", "--device", "cpu", "--data", data(), "--epochs",
                    "2", "--global-batch-size", "30", "--trace", file});
  ASSERT_EQ(ended.code, 0) << ended.err;
  auto counts = events_in(file);
  // 301 samples, 11 steps an epoch.
  for (const std::string rank : {"0/", "1/"}) {
    for (const char* name : {"batch", "forward", "backward", "optimizer", "bucket"}) {
      EXPECT_EQ(counts[rank + name], 22) << rank << name;
    }
    EXPECT_EQ(counts[rank + "launch bucket"], 22);
    EXPECT_EQ(counts[rank + "evaluation"], 1);
  }
}

// A time namespace gives rank 1 another clock, as another machine would.
TEST_F(TrainCommand, ShowsRanksWithDifferentClocksOnOne) {
  const std::vector<std::string> other_clock{"unshare", "-T", "--monotonic", "1000", "--fork"};
  std::vector<std::string> probe = other_clock;
  probe.emplace_back("true");
  if (Program(probe).wait() != 0) {
    return testing::skip_or_fail("another clock needs a time namespace");
  }
  const std::string file = folder().path() / "trace.json";
  const std::string port = std::to_string(testing::free_port());
  const auto command = [&](const std::string& rank) {
    std::vector<std::string> words{"env",          "RANK=" + rank,          "LOCAL_RANK=" + rank,
                                   "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port};
    if (rank == "1") words.insert(words.end(), other_clock.begin(), other_clock.end());
    words.insert(words.end(), {LOCKSTEP_PROGRAM, "train", "linear", "--device", "cpu", "--epochs",
                               "1", "--trace", file});
    return words;
  };
  Program rank_1(command("1"));
  Program rank_0(command("0"));
  ASSERT_EQ(rank_0.wait(), 0) << rank_0.err();
  ASSERT_EQ(rank_1.wait(), 0) << rank_1.err();
  std::ifstream in(file);
  std::array<std::vector<std::pair<double, double>>, 2> buckets;
  std::string labels;
  for (const Json& event : Json::parse(in)) {
    labels += event.value("args", Json::object()).value("labels", "");
    if (event["ph"] != "X" || event["name"] != "bucket") continue;
    const double begin = event["ts"];
    buckets.at(event["pid"].get<std::size_t>())
        .emplace_back(begin, begin + event["dur"].get<double>());
  }
  EXPECT_THAT(labels, HasSubstr("clock known to "));
  ASSERT_EQ(buckets[0].size(), buckets[1].size());
  // No bucket arrives on a rank before the other has launched it. The clocks differ by 10^9 us.
  constexpr double kSlack = 100'000;
  for (std::size_t i = 0; i < buckets[0].size(); ++i) {
    EXPECT_LT(buckets[0][i].first, buckets[1][i].second + kSlack);
    EXPECT_LT(buckets[1][i].first, buckets[0][i].second + kSlack);
  }
}

TEST_F(TrainCommand, ATrainingThatFailsLeavesRank0sTrace) {
  const std::string file = folder().path() / "trace.json";
  const Ended ended = run_lockstep({"train", "linear", "--device", "cpu", "--epochs", "1", "--lr",
                                    "1e30", "--check-finite", "--trace", file});
  EXPECT_EQ(ended.code, 1);
  auto counts = events_in(file);
  EXPECT_GT(counts["0/backward"], 0);
  EXPECT_EQ(counts["1/backward"], 0);
}

TEST_F(TrainCommand, WritesAReportBesideATraceAndWithout) {
  testing::TemporaryFolder files;
  files.write("chart.js", "/* the library */");
  ::setenv("LOCKSTEP_CHART_JS", (files.path() / "chart.js").c_str(), 1);
  const std::string report = files.path() / "report.html";
  for (const bool traced : {false, true}) {
    std::vector<std::string> command{"train", "linear",   "--ranks", "2",        "--device",
                                     "cpu",   "--epochs", "2",       "--report", report};
    const std::string trace = files.path() / "trace.json";
    if (traced) command.insert(command.end(), {"--trace", trace});
    const Ended ended = run_lockstep(command);
    EXPECT_EQ(ended.code, 0) << ended.err;
    std::ifstream in(report);
    const std::string page(std::istreambuf_iterator<char>(in), {});
    EXPECT_THAT(
        page, AllOf(HasSubstr("<h1>linear: ddp with 2 ranks</h1>"), HasSubstr("/* the library */"),
                    HasSubstr("<code>lockstep train linear --ranks 2")));
    const std::string begin = "id=\"data\">";
    const auto at = page.find(begin) + begin.size();
    const Json data = Json::parse(page.substr(at, page.find("</script>", at) - at));
    ASSERT_THAT(data["ranks"], SizeIs(2));
    for (const Json& rank : data["ranks"]) {
      EXPECT_THAT(rank["points"], SizeIs(::testing::Ge(100)));
      EXPECT_GT(rank["points"].back()["samples_per_second"], 0);
      EXPECT_GT(rank["points"].back()["peak_mb"], 10);
      EXPECT_EQ(rank["points"].back()["epoch"], 2);
      // forward, backward and the optimizer take time.
      for (const int part : {0, 1, 4}) EXPECT_GT(rank["milliseconds"][part], 0);
    }
    EXPECT_EQ(std::filesystem::exists(trace), traced);
    std::filesystem::remove(report);
  }
  ::unsetenv("LOCKSTEP_CHART_JS");
}

TEST_F(TrainCommand, MetricsBeginOnALineOfTheirOwn) {
  const std::string file = folder().path() / "metrics.jsonl";
  std::ofstream(file) << R"({"kind": "st)";  // from a training that was killed
  const Ended ended =
      run_lockstep({"train", "linear", "--device", "cpu", "--epochs", "1", "--metrics", file});
  EXPECT_EQ(ended.code, 0) << ended.err;
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  EXPECT_EQ(line, R"({"kind": "st)");
  std::getline(in, line);
  EXPECT_EQ(Json::parse(line)["kind"], "step");
}

TEST_F(TrainCommand, AFullDiskEndsATrainingWithMetrics) {
  const Ended ended =
      run_lockstep({"train", "linear", "--device", "cpu", "--metrics", "/dev/full", "--json"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(Json::parse(ended.out)["error"]["message"],
            "cannot write the metrics file /dev/full: No space left on device");
}

TEST_F(TrainCommand, Rank0WritesOneEventFile) {
  const auto runs = folder().path() / "runs";
  const Ended ended = run_lockstep({"train", "mlp", "--ranks", "2", "--device", "cpu", "--data",
                                    data(), "--epochs", "1", "--tensorboard", runs});
  ASSERT_EQ(ended.code, 0) << ended.err;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(runs)) files.push_back(entry.path());
  ASSERT_THAT(files, SizeIs(1));
  std::ifstream in(files[0], std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  for (const char* tag : {"train/loss", "train/learning_rate", "train/samples_per_second",
                          "epoch/loss", "epoch/accuracy"}) {
    EXPECT_THAT(bytes, HasSubstr(tag));
  }
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
  EXPECT_THAT(alone.err, HasSubstr("a single training has one net"));
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

TEST_F(TrainCommand, ComparesThreeModes) {
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

  const Ended table = run_lockstep(arguments);
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_EQ(std::ranges::count(table.out, '\n'), 6 + 1 + 6 + 1 + 6);
  EXPECT_THAT(table.out, HasSubstr("efficiency"));
}

TEST_F(TrainCommand, ComparesWithTheGivenBatches) {
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
