// SPDX-License-Identifier: BSD-3-Clause
// What `lockstep train` writes for those who watch it: metrics, a trace, a report, TensorBoard's
// events.
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/free_port.h"
#include "support/limits.h"
#include "support/process_table.h"
#include "support/rank_processes.h"
#include "support/skip_or_fail.h"
#include "tests/tools/cli/train_fixture.h"
#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>

#include "lockstep/core/file/remove_folder.h"
#include "lockstep/train/trace_events.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::Ended;
using ::testing::HasSubstr;
using testing::Program;
using ::testing::SizeIs;
using Json = nlohmann::json;

class TrainFiles : public TrainFixture {};

std::vector<Json> lines_of(const std::string& file) {
  std::ifstream in(file);
  std::vector<Json> objects;
  for (std::string line; std::getline(in, line);) objects.push_back(Json::parse(line));
  return objects;
}

TEST_F(TrainFiles, AppendsMetricsAsTheTrainingGoesOn) {
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

TEST_F(TrainFiles, AnotherProgramCanFollowTheMetrics) {
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

TEST_F(TrainFiles, MetricsBeginOnALineOfTheirOwn) {
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

// What is only for looking at does not cost the trained net, nor the figures.
TEST_F(TrainFiles, AFullDiskCostsTheFileOnly) {
  const testing::TemporaryFolder disk;
  testing::TemporaryFolder chart;
  chart.write("chart.js", "/* the library */");
  const auto outcomes = testing::run_ranks(
      1,
      [&](testing::Rank& rank) {
        if (!testing::mount_disk(disk.path(), 8 << 10)) return rank.report("skipped");
        ::setenv("LOCKSTEP_CHART_JS", (chart.path() / "chart.js").c_str(), 1);
        disk.write("filler", std::string(4090, 'x'));
        for (const auto& [option, ranks] :
             std::vector<std::pair<std::string, std::string>>{{"--tensorboard", "1"},
                                                              {"--tensorboard", "3"},
                                                              {"--metrics", "2"},
                                                              {"--trace", "2"},
                                                              {"--report", "2"}}) {
          const std::string net = folder().path() / ("net" + option + ranks);
          const Ended ended =
              run_lockstep({"train", "mlp", "--ranks", ranks, "--device", "cpu", "--data", data(),
                            "--epochs", "12", "--global-batch-size", "12", "--save", net, "--json",
                            option, disk.path() / "file"});
          EXPECT_EQ(ended.code, 1) << option;
          EXPECT_TRUE(std::filesystem::exists(net)) << option << ended.err;
          EXPECT_THAT(ended.err, AllOf(HasSubstr("lockstep train: cannot write"),
                                       HasSubstr("No space left on device")))
              << option;
          const Json result = Json::parse(ended.out);
          EXPECT_GT(result["accuracy"], 0) << option;
          ASSERT_THAT(result["not_written"], SizeIs(1)) << option;
          EXPECT_THAT(result["not_written"][0].get<std::string>(), HasSubstr("No space left"));
          remove_folder(disk.path() / "file");
        }
      },
      {.deadline = std::chrono::seconds(110)});
  if (outcomes[0].result == "skipped") testing::skip_or_fail("a mount needs a namespace");
}

TEST_F(TrainFiles, AFullDiskOfTheMetricsIsNamedAtOnce) {
  const Ended ended =
      run_lockstep({"train", "linear", "--device", "cpu", "--metrics", "/dev/full"});
  EXPECT_EQ(ended.code, 1);
  const std::string error = "cannot write the metrics file /dev/full: No space left on device";
  EXPECT_THAT(ended.err, AllOf(HasSubstr(error + "; training continues without it"),
                               HasSubstr("lockstep train: " + error + "\n")));
  EXPECT_THAT(ended.out, HasSubstr("learned weight"));
}

// The net of --save is on another disk than the checkpoints.
TEST_F(TrainFiles, AFullDiskOfTheCheckpointsKeepsTheNet) {
  const testing::TemporaryFolder disk;
  const std::string net = folder().path() / "net.pt";
  const auto outcomes = testing::run_ranks(1, [&](testing::Rank& rank) {
    if (!testing::mount_disk(disk.path(), 64 << 10)) return rank.report("skipped");
    for (const std::string ranks : {"1", "2"}) {
      std::filesystem::remove(net);
      const Ended ended =
          run_lockstep({"train", "mlp", "--ranks", ranks, "--device", "cpu", "--data", data(),
                        "--epochs", "1", "--save", net, "--checkpoint-dir", disk.path() / ranks});
      EXPECT_EQ(ended.code, 1);
      EXPECT_THAT(ended.err, HasSubstr("No space left on device"));
      EXPECT_TRUE(std::filesystem::exists(net)) << ended.err;
    }
  });
  if (outcomes[0].result == "skipped") testing::skip_or_fail("a mount needs a namespace");
}

std::size_t rank_of(const Json& event) {
  return event["pid"].get<std::size_t>() - kFirstTracedProcess;
}

// How many events of a name each rank has, by "rank/name".
std::map<std::string, int> events_in(const std::string& file) {
  std::ifstream in(file);
  std::map<std::string, int> counts;
  for (const Json& event : Json::parse(in)) {
    if (event["ph"] != "X") continue;
    ++counts[std::to_string(rank_of(event)) + "/" + event["name"].get<std::string>()];
  }
  return counts;
}

TEST_F(TrainFiles, TracesEveryRank) {
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
TEST_F(TrainFiles, ShowsRanksWithDifferentClocksOnOne) {
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
    buckets.at(rank_of(event)).emplace_back(begin, begin + event["dur"].get<double>());
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

TEST_F(TrainFiles, ATrainingThatFailsLeavesRank0sTrace) {
  const std::string file = folder().path() / "trace.json";
  const Ended ended = run_lockstep({"train", "linear", "--device", "cpu", "--epochs", "1", "--lr",
                                    "1e30", "--check-finite", "--trace", file});
  EXPECT_EQ(ended.code, 1);
  auto counts = events_in(file);
  EXPECT_GT(counts["0/backward"], 0);
  EXPECT_EQ(counts["1/backward"], 0);
}

TEST_F(TrainFiles, WritesAReportBesideATraceAndWithout) {
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

TEST_F(TrainFiles, Rank0WritesOneEventFile) {
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

}  // namespace
}  // namespace lockstep
